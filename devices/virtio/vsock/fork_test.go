package vsock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand"
	"net"
	"reflect"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// Quiesced again and again in the middle of traffic, the device does nothing
// in between and loses nothing.
func TestQuiesceDuringTraffic(t *testing.T) {
	g := newGuest(t, Config{})
	h, c := g.pair(t)
	stop := make(chan struct{})
	var moving sync.WaitGroup
	move := func(to, from net.Conn, seed int64) {
		moving.Go(func() { sendUntil(t, stop, to, seed) })
		moving.Go(func() { expect(t, from, seed) })
	}
	move(h, c, 1)
	move(c, h, 2)
	for range 20 {
		g.mu.Lock() // stop the vCPUs
		g.dev.Quiesce()
		g.dev.Quiesce()
		before, irqs := g.drv.Mem.Fork(), g.irq.Count()
		g.dev.Save()
		if !bytes.Equal(before.RAM(), g.drv.Mem.RAM()) || g.irq.Count() != irqs {
			t.Error("guest memory or interrupt touched while quiet")
		}
		sent := g.dev.Stats().BytesToGuest
		g.dev.Resume()
		g.dev.Resume()
		g.mu.Unlock()
		for g.dev.Stats().BytesToGuest == sent {
			runtime.Gosched() // a capture always finds something under way
		}
	}
	close(stop)
	moving.Wait()
}

// sendUntil sends random bytes until stop is closed.
func sendUntil(t *testing.T, stop chan struct{}, c net.Conn, seed int64) {
	rnd := rand.New(rand.NewSource(seed))
	p := make([]byte, 20000)
	for {
		select {
		case <-stop:
			c.(interface{ CloseWrite() error }).CloseWrite()
			return
		default:
		}
		rnd.Read(p)
		if _, err := c.Write(p); err != nil {
			t.Error(err)
			return
		}
	}
}

// expect reads what sendUntil sends.
func expect(t *testing.T, c net.Conn, seed int64) {
	rnd := rand.New(rand.NewSource(seed))
	got, want := make([]byte, 20000), make([]byte, 20000)
	for {
		n, err := io.ReadFull(c, got)
		if err == io.EOF {
			return
		}
		if rnd.Read(want); err != nil || !bytes.Equal(got, want) {
			t.Errorf("after %d bytes: data changed, %v", n, err)
			return
		}
	}
}

func TestWritesWaitWhileQuiet(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 8)
	c := r.open(t, 1)
	r.send(hdr(opRW, 1, 5000), []byte("here"))
	r.dev.Quiesce()
	r.send(hdr(opRW, 1, 5000), []byte("there"))
	c.SetWriteDeadline(time.Now().Add(time.Millisecond))
	if n, err := c.Write([]byte("x")); n != 0 || err == nil {
		t.Errorf("wrote %d bytes, %v while quiet", n, err)
	}
	b := make([]byte, 99)
	if n, _ := c.Read(b); string(b[:n]) != "here" {
		t.Errorf("read %q", b[:n])
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	r.wantNone(t)
	r.dev.Resume()
	r.want(t, opShutdown)
}

// A fork in the middle of traffic: the parent goes on, in the child the old
// connections die and new ones work at once.
func TestForkDuringTraffic(t *testing.T) {
	for _, rxFirst := range []bool{false, true} {
		g := newGuest(t, Config{})
		h, c := g.pair(t)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { // a parent that never stops
			for ctx.Err() == nil {
				h.Write(make([]byte, 10000))
			}
		}()
		go io.Copy(io.Discard, c)

		for range 5 {
			g.mu.Lock()
			g.dev.Quiesce()
			child := g.fork()
			child.rxFirst = rxFirst
			g.dev.Resume()
			g.mu.Unlock()
			checkChild(t, child)
		}
		cancel()
		h.Close()
		if g.events != 0 {
			t.Errorf("%d transport resets in the parent", g.events)
		}
	}
}

