package vsock

import (
	"io"
	"testing"
)

// BenchmarkToGuest and the others include the work of a guest written in Go,
// which copies each packet twice more.
func BenchmarkToGuest(b *testing.B) {
	g := newGuest(b, Config{})
	h, c := g.pair(b)
	go io.Copy(io.Discard, struct{ io.Reader }{c})
	p := make([]byte, 64<<10)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if _, err := h.Write(p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFromGuest(b *testing.B) {
	g := newGuest(b, Config{})
	h, c := g.pair(b)
	go func() {
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}()
	p := make([]byte, 64<<10)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if _, err := io.ReadFull(h, p); err != nil {
			b.Fatal(err)
		}
	}
	h.Close()
}

func BenchmarkRoundTrip(b *testing.B) {
	g := newGuest(b, Config{})
	h, c := g.pair(b)
	go io.Copy(c, struct{ io.Reader }{c})
	p := make([]byte, 64)
	for b.Loop() {
		if _, err := h.Write(p); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(h, p); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDeviceToGuest and BenchmarkDeviceFromGuest are the device alone: a
// packet of the size that Linux offers buffers for, and one of the largest
// size that Linux sends.
func BenchmarkDeviceToGuest(b *testing.B) {
	r := newRig(b, Config{})
	r.start(b, ringFeatures, 8)
	r.dev.Listen(5000)
	r.send(hdr(opRequest, 1, 5000), nil)
	r.want(b, opResponse)
	c, _ := r.dev.listeners[5000].Accept()
	p := make([]byte, rxBufferSize-headerSize)
	b.SetBytes(int64(len(p)))
	u := hdr(opCreditUpdate, 1, 5000)
	for b.Loop() {
		if _, err := c.Write(p); err != nil {
			b.Fatal(err)
		}
		r.recv()
		u.fwdCnt += uint32(len(p))
		r.send(u, nil)
	}
}

func BenchmarkDeviceFromGuest(b *testing.B) {
	r := newRig(b, Config{})
	r.start(b, ringFeatures, 8)
	r.dev.Listen(5000)
	r.send(hdr(opRequest, 1, 5000), nil)
	r.want(b, opResponse)
	c, _ := r.dev.listeners[5000].Accept()
	p := make([]byte, maxPayload)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		r.send(hdr(opRW, 1, 5000), p)
		if _, err := io.ReadFull(c, p); err != nil {
			b.Fatal(err)
		}
		r.recv()
	}
}
