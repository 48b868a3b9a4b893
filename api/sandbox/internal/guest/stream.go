package guest

import (
	"errors"
	"io"
	"sync"

	"github.com/forkvm/forkvm/api"
)

// tailSize is how much of each stream an error has.
const tailSize = 4 << 10

// capture keeps the first bytes written to it, and a few of the last.
type capture struct {
	max  int
	head []byte
	tail []byte // of what was written since the head was full
	more bool   // than head
}

// Write implements io.Writer. It never fails.
func (c *capture) Write(b []byte) (int, error) {
	n := min(len(b), c.max-len(c.head))
	c.head = append(c.head, b[:n]...)
	rest := b[n:]
	if len(rest) == 0 {
		return len(b), nil
	}
	c.more = true
	c.tail = append(c.tail, rest[max(0, len(rest)-tailSize):]...)
	if over := len(c.tail) - tailSize; over > 0 {
		c.tail = append(c.tail[:0], c.tail[over:]...)
	}
	return len(b), nil
}

// end returns the last bytes that were written.
func (c *capture) end() api.Text {
	missing := min(tailSize-len(c.tail), len(c.head))
	return append(append(api.Text{}, c.head[len(c.head)-missing:]...), c.tail...)
}

// sink passes output on to a writer of the caller's once it is open, and says
// if that fails.
type sink struct {
	io.Writer
	open   <-chan struct{}
	failed func(error)
}

// Write implements io.Writer.
func (s *sink) Write(b []byte) (int, error) {
	<-s.open
	n, err := s.Writer.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil && !errors.Is(err, io.ErrClosedPipe) { // which wants no more, and that is all
		s.failed(ofCaller("output", err))
	}
	return n, err
}

// stdin is input of the caller's. When it fails the caller has gone: that is
// told, and is not the end of the command's input.
type stdin struct {
	r      io.Reader
	done   <-chan struct{} // closed when it is not to be read any more
	failed func(error)
	err    error // of the last Read, to be told with the next
}

// Read implements io.Reader. It does not return before the connection ends once
// the input has failed.
func (s *stdin) Read(b []byte) (int, error) {
	select {
	case <-s.done:
		return 0, io.ErrClosedPipe
	default:
	}
	n, err := 0, s.err
	if err == nil {
		n, err = s.r.Read(b)
	}
	if err == nil || err == io.EOF {
		return n, err
	}
	if n > 0 {
		s.err = err
		return n, nil
	}
	s.failed(ofCaller("stdin", err))
	<-s.done
	return 0, err
}

// content is a reader of the caller's, which tells its errors from those of who
// reads it. It is not read any more once it was closed, but for a Read that is
// under way.
type content struct {
	r io.Reader

	mu     sync.Mutex
	err    error // guarded by mu: of the reader, and not its end
	closed bool  // guarded by mu
}

// Read implements io.Reader.
func (c *content) Read(b []byte) (int, error) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return 0, io.ErrClosedPipe
	}
	n, err := c.r.Read(b)
	if err != nil && err != io.EOF {
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
	}
	return n, err
}

// close ends the use of the reader. It returns err, or if the reader has failed
// what the API says of that.
func (c *content) close(what string, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.err != nil {
		return ofCaller(what, c.err)
	}
	return err
}
