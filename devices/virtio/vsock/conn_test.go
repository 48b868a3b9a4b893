package vsock

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

func TestNettestDial(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		g := newGuest(t, Config{})
		h, c := g.pair(t)
		return h, c, func() { g.dev.Close(); h.Close(); c.Close() }, nil
	})
}

func TestNettestAccept(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		g := newGuest(t, Config{Buffer: 8 << 10})
		l, err := g.dev.Listen(5000)
		if err != nil {
			return nil, nil, nil, err
		}
		c, err := g.dial(5000)
		if err != nil {
			return nil, nil, nil, err
		}
		h, err := l.Accept()
		return h, c, func() { g.dev.Close(); h.Close(); c.Close() }, err
	})
}

func TestGuestSendsAndCloses(t *testing.T) {
	g := newGuest(t, Config{})
	h, c := g.pair(t)
	want := make([]byte, 3<<20)
	rand.New(rand.NewSource(1)).Read(want)
	go func() {
		c.Write(want)
		c.Close()
	}()
	got, err := io.ReadAll(h)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read %d bytes, %v; want %d", len(got), err, len(want))
	}
	if _, err := h.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write to a closed end: %v, want EPIPE", err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if err := h.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
}

func TestAddresses(t *testing.T) {
	g := newGuest(t, Config{CID: 3})
	h, c := g.pair(t)
	local, remote := h.LocalAddr().(Addr), h.RemoteAddr().(Addr)
	if local != (Addr{HostCID, c.ports.host}) || remote != (Addr{3, 1024}) {
		t.Errorf("local %v, remote %v", local, remote)
	}
	if local.Network() != "vsock" || remote.String() != "3:1024" {
		t.Errorf("%s %s", local.Network(), remote)
	}
}

func TestDialRefused(t *testing.T) {
	g := newGuest(t, Config{})
	_, err := g.dev.Dial(t.Context(), 99)
	var op *net.OpError
	if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &op) || op.Addr != (Addr{3, 99}) {
		t.Errorf("got %v, want ECONNREFUSED to 3:99", err)
	}
	if n := g.dev.Stats().Conns; n != 0 {
		t.Errorf("%d connections remain", n)
	}
}

func TestGuestDialRefused(t *testing.T) {
	g := newGuest(t, Config{})
	if _, err := g.dial(99); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}

func TestDialWaitsForDriver(t *testing.T) {
	r := newRig(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	go func() {
		_, err := r.dev.Dial(ctx, 1)
		errs <- err
	}()
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}

	conns := make(chan net.Conn)
	go func() {
		c, err := r.dev.Dial(t.Context(), 1)
		if err != nil {
			t.Error(err)
		}
		conns <- c
	}()
	r.start(t, ringFeatures, 8)
	req := r.await(t, opRequest)
	r.send(hdr(opResponse, 1, req.srcPort), nil)
	<-conns
}