// checkChild resumes a child and checks that its connections are new.
func checkChild(t *testing.T, g *guest) {
	t.Helper()
	var old []*guestConn
	for _, c := range g.conns {
		old = append(old, c)
	}
	g.irq.Trigger() // the capture holds interrupts that were not served
	g.run()
	g.dev.Resume()
	h, err := g.dev.Dial(t.Context(), 1024)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range old {
		c.in = nil
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("an old connection lives in the child")
		}
		c.Close()
	}
	l := g.listeners[1024]
	c := <-l
	go func() {
		io.Copy(c, c)
		c.Close()
	}()
	want := make([]byte, 100000)
	go func() {
		h.Write(want)
		h.(*Conn).CloseWrite()
	}()
	if got, err := io.ReadAll(h); err != nil || !bytes.Equal(got, want) {
		t.Errorf("echo of %d bytes, %v", len(got), err)
	}
	if g.events != 1 {
		t.Errorf("%d transport resets, want 1", g.events)
	}
}

// restored makes a quiet child of a rig with one open connection, guest port 1
// to host port 5000.
func restored(t *testing.T) (parent, child *rig) {
	t.Helper()
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 8)
	r.open(t, 1)
	r.dev.Quiesce()
	return r, r.fork(t)
}

// dialLater starts a Dial whose result comes later.
func (r *rig) dialLater(t *testing.T, port uint32) <-chan error {
	errs := make(chan error, 1)
	go func() {
		_, err := r.dev.Dial(t.Context(), port)
		errs <- err
	}()
	return errs
}

func TestResetBeforeAnythingElse(t *testing.T) {
	_, r := restored(t)
	r.send(hdr(opRequest, 2, 5000), nil) // in the ring at the capture
	if _, _, ok := r.takeEvent(); ok {
		t.Fatal("event while quiet")
	}
	l, err := r.dev.Listen(5000)
	if err != nil {
		t.Fatal(err)
	}
	r.dev.Resume()
	dialed := r.dialLater(t, 7)
	id, b, ok := r.takeEvent()
	if !ok || id != eventTransportReset {
		t.Fatalf("event %d, %v", id, ok)
	}
	r.dev.Resume()
	if _, _, ok := r.takeEvent(); ok {
		t.Error("a second event")
	}
	r.wantNone(t) // until the driver has handled the event

	r.offerEvent(b)
	if h, _ := r.want(t, opReset); h.dstPort != 1 || h.srcPort != 5000 {
		t.Errorf("got %+v, want RST for the old connection", h)
	}
	if h, _ := r.want(t, opResponse); h.dstPort != 2 {
		t.Errorf("got %+v", h)
	}
	if _, err := l.Accept(); err != nil {
		t.Error(err)
	}
	req := r.await(t, opRequest)
	r.send(hdr(opResponse, 7, req.srcPort), nil)
	if err := <-dialed; err != nil {
		t.Error(err)
	}
	// Whatever the guest still says to an old connection is answered by RST.
	r.send(hdr(opRW, 1, 5000), []byte("anybody?"))
	r.want(t, opReset)
}

func TestResetWaitsForEventBuffer(t *testing.T) {
	r := newRig(t, Config{})
	if err := r.drv.Start(ringFeatures); err != nil {
		t.Fatal(err)
	}
	r.dev.Quiesce()
	r.rx, r.events, r.txBusy = map[uint16]virtiotest.Buffer{}, map[uint16]virtiotest.Buffer{}, map[uint16]slot{}
	c := r.fork(t)
	c.dev.Resume()
	dialed := c.dialLater(t, 7)
	c.addRX(4)
	c.wantNone(t)
	c.addEvents(1)
	_, b, ok := c.takeEvent()
	if !ok {
		t.Fatal("no event")
	}
	c.wantNone(t)
	c.offerEvent(b)
	h := c.await(t, opRequest)
	c.txFree = append(c.txFree, slot{c.drv.Mem.In(headerSize), c.drv.Mem.In(100)})
	c.send(hdr(opReset, 7, h.srcPort), nil)
	if err := <-dialed; !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
}

