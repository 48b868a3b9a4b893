package vsock

import (
	"net"
	"sync"
	"time"
)

// deadline is one direction's deadline. The device's mutex guards it.
type deadline struct {
	expired bool
	timer   *time.Timer
	set     int // how often it was set: an older timer means nothing
}

// SetDeadline sets both deadlines; see [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.setDeadline(&c.readBy, &c.readable, t); err != nil {
		return err
	}
	return c.setDeadline(&c.writeBy, &c.writable, t)
}

// SetReadDeadline sets the deadline of Read; see [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(&c.readBy, &c.readable, t)
}

// SetWriteDeadline sets the deadline of Write; see [net.Conn].
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.writeBy, &c.writable, t)
}

// setDeadline sets w, whose passing wakes those who wait for cond.
func (c *Conn) setDeadline(w *deadline, cond *sync.Cond, t time.Time) error {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	w.stop()
	w.expired = false
	if t.IsZero() {
		return nil
	}
	left := time.Until(t)
	if left <= 0 {
		w.expired = true
		cond.Broadcast()
		return nil
	}
	set := w.set
	w.timer = time.AfterFunc(left, func() {
		c.dev.mu.Lock()
		defer c.dev.mu.Unlock()
		if w.set == set {
			w.expired = true
			cond.Broadcast()
		}
	})
	return nil
}

func (w *deadline) stop() {
	w.set++
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}
