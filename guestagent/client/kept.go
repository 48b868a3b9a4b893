package client

import (
	"net"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// WithKeptConn makes a client keep one connection between operations. idle, if
// not nil, is told when nothing is under way on it, and when that ends. Who
// closes it is who made it.
func WithKeptConn(idle func(nc net.Conn, idle bool)) Option {
	return func(c *Client) {
		c.keeps, c.idle = true, func(net.Conn, bool) {}
		if idle != nil {
			c.idle = idle
		}
	}
}

// Adopt gives a client that keeps a connection one on which nothing is under
// way.
func (c *Client) Adopt(nc net.Conn) {
	if !c.keeps {
		nc.Close()
		return
	}
	c.idle(nc, true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept != nil {
		nc.Close()
		return
	}
	c.kept = nc
}

// done ends the connection of an operation that ended well, or keeps it.
func (c *Client) done(cn *conn, op proto.Op) {
	if !c.keeps || !op.Repeats() || !cn.stop() { // or ctx has ended and closes it
		cn.close()
		return
	}
	c.Adopt(cn.Conn)
}

// takeKept returns the connection that was kept, if there is one and it can
// carry the operation and be kept again.
func (c *Client) takeKept(op proto.Op) net.Conn {
	if !op.Repeats() {
		return nil
	}
	c.mu.Lock()
	nc := c.kept
	c.kept = nil
	c.mu.Unlock()
	if nc != nil {
		c.idle(nc, false)
	}
	return nc
}
