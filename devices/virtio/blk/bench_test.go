package blk_test

import (
	"fmt"
	"testing"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/blk"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// BenchmarkRequest is requests of 4 KiB, so many at a time, as one driver sees
// them that sleeps until it is interrupted. The driver allocates nothing
// either.
func BenchmarkRequest(b *testing.B) {
	const size, n = 4096, 1 << 20
	for _, kind := range []uint32{typeIn, typeOut} {
		for _, depth := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/depth=%d", map[uint32]string{typeIn: "read", typeOut: "write"}[kind], depth), func(b *testing.B) {
				bench(b, blk.NewMemory(make([]byte, n)), kind, depth, size)
			})
		}
	}
}

func bench(b *testing.B, backend blk.Backend, kind uint32, depth, size int) {
	dev, err := blk.New(blk.Config{}, blk.Env{Backend: backend})
	if err != nil {
		b.Fatal(err)
	}
	raised := make(signal, 1)
	mem := virtiotest.NewMemory(4 << 20)
	m := virtio.NewMMIO(dev, mem, raised)
	defer m.Reset()
	drv := virtiotest.NewDriver(m, mem)
	// A ring of full size, with chains that are made once.
	if err := drv.Negotiate(everything &^ virtio.FeatureIndirectDesc); err != nil {
		b.Fatal(err)
	}
	ring := virtiotest.NewRing(mem, 256, drv.Features)
	drv.Rings = []*virtiotest.Ring{ring}
	drv.SetUpQueue(0, ring)
	if err := drv.SetStatus(virtiotest.StatusDriverOK); err != nil {
		b.Fatal(err)
	}
	var heads []uint16
	for i := range depth {
		head := uint16(3 * i)
		h := mem.Out(header(kind, uint64(i*size/sector)))
		ring.SetDesc(head, virtiotest.Desc{Addr: h.GPA, Len: h.Len, Flags: virtiotest.DescNext, Next: head + 1})
		data := virtiotest.Desc{Addr: mem.Alloc(size, 4096), Len: uint32(size), Flags: virtiotest.DescNext, Next: head + 2}
		if kind == typeIn {
			data.Flags |= virtiotest.DescWrite
		}
		ring.SetDesc(head+1, data)
		ring.SetDesc(head+2, virtiotest.Desc{Addr: mem.Alloc(1, 1), Len: 1, Flags: virtiotest.DescWrite})
		heads = append(heads, head)
	}
	b.ReportAllocs()
	b.SetBytes(int64(size))
	b.ResetTimer()
	queue0 := make([]byte, 4)
	made, done := uint16(0), uint16(0)
	for left := b.N; left > 0; {
		n := min(left, depth)
		for _, head := range heads[:n] {
			ring.Offer(head)
		}
		made += uint16(n)
		if ring.NeedsNotify() {
			m.Write(virtiotest.RegQueueNotify, queue0)
		}
		for {
			ring.SetUsedEvent(made - 1) // one interrupt for all
			if done = ring.UsedIdx(); done == made {
				break
			}
			<-raised
		}
		left -= n
	}
	b.StopTimer()
	if got := dev.Stats(); got.Failed+got.Refused > 0 || got.Reads+got.Writes != uint64(b.N) {
		b.Errorf("counted %+v of %d requests", got, b.N)
	}
}

// signal is an interrupt to wait for.
type signal chan struct{}

func (s signal) Trigger() {
	select {
	case s <- struct{}{}:
	default:
	}
}
