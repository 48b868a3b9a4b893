package agent

import (
	"net"
	"sync"
	"sync/atomic"
)

const (
	// maxIdle is how many goroutines of a crew stay when they have nothing to
	// do: as many as a command keeps busy, and some.
	maxIdle = 6
	// stackRoom is what work finds on the stack, in bytes, without having to
	// grow it.
	stackRoom = 4 << 10
)

// crew is goroutines that stay for the next piece of work with the stack that
// they have grown: growing one reads tables of every function on it, which in a
// fork is most of the memory that a short operation touches.
type crew struct {
	done <-chan struct{} // closed when they are to go
	next chan func()     // to a goroutine that has nothing to do
	idle atomic.Int32
}

func newCrew(done <-chan struct{}) *crew {
	return &crew{done: done, next: make(chan func())}
}

// run runs f on a goroutine.
func (c *crew) run(f func()) {
	select {
	case c.next <- f:
	default:
		go onGrownStack(func() { c.work(f) })
	}
}

// work runs f and then what comes, until enough others wait for that.
func (c *crew) work(f func()) {
	for {
		f()
		if c.idle.Add(1) > maxIdle {
			c.idle.Add(-1)
			return
		}
		select {
		case f = <-c.next:
			c.idle.Add(-1)
		case <-c.done:
			return
		}
	}
}

// onGrownStack calls f with room on the stack. The runtime takes back what is
// not used of a goroutine's stack: this is, as long as f runs.
//
//go:noinline
func onGrownStack(f func()) {
	var room [stackRoom]byte
	use(&room)
	f()
	use(&room)
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
