package client

import (
	"context"
	"net"
	"time"
)

// keepTime is how long a connection is kept for the operation after a renewal.
const keepTime = time.Second

// kept is a connection that is free for another operation.
type kept struct {
	net.Conn
	tooLong *time.Timer
}

// keep keeps the connection of an operation that has ended for the next one, if
// that comes soon.
func (c *Client) keep(cn *conn) {
	if !cn.stop() {
		return // ctx has ended and closes it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept != nil {
		cn.Conn.Close() // two renewals at once
		return
	}
	k := &kept{Conn: cn.Conn}
	k.tooLong = time.AfterFunc(keepTime, func() {
		if c.take(k) {
			k.Close()
		}
	})
	c.kept = k
}

// take reports whether k was still kept. It is not any more.
func (c *Client) take(k *kept) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k == nil || c.kept != k {
		return false
	}
	c.kept = nil
	k.tooLong.Stop()
	return true
}

// connect returns the connection that was kept, or a new one.
func (c *Client) connect(ctx context.Context) (net.Conn, error) {
	c.mu.Lock()
	k := c.kept
	c.mu.Unlock()
	if c.take(k) {
		return k.Conn, nil
	}
	return c.dial(ctx)
}
