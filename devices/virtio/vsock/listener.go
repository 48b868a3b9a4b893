package vsock

import (
	"net"
	"sync"
	"syscall"
)

// listener takes the guest's connections to one host port. The device's mutex
// guards it.
type listener struct {
	dev     *Device
	port    uint32
	closed  bool
	backlog []*Conn // not accepted yet
	arrived sync.Cond
}

var _ net.Listener = (*listener)(nil)

// Listen accepts connections of guest processes to port of CID 2. It outlives
// resets of the device. Its connections are [*Conn]. The error is
// [syscall.EADDRINUSE] if the port has a listener.
func (d *Device) Listen(port uint32) (net.Listener, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := &listener{dev: d, port: port}
	switch {
	case d.closed:
		return nil, l.opError("listen", net.ErrClosed)
	case port == anyPort:
		return nil, l.opError("listen", syscall.EINVAL)
	case d.listeners[port] != nil:
		return nil, l.opError("listen", syscall.EADDRINUSE)
	}
	l.arrived.L = &d.mu
	d.listeners[port] = l
	return l, nil
}

// Accept returns the next connection.
func (l *listener) Accept() (net.Conn, error) {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	for !l.closed {
		if len(l.backlog) == 0 {
			l.arrived.Wait()
			continue
		}
		c := l.backlog[0]
		l.backlog = l.backlog[1:]
		if c.err == nil { // or it was reset meanwhile
			return c, nil
		}
	}
	return nil, l.opError("accept", net.ErrClosed)
}

// Addr is an [Addr].
func (l *listener) Addr() net.Addr { return Addr{HostCID, l.port} }

// Close ends the listener and resets what nobody accepted.
func (l *listener) Close() error {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	if l.closed {
		return l.opError("close", net.ErrClosed)
	}
	for _, c := range l.backlog {
		c.die(net.ErrClosed, true)
	}
	l.shut()
	l.dev.pump()
	return nil
}

// shut ends the listener.
func (l *listener) shut() {
	l.closed = true
	l.backlog = nil
	delete(l.dev.listeners, l.port)
	l.arrived.Broadcast()
}

func (l *listener) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "vsock", Addr: l.Addr(), Err: err}
}
