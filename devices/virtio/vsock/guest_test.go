package vsock

import (
	"context"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// guest is a guest with sockets. It follows what Linux 6.12 does on the wire:
// when it sends credit updates and limits itself, answers SHUTDOWN of both
// directions with RST, answers strange packets, and resets connections after a
// transport reset without a word.
type guest struct {
	*rig
	t testing.TB

	mu        sync.Mutex // also of the rig; held = the vCPUs are stopped
	wake      *sync.Cond // something changed
	conns     map[ports]*guestConn
	listeners map[uint32]chan *guestConn
	nextPort  uint32
	queue     []packet // TX packets that await room
	bufAlloc  uint32
	events    int
	rxFirst   bool // look at RX before the event queue
}

type packet struct {
	h       header
	payload []byte
}

// newGuest makes a running guest.
func newGuest(t testing.TB, cfg Config) *guest {
	t.Helper()
	r := newRig(t, cfg)
	g := &guest{rig: r, t: t, nextPort: 40000, bufAlloc: 256 << 10}
	g.init()
	r.start(t, ringFeatures, 64)
	g.run()
	return g
}

func (g *guest) init() {
	g.wake = sync.NewCond(&g.mu)
	g.conns = make(map[ports]*guestConn)
	g.listeners = make(map[uint32]chan *guestConn)
}

// run serves interrupts until the test ends.
func (g *guest) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for g.irq.Wait(ctx) == nil {
			g.mu.Lock()
			g.interrupt()
			g.mu.Unlock()
		}
	}()
	g.t.Cleanup(func() {
		cancel()
		<-done
	})
}

func (g *guest) interrupt() {
	g.drv.AckInterrupt()
	if g.rxFirst {
		g.handleRX()
	}
	for {
		_, b, ok := g.takeEvent()
		if !ok {
			break
		}
		g.events++
		for _, c := range g.conns {
			if c.state == open {
				c.state, c.err = dead, syscall.ECONNRESET
			}
		}
		g.offerEvent(b)
	}
	g.handleRX()
	g.reap()
	for len(g.queue) > 0 && g.send(g.queue[0].h, g.queue[0].payload) {
		g.queue = g.queue[1:]
	}
	g.wake.Broadcast()
}

func (g *guest) handleRX() {
	for {
		h, payload, ok := g.recv()
		if !ok {
			return
		}
		g.receive(h, payload)
	}
}

// transmit sends a packet, if need be later.
func (g *guest) transmit(h header, payload []byte) {
	if len(g.queue) > 0 || !g.send(h, payload) {
		g.queue = append(g.queue, packet{h, payload})
	}
}

func (g *guest) receive(h header, payload []byte) {
	key := ports{guest: h.dstPort, host: h.srcPort}
	c := g.conns[key]
	if c == nil && h.op == opRequest && g.listeners[h.dstPort] != nil {
		c = g.newConn(key)
		c.state, c.peerAlloc, c.peerFwd = open, h.bufAlloc, h.fwdCnt
		c.send(opResponse, 0, nil)
		g.listeners[h.dstPort] <- c
		return
	}
	if c == nil || c.state == dead {
		if h.op != opReset {
			r := hdr(opReset, h.dstPort, h.srcPort)
			g.transmit(r, nil)
		}
		return
	}
	c.receive(h, payload)
}

// dial connects to a host port.
func (g *guest) dial(port uint32) (*guestConn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nextPort++
	c := g.newConn(ports{guest: g.nextPort, host: port})
	c.send(opRequest, 0, nil)
	for c.state == dialing {
		g.wake.Wait()
	}
	if c.err != nil {
		return nil, c.err
	}
	return c, nil
}

// listen returns where connections to a guest port arrive.
func (g *guest) listen(port uint32) <-chan *guestConn {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := make(chan *guestConn, 2000)
	g.listeners[port] = l
	return l
}

// fork forks a guest whose vCPUs stand still and whose device is quiet. The
// child's sockets are as the parent's, and it does not run yet.
func (g *guest) fork() *guest {
	c := &guest{rig: g.rig.fork(g.t), t: g.t, nextPort: g.nextPort, bufAlloc: g.bufAlloc}
	c.init()
	for k, p := range g.conns {
		n := *p
		n.g, n.in = c, append([]byte(nil), p.in...)
		c.conns[k] = &n
	}
	for port := range g.listeners {
		c.listeners[port] = make(chan *guestConn, 2000)
	}
	c.queue = append(c.queue, g.queue...)
	return c
}

// guestConn is a guest process's end of a connection.
type guestConn struct {
	g     *guest
	ports ports
	state phase
	err   error

	in              []byte
	shut, peerShut  uint32
	fwdCnt, lastFwd uint32
	txCnt           uint32
	peerFwd         uint32
	peerAlloc       uint32
	bufAlloc        uint32
	closed          bool
}

