package agent

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
)

const (
	// maxIdle is how many goroutines of a crew stay when they have nothing to
	// do.
	maxIdle = 2
	// stackRoom is what operations find on the stack, in bytes, without
	// having to grow it.
	stackRoom = 4 << 10
)

// crew handles connections, each on a goroutine. Some goroutines stay for the
// next, with the stack that they have grown: growing one reads tables of every
// function on it, which in a fork is most of the memory that a short operation
// touches.
type crew struct {
	ctx    context.Context
	handle func(context.Context, net.Conn)
	next   chan net.Conn // to a goroutine that has nothing to do
	idle   atomic.Int32
	all    sync.WaitGroup
}

func newCrew(ctx context.Context, handle func(context.Context, net.Conn)) *crew {
	return &crew{ctx: ctx, handle: handle, next: make(chan net.Conn)}
}

// take has a connection handled.
func (c *crew) take(nc net.Conn) {
	select {
	case c.next <- nc:
	default:
		c.all.Go(func() { c.work(nc) })
	}
}

// wait returns when all goroutines have ended, which they do after ctx has.
func (c *crew) wait() { c.all.Wait() }

// work handles nc and then what comes, until enough others wait for that.
//
//go:noinline
func (c *crew) work(nc net.Conn) {
	// The runtime takes back what is not used of a goroutine's stack: this is.
	var room [stackRoom]byte
	use(&room)
	defer use(&room)
	for {
		c.handle(c.ctx, nc)
		if c.idle.Add(1) > maxIdle {
			c.idle.Add(-1)
			return
		}
		select {
		case nc = <-c.next:
			c.idle.Add(-1)
		case <-c.ctx.Done():
			return
		}
	}
}

//go:noinline
func use(room *[stackRoom]byte) { room[0]++ }

// connSet is the connections that are handled. The zero value is empty.
type connSet struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{} // guarded by mu
	closed bool                  // guarded by mu
}

// add reports whether the connection may be used: not after closeAll.
func (s *connSet) add(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.conns == nil {
		s.conns = make(map[net.Conn]struct{})
	}
	s.conns[nc] = struct{}{}
	return true
}

func (s *connSet) remove(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, nc)
}

// closeAll closes all connections, and those that would come later.
func (s *connSet) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for nc := range s.conns {
		nc.Close()
	}
}