// await waits for an RX packet, which must have op.
func (r *rig) await(t testing.TB, op uint16) header {
	t.Helper()
	for {
		if h, _, ok := r.recv(); ok {
			if h.op != op {
				t.Fatalf("packet %+v, want op %d", h, op)
			}
			return h
		}
		if err := r.irq.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDialCancelled(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 8)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	go func() {
		_, err := r.dev.Dial(ctx, 1)
		errs <- err
	}()
	req := r.await(t, opRequest)
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	if h, _ := r.want(t, opReset); h.srcPort != req.srcPort || h.dstPort != 1 {
		t.Errorf("RST %+v for %+v", h, req)
	}
	// A late answer is answered, too.
	r.send(hdr(opResponse, 1, req.srcPort), nil)
	r.want(t, opReset)
	r.wantNone(t)
}

func TestDialCancelledBeforeSent(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := r.dev.Dial(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
	r.addRX(4)
	r.wantNone(t)
}

// open connects host port and guest port by hand.
func (r *rig) open(t testing.TB, guestPort uint32) *Conn {
	t.Helper()
	r.dev.mu.Lock()
	l := r.dev.listeners[5000]
	r.dev.mu.Unlock()
	if l == nil {
		nl, err := r.dev.Listen(5000)
		if err != nil {
			t.Fatal(err)
		}
		l = nl.(*listener)
	}
	r.send(hdr(opRequest, guestPort, 5000), nil)
	r.want(t, opResponse)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c.(*Conn)
}

func TestHalfCloseByHost(t *testing.T) {
	g := newGuest(t, Config{})
	h, c := g.pair(t)
	go func() {
		h.Write([]byte("request"))
		h.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if string(got) != "request" || err != nil {
		t.Fatalf("guest read %q, %v", got, err)
	}
	if _, err := h.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write after CloseWrite: %v", err)
	}
	go func() {
		c.Write([]byte("answer"))
		c.Close()
	}()
	got, err = io.ReadAll(h)
	if string(got) != "answer" || err != nil {
		t.Fatalf("host read %q, %v", got, err)
	}
}

func TestHalfCloseByGuest(t *testing.T) {
	g := newGuest(t, Config{})
	h, c := g.pair(t)
	c.Write([]byte("request"))
	c.CloseWrite()
	got, err := io.ReadAll(h)
	if string(got) != "request" || err != nil {
		t.Fatalf("host read %q, %v", got, err)
	}
	if _, err := h.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	h.Close()
	got, err = io.ReadAll(c)
	if string(got) != "answer" || err != nil {
		t.Fatalf("guest read %q, %v", got, err)
	}
}

func TestCloseRead(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 8)
	c := r.open(t, 1)
	r.send(hdr(opRW, 1, 5000), []byte("unread"))
	if err := c.CloseRead(); err != nil {
		t.Fatal(err)
	}
	if h, _ := r.want(t, opShutdown); h.flags != shutReceive {
		t.Errorf("flags %d", h.flags)
	}
	if _, err := c.Read(make([]byte, 9)); err != io.EOF {
		t.Errorf("got %v, want EOF", err)
	}
	r.send(hdr(opRW, 1, 5000), []byte("under way"))
	r.wantNone(t)
	if d := r.dev.Stats().Dropped; d != 15 {
		t.Errorf("%d bytes dropped, want 15", d)
	}
	c.CloseWrite()
	if h, _ := r.want(t, opShutdown); h.flags != shutBoth {
		t.Errorf("flags %d", h.flags)
	}
	r.send(hdr(opReset, 1, 5000), nil)
	if _, err := c.Read(make([]byte, 9)); err != io.EOF {
		t.Errorf("after an orderly end: %v, want EOF", err)
	}
}

func TestReset(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 8)
	c := r.open(t, 1)
	r.send(hdr(opRW, 1, 5000), []byte("last words"))
	r.send(hdr(opReset, 1, 5000), nil)
	b := make([]byte, 99)
	if n, err := c.Read(b); string(b[:n]) != "last words" || err != nil {
		t.Errorf("got %q, %v", b[:n], err)
	}
	if _, err := c.Read(b); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v, want ECONNRESET", err)
	}
	if _, err := c.Write(b); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("write: %v, want ECONNRESET", err)
	}
	r.wantNone(t)
}

func TestCloseWaitsForGuestThenResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		r.start(t, ringFeatures, 8)
		c := r.open(t, 1)
		c.Close()
		if h, _ := r.want(t, opShutdown); h.flags != shutBoth {
			t.Errorf("flags %d", h.flags)
		}
		time.Sleep(closeTimeout - time.Millisecond)
		synctest.Wait()
		r.wantNone(t)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		r.want(t, opReset)
		if n := r.dev.Stats().Conns; n != 0 {
			t.Errorf("%d connections remain", n)
		}
	})
}

func TestCloseIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		r.start(t, ringFeatures, 8)
		c := r.open(t, 1)
		c.Close()
		r.want(t, opShutdown)
		r.send(hdr(opReset, 1, 5000), nil)
		time.Sleep(2 * closeTimeout)
		synctest.Wait()
		r.wantNone(t)
		if n := r.dev.Stats().Conns; n != 0 {
			t.Errorf("%d connections remain", n)
		}
	})
}

