package virtio_test

import (
	"context"
	"testing"
	"time"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// stepper prepares a chain of three buffers and returns a function that makes
// it available, pops it and pushes it.
func (p *pair) stepper(t testing.TB) func() {
	table := p.mem.Alloc(48, 16)
	for i := range uint64(3) {
		p.mem.PutDesc(table+16*i, virtiotest.Desc{Addr: 0x1000 + 0x100*i, Len: 0x100, Flags: virtiotest.DescNext, Next: uint16(i + 1)})
	}
	p.mem.PutDesc(table+32, virtiotest.Desc{Addr: 0x1200, Len: 0x100, Flags: virtiotest.DescWrite})
	p.ring.SetDesc(0, virtiotest.Desc{Addr: table, Len: 48, Flags: virtiotest.DescIndirect})
	return func() {
		p.ring.Offer(0)
		c, err := p.queue.Pop()
		if err != nil || c == nil {
			t.Fatalf("Pop: %v, %v", c, err)
		}
		if err := p.queue.Push(c.Head, 0x100); err != nil {
			t.Fatal(err)
		}
		p.queue.NeedInterrupt()
		p.queue.SetNotify(true)
	}
}

func BenchmarkPopPush(b *testing.B) {
	for _, c := range []struct {
		name     string
		features uint64
	}{
		{"flags", virtio.FeatureVersion1 | virtio.FeatureIndirectDesc},
		{"event", allFeatures},
	} {
		b.Run(c.name, func(b *testing.B) {
			step := newPair(b, 256, c.features).stepper(b)
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}

// Driver and device in threads of their own, each asleep whenever the other
// has nothing for it: whoever goes to sleep without a last look loses a wake-up,
// and the test ends at its deadline.
func TestNoWakeUpIsLost(t *testing.T) {
	const requests = 50_000
	for _, features := range []uint64{virtio.FeatureVersion1, allFeatures} {
		p := newPair(t, 4, features)
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		notify, interrupt := virtiotest.NewInterrupt(), virtiotest.NewInterrupt()
		done := make(chan error, 1)
		go func() { done <- p.device(ctx, requests, notify, interrupt) }()
		if err := p.driver(ctx, requests, notify, interrupt); err != nil {
			t.Fatalf("features %#x: driver: %v, device at %+v", features, err, p.queue.State())
		}
		if err := <-done; err != nil {
			t.Fatalf("features %#x: device: %v", features, err)
		}
	}
}

// driver makes requests and takes the replies until it has n of them.
func (p *pair) driver(ctx context.Context, n int, notify, interrupt *virtiotest.Interrupt) error {
	buf := p.mem.In(1)
	for sent, got := 0, 0; got < n; {
		for ; sent < n && p.ring.Pending() < 2; sent++ {
			p.ring.Add(buf)
		}
		if p.ring.NeedsNotify() {
			notify.Trigger()
		}
		p.ring.SetInterrupts(false)
		took := p.takeAll()
		if took == 0 {
			p.ring.SetInterrupts(true)
			took = p.takeAll()
		}
		if got += took; took == 0 {
			if err := interrupt.Wait(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pair) takeAll() int {
	n := 0
	for {
		if _, ok := p.ring.Take(); !ok {
			return n
		}
		n++
	}
}

// device answers n requests.
func (p *pair) device(ctx context.Context, n int, notify, interrupt *virtiotest.Interrupt) error {
	for served := 0; served < n; {
		p.queue.SetNotify(false)
		for {
			c, err := p.queue.Pop()
			if err != nil {
				return err
			}
			if c == nil {
				break
			}
			if err := p.queue.Push(c.Head, 1); err != nil {
				return err
			}
			served++
		}
		if p.queue.NeedInterrupt() {
			interrupt.Trigger()
		}
		if served < n && !p.queue.SetNotify(true) {
			if err := notify.Wait(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
