package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// signals gets those that ask forkvm to stop. They end the context, unless a
// command in a guest takes them.
type signals struct {
	handle atomic.Pointer[func(os.Signal)]
	end    func(os.Signal) // the context
}

// watchSignals returns a context that the first signal ends, with the cause
// interrupted. It watches until parent ends.
func watchSignals(parent context.Context) (context.Context, *signals) {
	ctx, cancel := context.WithCancelCause(parent)
	s := &signals{end: func(sig os.Signal) { cancel(interrupted{sig.(syscall.Signal)}) }}
	s.keep()
	arrived := make(chan os.Signal, 8)
	signal.Notify(arrived, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		defer signal.Stop(arrived)
		seen := map[os.Signal]int{}
		for {
			select {
			case <-parent.Done():
				return
			case sig := <-arrived:
				// A command may ignore a signal, but not for ever.
				if seen[sig]++; seen[sig] > 2 {
					s.end(sig)
				}
				go (*s.handle.Load())(sig) // it may wait for a guest that does not answer
			}
		}
	}()
	return ctx, s
}

// forward gives signals to f from now on. The third of a kind ends the context
// as well.
func (s *signals) forward(f func(os.Signal)) { s.handle.Store(&f) }

// keep lets signals end the context again.
func (s *signals) keep() { s.forward(s.end) }