func TestDeadlines(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 1)
	c := r.open(t, 1)
	r.irq.Wait(t.Context())
	for _, d := range []time.Duration{-time.Second, time.Millisecond} {
		c.SetReadDeadline(time.Now().Add(d))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
	}
	// The one buffer takes the first packet of the Write, which then waits.
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, err := c.Write(make([]byte, 10000))
		if n != rxBufferSize-headerSize || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("wrote %d bytes, %v", n, err)
		}
	}()
	if err := r.irq.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.SetWriteDeadline(time.Now().Add(time.Millisecond))
	<-done
	if n, err := c.Write([]byte("x")); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("wrote %d bytes, %v after the deadline", n, err)
	}
	c.SetDeadline(time.Time{})
	r.send(hdr(opRW, 1, 5000), []byte("x"))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("read after the deadline was lifted: %v", err)
	}
	r.recv()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Errorf("write after the deadline was lifted: %v", err)
	}
}

// A guest whose buffers are smaller than ours limits itself to their size: it
// would wait for ever if we only spoke up at half of our own.
func TestCreditUpdateForSmallGuestBuffers(t *testing.T) {
	g := newGuest(t, Config{Buffer: 1 << 20})
	g.bufAlloc = 8 << 10
	h, c := g.pair(t)
	want := make([]byte, 300<<10)
	rand.New(rand.NewSource(2)).Read(want)
	go func() {
		c.Write(want)
		c.Close()
	}()
	got, err := io.ReadAll(h)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read %d bytes, %v; want %d", len(got), err, len(want))
	}
}

// The guest is told of freed space in batches.
func TestCreditUpdatesAreBatched(t *testing.T) {
	r := newRig(t, Config{Buffer: 64 << 10})
	r.start(t, ringFeatures, 8)
	c := r.open(t, 1)
	updates := 0
	for range 64 {
		r.send(hdr(opRW, 1, 5000), make([]byte, 1<<10))
		if _, err := io.ReadFull(c, make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
		if h, _, ok := r.recv(); ok {
			if updates++; h.op != opCreditUpdate {
				t.Fatalf("got %+v", h)
			}
		}
	}
	if updates != 2 {
		t.Errorf("%d credit updates for 64 KiB of a 64 KiB buffer, want 2", updates)
	}
}

// Free space that was not worth telling is, once the guest's buffers shrink.
func TestCreditUpdateWhenGuestBuffersShrink(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 8)
	c := r.open(t, 1)
	r.send(hdr(opRW, 1, 5000), make([]byte, 10000))
	io.ReadFull(c, make([]byte, 10000))
	r.wantNone(t)
	u := hdr(opCreditUpdate, 1, 5000)
	u.bufAlloc = 16 << 10
	r.send(u, nil)
	if h, _ := r.want(t, opCreditUpdate); h.fwdCnt != 10000 {
		t.Errorf("got %+v", h)
	}
}

func TestCreditRequest(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 8)
	c := r.open(t, 1)
	r.send(hdr(opRW, 1, 5000), []byte("12345"))
	c.Read(make([]byte, 3))
	r.send(hdr(opCreditRequest, 1, 5000), nil)
	if h, _ := r.want(t, opCreditUpdate); h.fwdCnt != 3 || h.bufAlloc != 256<<10 {
		t.Errorf("got %+v", h)
	}
}

