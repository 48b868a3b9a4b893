package agent

import (
	"context"
	"net"
)

// RunSpare is the life of a spare that a test's server started.
func RunSpare() int { return runSpare() }

// ServeWithSpares is Serve for a process whose own commands are links to
// program, which is told to run a spare by SpareName.
func ServeWithSpares(ctx context.Context, l net.Listener, o Options, program string) (spares func() []int, serve func() error) {
	s := newServer(o)
	s.useSpares(program)
	pids := func() (pids []int) {
		s.spares.mu.Lock()
		defer s.spares.mu.Unlock()
		for _, sp := range s.spares.ready {
			pids = append(pids, sp.process.pid)
		}
		return pids
	}
	return pids, func() error { return s.serve(ctx, l) }
}

// MaxIdle is how many goroutines an agent keeps for what comes.
const MaxIdle = maxIdle

// SpareName is the name under which a program is a spare.
const SpareName = spareName

// MaxSpares is how many there are.
const MaxSpares = maxSpares
