package session

import (
	"os"
	"sync"
)

// maxSignals is how many signals wait until a program has got those before them.
const maxSignals = 16

// Signals passes signals on to a program, one at a time of which may use it. Its methods may be
// called concurrently.
type Signals struct {
	mu      sync.Mutex
	waiting chan os.Signal // guarded by mu; nil: no program runs
}

// Pass passes a signal on, after those before it. It returns false if no program runs.
func (s *Signals) Pass(sig os.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		return false
	}
	select {
	case s.waiting <- sig:
	default: // Who has got none of so many will not miss one.
	}
	return true
}

// Deliver says that a program runs: send is called with each signal, one at a time, until stop is
// called. A nil Signals has none.
func (s *Signals) Deliver(send func(os.Signal)) (stop func()) {
	if s == nil {
		return func() {}
	}
	waiting := make(chan os.Signal, maxSignals)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = waiting
	go func() {
		for sig := range waiting {
			send(sig)
		}
	}()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiting = nil
		close(waiting)
	}
}
