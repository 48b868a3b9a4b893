package rng_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/forkvm/forkvm/devices/devtest"
	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/rng"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

func suite() devtest.Virtio[*rng.Device, rng.State] {
	return devtest.Virtio[*rng.Device, rng.State]{
		New:     func(testing.TB) *rng.Device { return rng.New(rng.Config{}) },
		Save:    (*rng.Device).Save,
		Restore: func(_ testing.TB, s rng.State) *rng.Device { return rng.Restore(rng.Config{}, s) },
		Request: devtest.Request{In: 64, Check: func(in []byte) error {
			if len(in) != 64 || bytes.Equal(in, make([]byte, 64)) {
				return errors.New("not 64 random bytes")
			}
			return nil
		}},
	}
}

func TestConformance(t *testing.T) { devtest.TestVirtio(t, suite()) }

// guest is a driver with a device that is live.
type guest struct {
	*virtiotest.Driver
	dev  *rng.Device
	irq  *virtiotest.Interrupt
	mmio *virtio.MMIO
}

func boot(t testing.TB) *guest {
	t.Helper()
	mem, dev, irq := virtiotest.NewMemory(1<<20), rng.New(rng.Config{}), virtiotest.NewInterrupt()
	m := virtio.NewMMIO(dev, mem, irq)
	t.Cleanup(m.Reset)
	g := &guest{virtiotest.NewDriver(m, mem), dev, irq, m}
	if err := g.Start(^uint64(0)); err != nil {
		t.Fatal(err)
	}
	return g
}

// ask makes one request of bufs and returns the answer.
func (g *guest) ask(t testing.TB, bufs ...virtiotest.Buffer) []byte {
	t.Helper()
	g.Rings[0].Add(bufs...)
	g.Notify(0)
	u, ok := g.Rings[0].Take()
	if !ok {
		t.Fatal("no answer")
	}
	return u.In
}

func TestAnswerFillsAllBuffers(t *testing.T) {
	g := boot(t)
	got := g.ask(t, g.Mem.In(32), g.Mem.In(32), g.Mem.In(32))
	if len(got) != 96 {
		t.Fatalf("%d bytes, want 96", len(got))
	}
	for i := 0; i < 96; i += 32 {
		if bytes.Equal(got[i:][:32], make([]byte, 32)) {
			t.Errorf("buffer %d is all zeros", i/32)
		}
	}
}

func TestLargeRequestIsCutShort(t *testing.T) {
	g := boot(t)
	const size = 200 << 10
	buf := g.Mem.In(size)
	if got := g.ask(t, buf); len(got) != 64<<10 {
		t.Errorf("%d bytes for a request of %d, want 65536", len(got), size)
	}
	rest := g.Mem.RAM()[buf.GPA+64<<10:][:size-64<<10]
	if !bytes.Equal(rest, make([]byte, len(rest))) {
		t.Error("bytes written beyond those accounted for")
	}
}

// Parent and children of one capture ask for the same thing in the same state
// and must all get something else.
func TestChildrenGetOtherBytes(t *testing.T) {
	g := boot(t)
	buf := g.Mem.In(32)
	g.ask(t, buf)
	g.mmio.Quiesce()
	seen := make(map[string]bool)
	for range 20 {
		mem, dev, irq := g.Mem.Fork(), rng.Restore(rng.Config{}, g.dev.Save()), virtiotest.NewInterrupt()
		m, err := virtio.RestoreMMIO(dev, mem, irq, g.mmio.State())
		if err != nil {
			t.Fatal(err)
		}
		m.Resume()
		child := &guest{g.Fork(m, mem), dev, irq, m}
		seen[string(child.ask(t, buf))] = true
		m.Reset()
	}
	g.mmio.Resume()
	seen[string(g.ask(t, buf))] = true
	if len(seen) != 21 {
		t.Errorf("%d different answers to 21 machines", len(seen))
	}
}

func TestRequestWithNothingToWriteIsAFault(t *testing.T) {
	g := boot(t)
	if got := g.ask(t, g.Mem.Out([]byte("give"))); len(got) != 0 {
		t.Errorf("%d bytes written to a request with no room", len(got))
	}
	if got := g.dev.Faults(); got != 1 {
		t.Errorf("%d faults, want 1", got)
	}
	if got := g.ask(t, g.Mem.In(8)); len(got) != 8 {
		t.Errorf("%d bytes after a faulty request, want 8", len(got))
	}
}

// A guest whose ring says that there is always more neither keeps the vCPU
// that notifies nor holds up a capture.
func TestEndlessRequestsDoNotHoldAnybodyUp(t *testing.T) {
	g := boot(t)
	// One buffer more than can be in flight: none is used twice at a time.
	bufs := make([]virtiotest.Buffer, g.Rings[0].Size()+1)
	for i := range bufs {
		bufs[i] = g.Mem.In(8)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		next := 0
		for r := g.Rings[0]; ; {
			select {
			case <-stop:
				return
			default:
			}
			for ; r.Free() > 0; next++ {
				r.Add(bufs[next%len(bufs)])
			}
			r.Take()
		}
	}()
	for range 100 {
		g.dev.Notify(0)
		g.mmio.Quiesce()
		g.mmio.Resume()
	}
	close(stop)
	<-done
	if got := g.dev.Faults(); got != 0 {
		t.Errorf("%d faults by an eager but lawful driver", got)
	}
}

func BenchmarkRequest(b *testing.B) {
	g := boot(b)
	buf := g.Mem.In(64)
	b.SetBytes(64)
	for b.Loop() {
		g.Rings[0].Add(buf)
		g.Notify(0)
		if _, ok := g.Rings[0].Take(); !ok {
			b.Fatal("no answer")
		}
	}
}
