package virtio_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// hostile are drivers that break the rules, each in a ring of 8 entries. They
// are seeds of FuzzQueue as well.
var hostile = []struct {
	name string
	do   func(mem *virtiotest.Memory, r *virtiotest.Ring)
}{
	{"loop of one", func(_ *virtiotest.Memory, r *virtiotest.Ring) {
		r.SetDesc(0, virtiotest.Desc{Addr: 0x1000, Len: 1, Flags: virtiotest.DescNext, Next: 0})
		r.Offer(0)
	}},
	{"loop of three", func(_ *virtiotest.Memory, r *virtiotest.Ring) {
		for i := range uint16(3) {
			r.SetDesc(i, virtiotest.Desc{Addr: 0x1000, Len: 1, Flags: virtiotest.DescNext, Next: (i + 1) % 3})
		}
		r.Offer(0)
	}},
	{"loop of nothing", func(_ *virtiotest.Memory, r *virtiotest.Ring) {
		r.SetDesc(0, virtiotest.Desc{Flags: virtiotest.DescNext, Next: 0})
		r.Offer(0)
	}},
	{"loop in a table", func(mem *virtiotest.Memory, r *virtiotest.Ring) {
		table := mem.Alloc(32, 16)
		mem.PutDesc(table, virtiotest.Desc{Addr: 0x1000, Len: 1, Flags: virtiotest.DescNext, Next: 1})
		mem.PutDesc(table+16, virtiotest.Desc{Addr: 0x1000, Len: 1, Flags: virtiotest.DescNext, Next: 0})
		r.SetDesc(0, virtiotest.Desc{Addr: table, Len: 32, Flags: virtiotest.DescIndirect})
		r.Offer(0)
	}},
	{"head out of range", func(_ *virtiotest.Memory, r *virtiotest.Ring) { r.Offer(8) }},
	{"next out of range", func(_ *virtiotest.Memory, r *virtiotest.Ring) {
		r.SetDesc(0, virtiotest.Desc{Addr: 0x1000, Len: 1, Flags: virtiotest.DescNext, Next: 0xffff})
		r.Offer(0)
	}},
	{"next out of the table", func(mem *virtiotest.Memory, r *virtiotest.Ring) {
		table := mem.Alloc(16, 16)
		mem.PutDesc(table, virtiotest.Desc{Addr: 0x1000, Len: 1, Flags: virtiotest.DescNext, Next: 1})
		r.SetDesc(0, virtiotest.Desc{Addr: table, Len: 16, Flags: virtiotest.DescIndirect})
		r.Offer(0)
	}},
	{"not RAM", func(mem *virtiotest.Memory, r *virtiotest.Ring) {
		r.Add(virtiotest.Buffer{GPA: uint64(mem.Size()) - 1, Len: 2})
	}},
	{"address wraps", func(_ *virtiotest.Memory, r *virtiotest.Ring) {
		r.Add(virtiotest.Buffer{GPA: ^uint64(0), Len: 2, Writable: true})
	}},
	{"readable after writable", func(mem *virtiotest.Memory, r *virtiotest.Ring) {
		r.Add(mem.In(1), mem.Out([]byte{1}))
	}},
	{"nested table", func(mem *virtiotest.Memory, r *virtiotest.Ring) {
		table := mem.Alloc(16, 16)
		mem.PutDesc(table, virtiotest.Desc{Addr: table, Len: 16, Flags: virtiotest.DescIndirect})
		r.SetDesc(0, virtiotest.Desc{Addr: table, Len: 16, Flags: virtiotest.DescIndirect})
		r.Offer(0)
	}},
	{"table with next", func(mem *virtiotest.Memory, r *virtiotest.Ring) {
		r.SetDesc(0, virtiotest.Desc{Addr: mem.Alloc(16, 16), Len: 16, Flags: virtiotest.DescIndirect | virtiotest.DescNext, Next: 1})
		r.Offer(0)
	}},
	{"empty table", func(_ *virtiotest.Memory, r *virtiotest.Ring) {
		r.SetDesc(0, virtiotest.Desc{Addr: 0x1000, Flags: virtiotest.DescIndirect})
		r.Offer(0)
	}},
	{"crooked table", func(_ *virtiotest.Memory, r *virtiotest.Ring) {
		r.SetDesc(0, virtiotest.Desc{Addr: 0x1000, Len: 17, Flags: virtiotest.DescIndirect})
		r.Offer(0)
	}},
	{"huge table", func(_ *virtiotest.Memory, r *virtiotest.Ring) {
		r.SetDesc(0, virtiotest.Desc{Len: 16 * 1025, Flags: virtiotest.DescIndirect})
		r.Offer(0)
	}},
	{"table not RAM", func(_ *virtiotest.Memory, r *virtiotest.Ring) {
		r.SetDesc(0, virtiotest.Desc{Addr: 1 << 40, Len: 16, Flags: virtiotest.DescIndirect})
		r.Offer(0)
	}},
	{"more available than the queue has", func(_ *virtiotest.Memory, r *virtiotest.Ring) { r.SetAvailIdx(9) }},
	{"index went back", func(_ *virtiotest.Memory, r *virtiotest.Ring) { r.SetAvailIdx(0xffff) }},
}