// Without VIRTIO_F_EVENT_IDX, and with a driver that left the event queue out.
func TestRestoreWithOtherDrivers(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, 1<<32, 8)
	r.dev.Quiesce()
	c := r.fork(t)
	c.dev.Resume()
	_, b, ok := c.takeEvent()
	if !ok {
		t.Fatal("no event")
	}
	c.offerEvent(b)
	c.send(hdr(opRequest, 1, 9), nil)
	c.want(t, opReset)

	r = newRig(t, Config{})
	if err := r.drv.Start(ringFeatures, queueRX, queueTX); err != nil {
		t.Fatal(err)
	}
	r.rx, r.txBusy = map[uint16]virtiotest.Buffer{}, map[uint16]slot{}
	r.addRX(2)
	r.dev.Quiesce()
	c = r.fork(t)
	c.dev.Resume()
	c.txFree = append(c.txFree, slot{c.drv.Mem.In(headerSize), c.drv.Mem.In(100)})
	c.send(hdr(opRequest, 1, 9), nil)
	c.want(t, opReset)
}

// A child captured before its driver has handled the reset hands on what it
// owes: its own child tells the driver, too, and resets the old connections.
func TestForkOfForkBeforeReset(t *testing.T) {
	_, child := restored(t)
	child.dev.Resume()
	child.dev.Quiesce()
	grandchild := child.fork(t)
	grandchild.dev.Resume()
	for range 2 {
		_, b, ok := grandchild.takeEvent()
		if !ok {
			t.Fatal("no event")
		}
		grandchild.offerEvent(b)
	}
	if h, _ := grandchild.want(t, opReset); h.dstPort != 1 {
		t.Errorf("got %+v", h)
	}
	grandchild.wantNone(t)
}

// A restored device whose driver starts anew has nothing to reset.
func TestRestoreThenDriverReset(t *testing.T) {
	_, r := restored(t)
	r.dev.Resume()
	r.start(t, ringFeatures, 8)
	if _, _, ok := r.takeEvent(); ok {
		t.Error("event for a fresh driver")
	}
	r.wantNone(t)
	r.open(t, 1)
}

func TestRestoreInactive(t *testing.T) {
	r := newRig(t, Config{})
	r.dev.Quiesce()
	c := r.fork(t)
	c.start(t, ringFeatures, 8)
	c.open(t, 1)
	if _, _, ok := c.takeEvent(); ok {
		t.Error("event for a fresh driver")
	}
}

func TestStateIsPlain(t *testing.T) {
	r, _ := restored(t)
	want := r.dev.Save()
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got State
	if err := json.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	d, err := Restore(Config{}, got)
	if err != nil {
		t.Fatal(err)
	}
	if again := d.Save(); !reflect.DeepEqual(again, want) {
		t.Errorf("restored to %+v, want %+v", again, want)
	}
}

func TestRestoreChecksState(t *testing.T) {
	if _, err := Restore(Config{MaxConns: 1}, State{Active: true, Resets: make([]Reset, 1000)}); err == nil {
		t.Error("1000 resets for 1 connection: no error")
	}
	if _, err := Restore(Config{CID: 1}, State{}); err == nil {
		t.Error("reserved CID: no error")
	}
	d, err := Restore(Config{}, State{NextPort: 80})
	if err != nil || d.nextPort != firstPort {
		t.Errorf("next port %d, %v", d.nextPort, err)
	}
}

// The driver resets the device while connections are busy both ways.
func TestDriverResetDuringTraffic(t *testing.T) {
	g := newGuest(t, Config{})
	l, _ := g.dev.Listen(5000)
	h, c := g.pair(t)
	errs := make(chan error, 2)
	go func() {
		for {
			if _, err := h.Write(make([]byte, 10000)); err != nil {
				errs <- err
				return
			}
		}
	}()
	go func() { _, err := io.Copy(io.Discard, h); errs <- err }()
	go func() {
		for {
			if _, err := c.Write(make([]byte, 10000)); err != nil {
				return
			}
		}
	}()
	if _, err := io.ReadFull(c, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	for _, c := range g.conns {
		c.err, c.state = syscall.ECONNRESET, dead
	}
	g.conns = make(map[ports]*guestConn)
	g.queue = nil
	for _, s := range g.txBusy {
		g.txFree = append(g.txFree, s)
	}
	g.start(t, ringFeatures, 64)
	g.wake.Broadcast()
	g.mu.Unlock()
	for range 2 {
		if err := <-errs; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("got %v, want ECONNRESET", err)
		}
	}
	if _, err := g.dial(5000); err != nil {
		t.Errorf("the listener died: %v", err)
	}
	if _, err := l.Accept(); err != nil {
		t.Error(err)
	}
}
