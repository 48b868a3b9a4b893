package exec

import (
	"errors"
	"io"
	"reflect"
	"sync"
)

// same tells whether both are the same writer, of a type that can be compared.
func same(a, b io.Writer) bool {
	return a != nil && b != nil && reflect.TypeOf(a).Comparable() && reflect.TypeOf(b).Comparable() && a == b
}

// turns is a writer that is written to from one place at a time.
type turns struct {
	mu sync.Mutex
	w  io.Writer
}

func (t *turns) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.w.Write(p)
}

// pipe is a pipe whose reader may go: what is written then is dropped.
type pipe struct{ *io.PipeWriter }

func (p pipe) Write(b []byte) (int, error) {
	n, err := p.PipeWriter.Write(b)
	if errors.Is(err, io.ErrClosedPipe) {
		return len(b), nil
	}
	return n, err
}

// prefix keeps the beginning of what is written.
type prefix struct{ b []byte }

func (p *prefix) Write(b []byte) (int, error) {
	p.b = append(p.b, b[:min(len(b), maxStderr-len(p.b))]...)
	return len(b), nil
}
