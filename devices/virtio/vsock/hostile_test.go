package vsock

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

func TestStrangePackets(t *testing.T) {
	with := func(h header, f func(*header)) header { f(&h); return h }
	for name, p := range map[string]struct {
		h     header
		reply uint16 // or 0
	}{
		"data for nobody":    {hdr(opRW, 9, 9), opReset},
		"response to nobody": {hdr(opResponse, 9, 9), opReset},
		"shutdown of nobody": {hdr(opShutdown, 9, 9), opReset},
		"reset of nobody":    {hdr(opReset, 9, 9), 0},
		"unknown op":         {hdr(99, 9, 9), opReset},
		"other host":         {with(hdr(opRequest, 9, 5000), func(h *header) { h.dstCID = 7 }), opReset},
		"seqpacket":          {with(hdr(opRequest, 9, 5000), func(h *header) { h.typ = 2 }), opReset},
		"other guest":        {with(hdr(opRequest, 9, 5000), func(h *header) { h.srcCID = 4 }), 0},
	} {
		r := newRig(t, Config{})
		r.start(t, ringFeatures, 8)
		c := r.open(t, 1)
		r.send(p.h, nil)
		got, _, ok := r.recv()
		if ok != (p.reply != 0) || got.op != p.reply {
			t.Errorf("%s: got %+v, want op %d", name, got, p.reply)
		}
		if ok && (got.srcCID != p.h.dstCID || got.dstPort != p.h.srcPort || got.srcPort != p.h.dstPort || got.typ != p.h.typ) {
			t.Errorf("%s: %+v does not answer %+v", name, got, p.h)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Errorf("%s: a connection died: %v", name, err)
		}
	}
}

// What breaks the protocol of a connection costs the guest that connection.
func TestViolations(t *testing.T) {
	for name, send := range map[string]func(*rig){
		"second request":      func(r *rig) { r.send(hdr(opRequest, 1, 5000), nil) },
		"unexpected response": func(r *rig) { r.send(hdr(opResponse, 1, 5000), nil) },
		"unknown op":          func(r *rig) { r.send(hdr(0, 1, 5000), nil) },
		"data beyond the credit": func(r *rig) {
			r.send(hdr(opRW, 1, 5000), make([]byte, 4<<10))
			r.send(hdr(opRW, 1, 5000), make([]byte, 1))
		},
		"data after the end": func(r *rig) {
			h := hdr(opShutdown, 1, 5000)
			h.flags = shutSend
			r.send(h, nil)
			r.send(hdr(opRW, 1, 5000), make([]byte, 1))
		},
	} {
		r := newRig(t, Config{Buffer: 4 << 10})
		r.start(t, ringFeatures, 8)
		c := r.open(t, 1)
		send(r)
		r.want(t, opReset)
		if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: write: %v, want ECONNRESET", name, err)
		}
		if s := r.dev.Stats(); s.Malformed != 1 || s.Conns != 0 || s.ResetsSent != 1 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestMalformedPackets(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 8)
	var b [headerSize]byte
	h := hdr(opRW, 1, 5000)
	h.len = 11
	h.encode(&b)
	r.sendRaw(b[:], make([]byte, 10)) // shorter than it says
	r.sendRaw(b[:20], nil)            // shorter than a header
	r.sendRaw(b[:20], b[20:43])
	r.wantNone(t)
	if s := r.dev.Stats(); s.Malformed != 3 || s.PacketsFromGuest != 0 {
		t.Errorf("%+v", s)
	}
	// A header in two pieces, with payload behind it, is fine.
	c := r.open(t, 1)
	h.len = 3
	h.encode(&b)
	r.sendRaw(b[:40], append(b[40:44:44], "abcdef"...))
	p := make([]byte, 9)
	if n, err := c.Read(p); string(p[:n]) != "abc" || err != nil {
		t.Errorf("read %q, %v", p[:n], err)
	}
}

// RX buffers that hold no packet are given back, not used and not waited for.
func TestUselessRXBuffers(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 0)
	r.offerRX(r.drv.Mem.In(headerSize - 1))
	r.offerRX(r.drv.Mem.In(rxBufferSize))
	r.offerRX(r.drv.Mem.In(headerSize))
	r.offerRX(r.drv.Mem.In(headerSize + 1))
	r.drv.Kick(queueRX)
	l, _ := r.dev.Listen(5000)
	r.send(hdr(opRequest, 1, 5000), nil)
	c, _ := l.Accept()
	if n, err := c.Write([]byte("x")); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for i, want := range []uint16{0, opResponse, 0, opRW} {
		if h, _, _, ok := r.take(); !ok || h.op != want {
			t.Errorf("buffer %d: %+v, want op %d", i, h, want)
		}
	}
}

// Section 5.10.6.1.2: without RX buffers only so many replies wait, and then
// TX does. Nothing is lost, and both go on once there are buffers.
func TestRepliesAreBounded(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 0)
	sent := 0
	for sent < 10*maxReplies && r.send(hdr(opRW, uint32(sent), 9), nil) {
		sent++
	}
	if sent < maxReplies || sent > maxReplies+32 {
		t.Errorf("%d packets consumed without RX buffers", sent)
	}
	r.dev.mu.Lock()
	if n := len(r.dev.replies); n != maxReplies {
		t.Errorf("%d replies wait", n)
	}
	r.dev.mu.Unlock()
	r.addRX(8)
	for i := range sent {
		if h := r.await(t, opReset); h.dstPort != uint32(i) {
			t.Fatalf("reply %d: %+v", i, h)
		}
	}
	r.reap()
	if len(r.txBusy) != 0 {
		t.Errorf("%d packets not consumed", len(r.txBusy))
	}
}

