package vsock

import (
	"context"
	"testing"
	"time"
)

// lazyRig is a device with one connection of the host's, whose interrupts for
// TX packets wait for d.
func lazyRig(t *testing.T, d time.Duration) (*rig, *Conn) {
	t.Helper()
	r := newRig(t, Config{})
	r.dev.lazyFor = d
	r.start(t, ringFeatures, 32)
	l, err := r.dev.Listen(5000)
	if err != nil {
		t.Fatal(err)
	}
	r.send(hdr(opRequest, 1, 5000), nil)
	r.want(t, opResponse)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	r.drv.AckInterrupt()
	return r, c.(*Conn)
}

// interrupts is how many interrupts f causes.
func (r *rig) interrupts(f func()) int {
	before := r.irq.Count()
	f()
	return r.irq.Count() - before
}

// TestInterruptForTXWaits checks that the driver hears of TX packets that were
// taken with the next RX packet, after a number of them, or after a while.
func TestInterruptForTXWaits(t *testing.T) {
	r, c := lazyRig(t, time.Hour)
	send := func() { r.send(hdr(opRW, 1, 5000), []byte("data")) }
	if n := r.interrupts(func() { send(); send() }); n != 0 {
		t.Errorf("%d interrupts for two TX packets", n)
	}
	n := r.interrupts(func() {
		if _, err := c.Write([]byte("reply")); err != nil {
			t.Fatal(err)
		}
	})
	if n != 1 {
		t.Errorf("%d interrupts for an RX packet", n)
	}
	r.want(t, opRW)
	for i := range 3 * maxLazy {
		want := 0
		if i%maxLazy == maxLazy-1 {
			want = 1
		}
		if n := r.interrupts(send); n != want {
			t.Fatalf("TX packet %d: %d interrupts, want %d", i+1, n, want)
		}
	}

	r, _ = lazyRig(t, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_ = r.irq.Wait(ctx) // that of the connection
	for i := range 3 {
		r.send(hdr(opRW, 1, 5000), []byte("data"))
		if err := r.irq.Wait(ctx); err != nil {
			t.Fatalf("TX packet %d: no interrupt after a while: %v", i+1, err)
		}
	}
}

// TestCaptureLosesNoLazyInterrupt checks that an interrupt which waits is
// raised before a capture, in which the device would forget it.
func TestCaptureLosesNoLazyInterrupt(t *testing.T) {
	r, _ := lazyRig(t, time.Hour)
	r.send(hdr(opRW, 1, 5000), []byte("data"))
	if n := r.interrupts(r.mmio.Quiesce); n != 1 {
		t.Errorf("%d interrupts when the device is quieted, want the one that waited", n)
	}
	if n := r.interrupts(func() { r.mmio.Quiesce(); r.mmio.Resume() }); n != 0 {
		t.Errorf("%d interrupts more", n)
	}
	// One that a reset of the device overtakes is for nobody.
	r.send(hdr(opRW, 1, 5000), []byte("data"))
	if n := r.interrupts(func() { r.mmio.Reset(); r.dev.waited(); r.mmio.Quiesce() }); n != 0 {
		t.Errorf("%d interrupts after a reset", n)
	}
}
