package bare

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/forkvm/forkvm/test/bench/footprint"
	"github.com/forkvm/forkvm/test/bench/microguest"
)

// Kind is what is measured.
type Kind string

// Kinds of measurements.
const (
	Pooled Kind = "pooled" // forks with everything made ahead
	Cold   Kind = "cold"   // forks with nothing made ahead
	Reset  Kind = "reset"  // a child that wrote pages, back to where it was forked
)

// Request asks for one measurement.
type Request struct {
	Kind   Kind
	N      int               // children of a fork
	Memory int64             // bytes of memory of each machine
	Guest  microguest.Params // the parent's guest
	// Usage asks for the memory that a child costs. Reading it takes time, but
	// not of what is measured.
	Usage bool
}

// Sample is one measurement.
type Sample struct {
	Pause      time.Duration
	Children   []Times
	DirtyPages int64           // of the parent; of a reset, pages that it dropped
	Usage      footprint.Usage // bytes a child
}

// reply is what a server answers, a JSON object a line, as requests are.
type reply struct {
	Sample Sample
	Error  string
}

// Session measures with one parent at a time.
type Session struct {
	h      *Host
	memory int64 // of the parent
	guest  microguest.Params
	parent *Parent // nil at first
	child  *Family // of resets; nil at first
}

// NewSession opens the KVM. All methods are to be called on the same thread.
func NewSession() (*Session, error) {
	h, err := Open()
	if err != nil {
		return nil, err
	}
	return &Session{h: h}, nil
}

// Close frees everything.
func (s *Session) Close() error { return errors.Join(s.forget(), s.h.Close()) }

func (s *Session) forget() error {
	if s.child != nil {
		s.child.Close()
		s.child = nil
	}
	if s.parent == nil {
		return nil
	}
	p := s.parent
	s.parent = nil
	return p.Close()
}

// Measure does what r asks for. The parent is that of the request before if
// the guest and its memory are the same.
func (s *Session) Measure(r Request) (Sample, error) {
	if r.N < 1 || r.N > 10000 {
		return Sample{}, fmt.Errorf("bare: %d children", r.N)
	}
	if s.parent == nil || s.guest != r.Guest || s.memory != r.Memory {
		if err := s.forget(); err != nil {
			return Sample{}, err
		}
		p, err := s.h.NewParent(r.Memory, r.Guest)
		if err != nil {
			return Sample{}, err
		}
		s.parent, s.guest, s.memory = p, r.Guest, r.Memory
	}
	switch r.Kind {
	case Pooled, Cold:
		return s.fork(r)
	case Reset:
		return s.reset()
	}
	return Sample{}, fmt.Errorf("bare: no kind %q", r.Kind)
}

func (s *Session) fork(r Request) (Sample, error) {
	runtime.GC() // none while it is measured
	before, err := usage(r)
	if err != nil {
		return Sample{}, err
	}
	var pool *Pool
	if r.Kind == Pooled {
		if pool, err = s.parent.Prepare(r.N); err != nil {
			return Sample{}, err
		}
	}
	// A thread that has used its share of a busy processor would lose it just
	// when it is measured.
	time.Sleep(settle)
	// Last, so that the CPU's caches hold what a parent that runs has there.
	if err := s.parent.Round(); err != nil {
		return Sample{}, err
	}
	f, err := s.parent.Fork(r.N, pool)
	if err != nil {
		return Sample{}, err
	}
	defer f.Close()
	after, err := usage(r)
	if err != nil {
		return Sample{}, err
	}
	return Sample{Pause: f.Pause, Children: f.Children, DirtyPages: f.DirtyPages, Usage: after.Per(before, r.N)}, nil
}

// settle is how long nothing is done before a measurement.
const settle = 5 * time.Millisecond

func usage(r Request) (footprint.Usage, error) {
	if !r.Usage {
		return footprint.Usage{}, nil
	}
	return footprint.Read()
}

func (s *Session) reset() (Sample, error) {
	if s.child == nil {
		f, err := s.parent.Fork(1, nil)
		if err != nil {
			return Sample{}, err
		}
		s.child = f
	}
	if err := s.child.Wander(); err != nil {
		return Sample{}, err
	}
	runtime.GC()
	time.Sleep(settle)
	t, pages, err := s.parent.Reset(s.child)
	return Sample{Children: []Times{t}, DirtyPages: pages}, err
}

// Serve answers requests until there are no more.
func Serve(in io.Reader, out io.Writer) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := NewSession()
	if err != nil {
		return err
	}
	defer s.Close()
	requests, replies := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var r Request
		if err := requests.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("bare: request: %w", err)
		}
		var a reply
		if a.Sample, err = s.Measure(r); err != nil {
			a.Error = err.Error()
		}
		if err := replies.Encode(a); err != nil {
			return fmt.Errorf("bare: reply: %w", err)
		}
	}
}