// TX goes on by itself once there is room for replies: no notification comes.
func TestStalledTXGoesOn(t *testing.T) {
	r := newRig(t, Config{})
	r.start(t, ringFeatures, 0)
	for r.send(hdr(opRW, 1, 9), nil) {
	}
	if len(r.txBusy) == 0 {
		t.Fatal("TX is not stalled")
	}
	r.addRX(64)
	for r.reap(); len(r.txBusy) > 0; r.reap() {
		if err := r.irq.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A guest that opens and ends connections without taking what it is told makes
// the device hold no more than it is configured to.
func TestConnsAreBounded(t *testing.T) {
	r := newRig(t, Config{MaxConns: 10, Backlog: 1000})
	r.start(t, ringFeatures, 0)
	if _, err := r.dev.Listen(5000); err != nil {
		t.Fatal(err)
	}
	end := hdr(opShutdown, 0, 5000)
	end.flags = shutBoth
	for port := range uint32(50) {
		r.send(hdr(opRequest, port, 5000), nil)
		end.srcPort = port
		r.send(end, nil)
		r.send(hdr(opCreditRequest, port, 5000), nil)
	}
	if n := r.dev.Stats().Conns; n != 10 {
		t.Errorf("%d connections, want 10", n)
	}
	r.addRX(8)
	for r.dev.Stats().Conns > 0 {
		r.await(t, opReset)
	}
}

func TestBrokenQueue(t *testing.T) {
	for _, queue := range []int{queueRX, queueTX} {
		r := newRig(t, Config{})
		r.start(t, ringFeatures, 8)
		c := r.open(t, 1)
		for range 20 {
			r.drv.Rings[queue].Offer(9999)
		}
		r.drv.Notify(queue)
		c.Write(make([]byte, 100000)) // until it hits the bad one
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("queue %d: %v, want ECONNRESET", queue, err)
		}
		if r.drv.Read(virtiotest.RegStatus)&virtiotest.StatusNeedsReset == 0 {
			t.Errorf("queue %d: driver is not asked for a reset", queue)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if _, err := r.dev.Dial(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("queue %d: dial: %v", queue, err)
		}
		cancel()
		r.dev.Quiesce()
		r.dev.Resume()
		r.start(t, ringFeatures, 8)
		r.open(t, 1)
	}
}

// FuzzPacket sends any packets: a byte for the length of the payload, a header,
// the payload, and again. Before each, up to three RX packets are taken.
func FuzzPacket(f *testing.F) {
	seed := func(hs ...header) {
		var in []byte
		for _, h := range hs {
			var b [headerSize]byte
			h.encode(&b)
			in = append(append(in, byte(h.len)), b[:]...)
			in = append(in, make([]byte, h.len)...)
		}
		f.Add(in)
	}
	data := hdr(opRW, 1, 5000)
	data.len = 99
	end := hdr(opShutdown, 1, 5000)
	end.flags = shutBoth
	seed(hdr(opRequest, 1, 5000), data, data, hdr(opCreditRequest, 1, 5000), end)
	seed(hdr(opRequest, 1, 5000), hdr(opReset, 1, 5000), hdr(opRequest, 1, 5000), hdr(opCreditUpdate, 1, 5000))
	seed(hdr(opResponse, 7, firstPort), data, hdr(99, 7, firstPort))
	f.Fuzz(func(t *testing.T, in []byte) {
		synctest.Test(t, func(t *testing.T) { fuzzPackets(t, in) })
	})
}

// The bubble makes a run depend on the input alone: time passes only when
// nothing else happens.
func fuzzPackets(t *testing.T, in []byte) {
	const maxConns, size = 4, 4 << 10
	r := newRig(t, Config{MaxConns: maxConns, Buffer: size})
	r.start(t, ringFeatures, 4)
	l, err := r.dev.Listen(5000)
	if err != nil {
		t.Fatal(err)
	}
	go func() { // a server that echoes a little, then closes
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serveFuzz(c)
		}
	}()
	go func() {
		if c, err := r.dev.Dial(t.Context(), 7); err == nil {
			serveFuzz(c)
		}
	}()
	for len(in) > headerSize && len(r.txFree) > 0 {
		n := min(int(in[0]), len(in)-1-headerSize)
		head := in[1:][:headerSize]
		// Most packets get past the first checks.
		if head[0]&0x80 == 0 {
			binary.LittleEndian.PutUint64(head, 3)
			binary.LittleEndian.PutUint64(head[8:], HostCID)
			binary.LittleEndian.PutUint16(head[28:], typeStream)
		}
		for range n % 4 {
			r.recv()
		}
		r.reap()
		r.sendRaw(head, in[1+headerSize:][:n])
		in = in[1+headerSize+n:]
		synctest.Wait()
	}
	r.dev.mu.Lock()
	if len(r.dev.conns) > maxConns || len(r.dev.replies) > maxReplies {
		t.Errorf("%d connections, %d replies", len(r.dev.conns), len(r.dev.replies))
	}
	for _, c := range r.dev.conns {
		if c.in.len() > size || len(c.in.b) > size {
			t.Errorf("%d bytes buffered in %d", c.in.len(), len(c.in.b))
		}
	}
	r.dev.mu.Unlock()
	r.dev.Close()
}

func serveFuzz(c net.Conn) {
	c.SetDeadline(time.Now().Add(time.Millisecond))
	b := make([]byte, 100)
	n, _ := c.Read(b)
	c.Write(b[:n])
	c.Close()
}
