package agent

import (
	"context"
	"net"
)

// RunSpare is the life of a spare that a test's server started.
func RunSpare() int { return runSpare() }

// ServeWithSpares is Serve for a process whose own commands are links to
// program, which is told to run a spare by SpareName.
func ServeWithSpares(ctx context.Context, l net.Listener, o Options, program string) (func() int, func() error) {
	s := newServer(o)
	s.useSpares(program)
	pid := func() int {
		s.spares.mu.Lock()
		defer s.spares.mu.Unlock()
		if s.spares.ready == nil {
			return 0
		}
		return s.spares.ready.process.pid
	}
	return pid, func() error { return s.serve(ctx, l) }
}

// SpareName is the name under which a program is a spare.
const SpareName = spareName