func TestHostileDriverBreaksItsQueue(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, 8, allFeatures)
			c.do(p.mem, p.ring)
			chain, err := p.queue.Pop()
			if chain != nil || !errors.Is(err, virtio.ErrQueueBroken) {
				t.Fatalf("Pop: %v, %v; want %v", chain, err, virtio.ErrQueueBroken)
			}
			// For good, whatever the driver does next, and after a restore too.
			p.ring.SetDesc(0, virtiotest.Desc{Addr: 0x1000, Len: 1})
			p.ring.SetAvailIdx(0)
			p.ring.Offer(0)
			if _, again := p.queue.Pop(); again != err {
				t.Errorf("second Pop: %v, want %v", again, err)
			}
			p.reopen(t, p.queue.State())
			if _, err := p.queue.Pop(); !errors.Is(err, virtio.ErrQueueBroken) {
				t.Errorf("Pop after a restore: %v, want %v", err, virtio.ErrQueueBroken)
			}
		})
	}
}

func TestChainBeyond4GiB(t *testing.T) {
	p := newPair(t, 1024, virtio.FeatureVersion1)
	p.mem = virtiotest.NewMemory(32 << 20)
	p.ring = virtiotest.NewRing(p.mem, 1024, 0)
	p.reopen(t, p.ring.State())
	bufs := slices.Repeat([]virtiotest.Buffer{{Len: 16 << 20}}, 256)
	p.ring.Add(bufs...)
	if _, err := p.queue.Pop(); !errors.Is(err, virtio.ErrQueueBroken) {
		t.Errorf("Pop of a chain of 4 GiB: %v", err)
	}
}

func TestIndirectNeedsItsFeature(t *testing.T) {
	p := newPair(t, 8, virtio.FeatureVersion1)
	p.ring.AddIndirect(p.mem.Out([]byte{1}))
	if _, err := p.queue.Pop(); !errors.Is(err, virtio.ErrQueueBroken) {
		t.Errorf("Pop: %v, want %v", err, virtio.ErrQueueBroken)
	}
}

// A driver may not have more requests out than the queue has entries, even if
// the device holds on to them.
func TestRequestsInFlightAreBounded(t *testing.T) {
	p := newPair(t, 4, allFeatures)
	in := p.mem.In(1)
	for i := range uint16(4) {
		p.ring.SetDesc(i, virtiotest.Desc{Addr: in.GPA, Len: 1, Flags: virtiotest.DescWrite})
		p.ring.Offer(i)
		p.pop(t)
	}
	p.ring.Offer(0)
	if _, err := p.queue.Pop(); !errors.Is(err, virtio.ErrQueueBroken) {
		t.Errorf("fifth Pop: %v, want %v", err, virtio.ErrQueueBroken)
	}
}

func TestNewQueueChecksItsState(t *testing.T) {
	p := newPair(t, 8, allFeatures)
	size := uint64(p.mem.Size())
	for _, c := range []struct {
		name string
		edit func(*virtio.QueueState)
	}{
		{"size 0", func(s *virtio.QueueState) { s.Size = 0 }},
		{"size not a power of two", func(s *virtio.QueueState) { s.Size = 6 }},
		{"size above the largest", func(s *virtio.QueueState) { s.Size = 16 }},
		{"table misaligned", func(s *virtio.QueueState) { s.Desc += 8 }},
		{"available ring misaligned", func(s *virtio.QueueState) { s.Avail++ }},
		{"used ring misaligned", func(s *virtio.QueueState) { s.Used += 2 }},
		{"table not RAM", func(s *virtio.QueueState) { s.Desc = size }},
		{"table half RAM", func(s *virtio.QueueState) { s.Desc = size - 64 }},
		{"available ring half RAM", func(s *virtio.QueueState) { s.Avail = size - 16 }},
		{"used ring half RAM", func(s *virtio.QueueState) { s.Used = size - 64 }},
		{"table wraps", func(s *virtio.QueueState) { s.Desc = ^uint64(15) }},
		{"available ring wraps", func(s *virtio.QueueState) { s.Avail = ^uint64(1) }},
		{"used ring wraps", func(s *virtio.QueueState) { s.Used = ^uint64(3) }},
		{"impossible indices", func(s *virtio.QueueState) { s.NextAvail, s.NextUsed = 9, 0 }},
		{"indices crossed", func(s *virtio.QueueState) { s.NextAvail, s.NextUsed = 0, 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := p.ring.State()
			c.edit(&st)
			if _, err := virtio.NewQueue(p.mem, st, allFeatures); err == nil {
				t.Errorf("accepted %+v", st)
			}
		})
	}
}
