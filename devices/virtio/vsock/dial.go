package vsock

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
)

// Host ports of connections that begin here, out of the way of the numbers
// that people give to listeners.
const (
	firstPort = 1 << 30
	lastPort  = 1<<31 - 1
)

// ErrTooManyConns is wrapped by errors of Dial when [Config.MaxConns] are
// there.
var ErrTooManyConns = errors.New("too many connections")

// Dial connects to a guest process that listens at port. The connection is a
// [*Conn].
//
// Before the guest's driver has activated the device, while the device is
// quiet, and after a restore until the driver has reset the old connections,
// Dial waits. It ends at the latest with ctx, whose error it wraps. The error is [syscall.ECONNREFUSED] if
// nobody listens.
func (d *Device) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c, err := d.dial(ctx, port)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "vsock", Addr: Addr{d.cfg.CID, port}, Err: err}
	}
	return c, nil
}

func (d *Device) dial(ctx context.Context, port uint32) (*Conn, error) {
	if port == anyPort {
		return nil, syscall.EINVAL
	}
	for !d.closed && !d.accepting() && ctx.Err() == nil {
		wait(ctx, &d.changed)
	}
	switch {
	case d.closed:
		return nil, net.ErrClosed
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case len(d.conns) >= d.cfg.MaxConns:
		return nil, ErrTooManyConns
	}
	c := d.newConn(ports{guest: port, host: d.freePort(port)})
	c.owe(oweRequest)
	d.pump()
	for c.phase == dialing && ctx.Err() == nil {
		wait(ctx, &c.readable)
	}
	switch {
	case c.phase == dialing:
		c.die(ctx.Err(), true)
		d.pump()
		return nil, c.err
	case c.err != nil:
		return nil, c.err
	}
	return c, nil
}

// freePort finds a host port for a connection to the guest's port. There are
// far more than connections.
func (d *Device) freePort(guest uint32) uint32 {
	for {
		p := d.nextPort
		if d.nextPort++; d.nextPort > lastPort {
			d.nextPort = firstPort
		}
		if d.conns[ports{guest: guest, host: p}] == nil && d.listeners[p] == nil {
			return p
		}
	}
}

// wait waits for cond, whose lock is held, or for the end of ctx.
func wait(ctx context.Context, cond *sync.Cond) {
	stop := context.AfterFunc(ctx, func() {
		cond.L.Lock()
		defer cond.L.Unlock()
		cond.Broadcast()
	})
	cond.Wait()
	stop()
}