var _ net.Conn = (*guestConn)(nil)

func (g *guest) newConn(p ports) *guestConn {
	c := &guestConn{g: g, ports: p, bufAlloc: g.bufAlloc}
	g.conns[p] = c
	return c
}

func (c *guestConn) send(op uint16, flags uint32, payload []byte) {
	h := hdr(op, c.ports.guest, c.ports.host)
	h.flags, h.bufAlloc, h.fwdCnt = flags, c.bufAlloc, c.fwdCnt
	c.lastFwd = c.fwdCnt
	c.g.transmit(h, payload)
}

func (c *guestConn) receive(h header, payload []byte) {
	c.peerAlloc, c.peerFwd = h.bufAlloc, h.fwdCnt
	switch h.op {
	case opResponse:
		c.state = open
	case opReset:
		if c.state == dialing {
			c.err = syscall.ECONNRESET
		}
		c.peerShut = shutBoth // Linux reads end of file
		c.remove()
	case opRW:
		if len(c.in)+len(payload) > int(c.bufAlloc) {
			c.g.t.Errorf("device sent %d bytes beyond the credit", len(c.in)+len(payload)-int(c.bufAlloc))
		}
		c.in = append(c.in, payload...)
	case opShutdown:
		c.peerShut |= h.flags
		if c.peerShut == shutBoth {
			if len(c.in) == 0 {
				c.send(opReset, 0, nil)
			}
			c.remove()
		}
	case opCreditRequest:
		c.send(opCreditUpdate, 0, nil)
	case opCreditUpdate:
	default:
		c.g.t.Errorf("guest: unexpected %+v", h)
	}
}

func (c *guestConn) remove() {
	c.state = dead
	delete(c.g.conns, c.ports)
}

func (c *guestConn) Read(p []byte) (int, error) {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	for len(c.in) == 0 && c.err == nil && c.peerShut&shutSend == 0 && !c.closed {
		c.g.wake.Wait()
	}
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case c.err != nil:
		return 0, c.err
	case len(c.in) == 0:
		return 0, io.EOF
	}
	n := copy(p, c.in)
	c.in = c.in[n:]
	c.fwdCnt += uint32(n)
	if untold := c.fwdCnt - c.lastFwd; c.state == open && (c.bufAlloc-untold < maxPayload || len(c.in) == 0) {
		c.send(opCreditUpdate, 0, nil)
	}
	return n, nil
}

// room is the credit as Linux sees it: no more than its own buffer size.
func (c *guestConn) room() int {
	return max(0, int(min(c.peerAlloc, c.bufAlloc))-int(c.txCnt-c.peerFwd))
}

func (c *guestConn) Write(p []byte) (n int, err error) {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	for len(p) > 0 {
		for c.state == open && !c.closed && c.peerShut&shutReceive == 0 && (c.room() == 0 || len(c.g.queue) > 0) {
			c.g.wake.Wait()
		}
		switch {
		case c.closed:
			return n, net.ErrClosed
		case c.err != nil:
			return n, c.err
		case c.state != open || c.shut&shutSend != 0 || c.peerShut&shutReceive != 0:
			return n, syscall.EPIPE
		}
		k := min(len(p), c.room(), maxPayload)
		c.txCnt += uint32(k)
		c.send(opRW, 0, append([]byte(nil), p[:k]...))
		n, p = n+k, p[k:]
	}
	return n, nil
}

func (c *guestConn) shutdown(how uint32) {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	c.shut |= how
	c.send(opShutdown, c.shut, nil)
}

func (c *guestConn) CloseWrite() error { c.shutdown(shutSend); return nil }

func (c *guestConn) Close() error {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	c.g.wake.Broadcast()
	switch {
	case c.err != nil:
		c.remove()
	case c.peerShut == shutBoth:
		c.send(opReset, 0, nil)
	default:
		c.shut = shutBoth
		c.send(opShutdown, shutBoth, nil)
	}
	return nil
}

func (c *guestConn) LocalAddr() net.Addr              { return Addr{3, c.ports.guest} }
func (c *guestConn) RemoteAddr() net.Addr             { return Addr{HostCID, c.ports.host} }
func (c *guestConn) SetDeadline(time.Time) error      { return nil }
func (c *guestConn) SetReadDeadline(time.Time) error  { return nil }
func (c *guestConn) SetWriteDeadline(time.Time) error { return nil }

// pair connects the host with the guest.
func (g *guest) pair(t testing.TB) (*Conn, *guestConn) {
	t.Helper()
	l := g.listen(1024)
	c, err := g.dev.Dial(t.Context(), 1024)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*Conn), <-l
}