func TestWriteWaitsForCredit(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 8)
	l, _ := r.dev.Listen(5000)
	req := hdr(opRequest, 1, 5000)
	req.bufAlloc = 10
	r.send(req, nil)
	r.want(t, opResponse)
	c, _ := l.Accept()
	done := make(chan error)
	go func() {
		_, err := c.Write([]byte("0123456789abcdef"))
		done <- err
	}()
	var got []byte
	for _, fwd := range []uint32{0, 4, 10} {
		u := hdr(opCreditUpdate, 1, 5000)
		u.bufAlloc, u.fwdCnt = 10, fwd
		r.send(u, nil)
		for {
			_, p, ok := r.recv()
			if ok {
				got = append(got, p...)
				break
			}
			r.irq.Wait(t.Context())
		}
		if len(got) > 10+int(fwd) {
			t.Fatalf("%d bytes for %d forwarded", len(got), fwd)
		}
	}
	if err := <-done; err != nil || string(got) != "0123456789abcdef" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestDeviceClose(t *testing.T) {
	g := newGuest(t, Config{})
	h, _ := g.pair(t)
	l, _ := g.dev.Listen(5000)
	errs := make(chan error, 4)
	go func() { _, err := h.Read(make([]byte, 1)); errs <- err }()
	go func() {
		_, err := h.Write(make([]byte, 1<<20)) // more than the credit
		errs <- err
	}()
	go func() { _, err := l.Accept(); errs <- err }()
	go func() {
		g.mu.Lock() // no guest answers
		defer g.mu.Unlock()
		_, err := g.dev.Dial(t.Context(), 7)
		errs <- err
	}()
	// Whatever has begun by now, all of it ends.
	g.dev.Close()
	g.dev.Close()
	for range 4 {
		if err := <-errs; !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	}
	if _, err := g.dev.Dial(t.Context(), 7); !errors.Is(err, net.ErrClosed) {
		t.Errorf("dial: %v", err)
	}
	if _, err := g.dev.Listen(7); !errors.Is(err, net.ErrClosed) {
		t.Errorf("listen: %v", err)
	}
}

func TestListen(t *testing.T) {
	r := newRig(t, Config{Backlog: 2})
	r.start(t, ringFeatures, 8)
	l, err := r.dev.Listen(5000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.dev.Listen(5000); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second listener: %v", err)
	}
	if _, err := r.dev.Listen(anyPort); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("any port: %v", err)
	}
	for port := range uint32(3) {
		r.send(hdr(opRequest, 1+port, 5000), nil)
	}
	r.want(t, opResponse)
	r.want(t, opResponse)
	r.want(t, opReset)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r.want(t, opReset)
	r.want(t, opReset)
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept: %v", err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if _, err := r.dev.Listen(5000); err != nil {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{
		{CID: 2}, {CID: 1<<32 - 1}, {MaxConns: -1}, {Backlog: -1}, {Buffer: 100}, {Buffer: 1 << 30},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
	d, err := New(Config{CID: 0x123456789 & 0xffffff})
	if err != nil {
		t.Fatal(err)
	}
	p := []byte{9, 9, 9, 9, 9}
	d.ReadConfig(2, p)
	if !bytes.Equal(p, []byte{0x45, 0, 0, 0, 0}) {
		t.Errorf("config %x", p)
	}
	d.ReadConfig(1<<40, p)
	if !bytes.Equal(p, make([]byte, 5)) {
		t.Errorf("config beyond its end %x", p)
	}
}

// The search for a host port starts over at its end, and steps over those of
// live connections and listeners.
func TestHostPortsDoNotCollide(t *testing.T) {
	g := newGuest(t, Config{})
	g.dev.nextPort = lastPort
	seen := make(map[uint32]bool)
	if _, err := g.dev.Listen(firstPort + 1); err != nil {
		t.Fatal(err)
	}
	seen[firstPort+1] = true
	for range 4 {
		c, _ := g.pair(t)
		if p := c.ports.host; seen[p] || p < firstPort || p > lastPort {
			t.Errorf("host port %d", p)
		}
		seen[c.ports.host] = true
		g.dev.mu.Lock()
		g.dev.nextPort = lastPort
		g.dev.mu.Unlock()
	}
}

func TestTooManyConns(t *testing.T) {
	g := newGuest(t, Config{MaxConns: 1})
	g.pair(t)
	if _, err := g.dev.Dial(t.Context(), 1024); !errors.Is(err, ErrTooManyConns) {
		t.Errorf("got %v", err)
	}
}
