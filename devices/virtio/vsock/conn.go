package vsock

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// closeTimeout is how long a closed connection waits for the guest's RST
// before it sends its own.
const closeTimeout = 8 * time.Second

// phase is where a connection is in its life.
//
//	dialing ──RESPONSE──▶ open ──▶ dead
//	   └────────────────────────────▲
type phase int

const (
	dialing phase = iota // REQUEST is sent or owed
	open
	dead // at most an RST is owed, after which the device forgets it
)

// Control packets that a connection owes the guest.
const (
	oweRequest = 1 << iota
	oweResponse
	oweShutdown
	oweCredit
	oweReset
)

// Conn is a connection with a process in the guest. It implements [net.Conn].
//
// Errors are of type [*net.OpError]. They wrap [net.ErrClosed] after Close,
// [os.ErrDeadlineExceeded] after a deadline, [syscall.ECONNRESET] after the
// guest's end was lost in another way than by closing, and [syscall.EPIPE] in
// a Write that nobody will read. What arrived before a reset is still read.
type Conn struct {
	dev   *Device
	ports ports

	// All of what follows is guarded by dev.mu.

	phase  phase
	err    error  // why it is dead, unless it ended in order
	closed bool   // by Close
	kept   bool   // see Keep
	owes   int    // control packets
	queued bool   // in dev.ready
	behind *Conn  // next in dev.ready
	in     buffer // from the guest, not read yet

	shut, peerShut uint32 // directions shut down from here and by the guest

	// Credit, section 5.10.6.3; all counts wrap.
	fwdCnt    uint32 // bytes taken out of the buffer
	fwdTold   uint32 // fwdCnt in the last packet sent
	txCnt     uint32 // bytes sent
	peerFwd   uint32
	peerAlloc uint32

	out     []byte // what is left of the Write in progress
	writing bool   // a Write is in progress

	readable, writable sync.Cond
	readBy, writeBy    deadline
	linger             *time.Timer // until RST, after Close
}

var _ net.Conn = (*Conn)(nil)

// newConn adds a connection in phase dialing.
func (d *Device) newConn(p ports) *Conn {
	c := &Conn{dev: d, ports: p}
	c.readable.L, c.writable.L = &d.mu, &d.mu
	d.conns[p] = c
	return c
}

// LocalAddr is the host's end, an [Addr].
func (c *Conn) LocalAddr() net.Addr { return Addr{HostCID, c.ports.host} }

// RemoteAddr is the guest's end, an [Addr].
func (c *Conn) RemoteAddr() net.Addr { return Addr{c.dev.cfg.CID, c.ports.guest} }

// Keep says whether the connection may live on in machines that are restored
// from a capture of this one: both ends agree that nothing is under way on it.
// There it is [Device.Inherited].
func (c *Conn) Keep(keep bool) {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	c.kept = keep
}

// Read reads what the guest sent. It returns io.EOF after the guest shut its
// sending side down, or after CloseRead.
func (c *Conn) Read(p []byte) (int, error) {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, c.opError("read", net.ErrClosed)
		case c.readBy.expired:
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return 0, nil
		case c.shut&shutReceive != 0:
			return 0, io.EOF
		case c.in.len() > 0:
			return c.take(p), nil
		case c.err != nil:
			return 0, c.opError("read", c.err)
		case c.phase == dead || c.peerShut&shutSend != 0:
			return 0, io.EOF
		}
		c.readable.Wait()
	}
}

// take moves received bytes to p and tells the guest of the space if due.
func (c *Conn) take(p []byte) int {
	n := c.in.read(p)
	c.fwdCnt += uint32(n)
	if c.phase == open {
		c.updateCredit()
	}
	if c.owes != 0 {
		c.dev.pump()
	}
	if c.in.len() > 0 {
		c.readable.Signal() // another reader may be waiting
	}
	return n
}

// Write returns when all of p is in memory of the guest. Concurrent calls do
// not mix. It blocks while the guest offers no space, and during a Quiesce.
func (c *Conn) Write(p []byte) (int, error) {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	for c.writing && c.writeError() == nil {
		c.writable.Wait()
	}
	if err := c.writeError(); err != nil {
		return 0, c.opError("write", err)
	}
	c.writing, c.out = true, p
	err := c.flush()
	n := len(p) - len(c.out)
	c.writing, c.out = false, nil
	c.writable.Broadcast()
	if err != nil {
		return n, c.opError("write", err)
	}
	return n, nil
}

// flush waits until out is sent or cannot be.
func (c *Conn) flush() error {
	c.dev.schedule(c)
	c.dev.pump()
	for len(c.out) > 0 {
		if err := c.writeError(); err != nil {
			return err
		}
		c.writable.Wait()
	}
	return nil
}

// writeError is why nothing can be written any more, or nil.
func (c *Conn) writeError() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.writeBy.expired:
		return os.ErrDeadlineExceeded
	case c.err != nil:
		return c.err
	case c.phase == dead || c.shut&shutSend != 0 || c.peerShut&shutReceive != 0:
		return syscall.EPIPE
	}
	return nil
}

// CloseWrite ends the stream to the guest: its reads return end of file after
// what was written. A Write in progress fails.
func (c *Conn) CloseWrite() error { return c.shutdown(shutSend) }

// CloseRead discards what the guest sent and will send: its writes fail. A
// Read in progress returns io.EOF.
func (c *Conn) CloseRead() error { return c.shutdown(shutReceive) }

func (c *Conn) shutdown(how uint32) error {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	switch {
	case c.closed:
		return c.opError("close", net.ErrClosed)
	case c.err != nil:
		return c.opError("close", c.err)
	}
	c.end(how)
	c.dev.pump()
	return nil
}

// end shuts down the directions how from here.
func (c *Conn) end(how uint32) {
	if how&shutReceive != 0 {
		c.fwdCnt += uint32(c.in.len())
		c.dev.stats.Dropped += uint64(c.in.len())
		c.in = buffer{}
	}
	if c.phase == open && c.shut|how != c.shut {
		c.owe(oweShutdown)
	}
	c.shut |= how
	c.readable.Broadcast()
	c.writable.Broadcast()
}

// Close ends the connection in both directions. What was written is still
// delivered. It does not wait for the guest, which has a few seconds to agree
// before the connection is reset.
func (c *Conn) Close() error {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	c.readBy.stop()
	c.writeBy.stop()
	c.end(shutBoth)
	if c.phase == open {
		c.linger = time.AfterFunc(closeTimeout, c.giveUp)
	}
	c.dev.pump()
	return nil
}

// giveUp resets a closed connection whose end the guest did not confirm.
func (c *Conn) giveUp() {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	c.die(nil, true)
	c.dev.pump()
}

// die ends the connection with err, which is nil if it ends in order, and
// tells the guest by RST if tell.
func (c *Conn) die(err error, tell bool) {
	if c.phase == dead {
		if !tell { // not even the RST it owes can be sent any more
			c.owes = 0
			delete(c.dev.conns, c.ports)
		}
		return
	}
	known := c.owes&oweRequest == 0 // by the guest
	c.phase, c.err, c.owes = dead, err, 0
	if c.linger != nil {
		c.linger.Stop()
	}
	if tell && known {
		c.owe(oweReset)
	} else {
		delete(c.dev.conns, c.ports)
	}
	c.readable.Broadcast()
	c.writable.Broadcast()
}

func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "vsock", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
