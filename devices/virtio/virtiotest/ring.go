package virtiotest

import (
	"encoding/binary"
	"fmt"

	"github.com/forkvm/forkvm/devices/virtio"
)

// Descriptor flags, section 2.7.5.
const (
	DescNext     = 1
	DescWrite    = 2
	DescIndirect = 4
)

// Buffer is a piece of guest memory in a request.
type Buffer struct {
	GPA      uint64
	Len      uint32
	Writable bool // by the device
}

// Desc is a descriptor as it stands in memory, section 2.7.5.
type Desc struct {
	Addr  uint64
	Len   uint32
	Flags uint16
	Next  uint16
}

// Used is a request that the device gave back.
type Used struct {
	Head uint16
	Len  uint32 // as the device claims
	In   []byte // copy of the first Len writable bytes
}

// Ring is the driver's half of a split virtqueue (section 2.7), with the
// descriptor table, available and used ring in a [Memory]. A Ring is used by
// one goroutine; the device is free to be another.
type Ring struct {
	mem      *Memory
	size     uint16
	indirect bool
	eventIdx bool

	desc, avail, used uint64

	availFlags uint16
	availIdx   uint16 // next entry to make available
	notified   uint16 // availIdx at the last NeedsNotify
	usedIdx    uint16 // next entry to take
	silent     bool   // interrupts are not wanted

	free     []uint16
	requests map[uint16]request // by head
}

// request is a chain that the device owns.
type request struct {
	descs []uint16
	bufs  []Buffer
}

// NewRing places an empty ring of size entries in mem. Of features, those of
// the queues count.
func NewRing(mem *Memory, size int, features uint64) *Ring {
	r := &Ring{
		mem:      mem,
		size:     uint16(size),
		indirect: features&virtio.FeatureIndirectDesc != 0,
		eventIdx: features&virtio.FeatureEventIdx != 0,
		desc:     mem.Alloc(16*size, 16),
		avail:    mem.Alloc(6+2*size, 4),
		used:     mem.Alloc(6+8*size, 4),
		requests: make(map[uint16]request),
	}
	mem.Alloc(2, 1)                  // the word that covers avail_event is the ring's alone
	clear(mem.ram[r.avail:mem.next]) // which may have been another ring's
	for i := size - 1; i >= 0; i-- {
		r.free = append(r.free, uint16(i))
	}
	return r
}

// State is the state of the fresh queue as a transport makes it.
func (r *Ring) State() virtio.QueueState {
	return virtio.QueueState{
		MaxSize: r.size, Size: r.size, Ready: true,
		Desc: r.desc, Avail: r.avail, Used: r.used,
		SignalledUsedValid: true,
	}
}

// Fork returns a ring in the same state in mem, a fork of r's memory.
func (r *Ring) Fork(mem *Memory) *Ring {
	c := *r
	c.mem = mem
	c.free = append([]uint16(nil), r.free...)
	c.requests = make(map[uint16]request, len(r.requests))
	for head, q := range r.requests {
		c.requests[head] = q
	}
	return &c
}

// Add makes one request of bufs available and returns its head. It panics if
// there are too few free descriptors: a mistake of the test.
func (r *Ring) Add(bufs ...Buffer) uint16 {
	descs := r.take(len(bufs))
	for i, b := range bufs {
		d := Desc{Addr: b.GPA, Len: b.Len}
		if b.Writable {
			d.Flags |= DescWrite
		}
		if i+1 < len(bufs) {
			d.Flags, d.Next = d.Flags|DescNext, descs[i+1]
		}
		r.SetDesc(descs[i], d)
	}
	r.requests[descs[0]] = request{descs, bufs}
	r.Offer(descs[0])
	return descs[0]
}

// AddIndirect is Add with the descriptors in an indirect table of their own.
func (r *Ring) AddIndirect(bufs ...Buffer) uint16 {
	table := r.mem.Alloc(16*len(bufs), 16)
	for i, b := range bufs {
		d := Desc{Addr: b.GPA, Len: b.Len}
		if b.Writable {
			d.Flags |= DescWrite
		}
		if i+1 < len(bufs) {
			d.Flags, d.Next = d.Flags|DescNext, uint16(i+1)
		}
		r.mem.PutDesc(table+16*uint64(i), d)
	}
	descs := r.take(1)
	r.SetDesc(descs[0], Desc{Addr: table, Len: uint32(16 * len(bufs)), Flags: DescIndirect})
	r.requests[descs[0]] = request{descs, bufs}
	r.Offer(descs[0])
	return descs[0]
}

func (r *Ring) take(n int) []uint16 {
	if n == 0 || n > len(r.free) {
		panic(fmt.Sprintf("virtiotest: %d descriptors wanted, %d free", n, len(r.free)))
	}
	at := len(r.free) - n
	descs := append([]uint16(nil), r.free[at:]...)
	r.free = r.free[:at]
	return descs
}

// SetDesc writes descriptor i of the table, right or wrong.
func (r *Ring) SetDesc(i uint16, d Desc) {
	r.mem.PutDesc(r.desc+16*uint64(i), d)
}

// PutDesc writes a descriptor at gpa.
func (m *Memory) PutDesc(gpa uint64, d Desc) {
	b := m.ram[gpa:][:16]
	binary.LittleEndian.PutUint64(b, d.Addr)
	binary.LittleEndian.PutUint32(b[8:], d.Len)
	binary.LittleEndian.PutUint16(b[12:], d.Flags)
	binary.LittleEndian.PutUint16(b[14:], d.Next)
}

// Offer makes the chain at head available, right or wrong.
func (r *Ring) Offer(head uint16) {
	binary.LittleEndian.PutUint16(r.mem.ram[r.avail+4+2*uint64(r.availIdx%r.size):], head)
	r.SetAvailIdx(r.availIdx + 1)
}

// SetAvailIdx publishes an index of the available ring, right or wrong.
func (r *Ring) SetAvailIdx(v uint16) {
	r.availIdx = v
	r.publish()
}

func (r *Ring) publish() {
	r.mem.storeWord(r.avail, uint32(r.availFlags)|uint32(r.availIdx)<<16)
}

// SetInterrupts asks the device to interrupt for the next used request, or
// not to. With VIRTIO_F_EVENT_IDX, Take renews the wish.
func (r *Ring) SetInterrupts(enabled bool) {
	r.silent = !enabled
	if !r.eventIdx {
		r.availFlags = 0
		if r.silent {
			r.availFlags = 1 // VIRTQ_AVAIL_F_NO_INTERRUPT
		}
		r.publish()
		return
	}
	if enabled {
		r.SetUsedEvent(r.usedIdx)
	} else {
		r.SetUsedEvent(r.usedIdx - 1)
	}
}

// SetUsedEvent stores used_event (section 2.7.7): interrupt when the used
// entry with this index is written.
func (r *Ring) SetUsedEvent(v uint16) {
	at := r.avail + 4 + 2*uint64(r.size)
	if at%4 == 0 {
		r.mem.storeWord(at, uint32(v))
		return
	}
	// A ring of one entry: the other half is that entry.
	entry := binary.LittleEndian.Uint16(r.mem.ram[at-2:])
	r.mem.storeWord(at-2, uint32(v)<<16|uint32(entry))
}

// NeedsNotify tells whether the device wants to be notified of what was added
// since the last call (section 2.7.10).
func (r *Ring) NeedsNotify() bool {
	old := r.notified
	r.notified = r.availIdx
	if r.eventIdx {
		event := uint16(r.mem.loadWord(r.used + 4 + 8*uint64(r.size)))
		return r.availIdx-event-1 < r.availIdx-old
	}
	return r.availIdx != old && r.mem.loadWord(r.used)&1 == 0
}

// Size is the number of entries.
func (r *Ring) Size() uint16 { return r.size }

// Free is the number of free descriptors.
func (r *Ring) Free() int { return len(r.free) }

// UsedIdx is the device's index of the used ring.
func (r *Ring) UsedIdx() uint16 { return uint16(r.mem.loadWord(r.used) >> 16) }

// Pending is the number of requests that the device has not given back, or
// that were not taken.
func (r *Ring) Pending() int { return len(r.requests) }

// Take returns the next request that the device gave back, if there is one.
// It panics if the device gave back what it did not have.
func (r *Ring) Take() (Used, bool) {
	if r.UsedIdx() == r.usedIdx {
		return Used{}, false
	}
	e := r.mem.ram[r.used+4+8*uint64(r.usedIdx%r.size):][:8]
	id, n := binary.LittleEndian.Uint32(e), binary.LittleEndian.Uint32(e[4:])
	q, ok := r.requests[uint16(id)]
	if !ok || id > 0xffff {
		panic(fmt.Sprintf("virtiotest: device used head %d, which it does not own", id))
	}
	delete(r.requests, uint16(id))
	r.free = append(r.free, q.descs...)
	r.usedIdx++
	if r.eventIdx && !r.silent {
		r.SetUsedEvent(r.usedIdx)
	}
	return Used{Head: uint16(id), Len: n, In: r.written(q.bufs, n)}, true
}

// written copies the first n writable bytes of bufs.
func (r *Ring) written(bufs []Buffer, n uint32) []byte {
	var in []byte
	for _, b := range bufs {
		if b.Writable {
			in = append(in, r.mem.ram[b.GPA:][:b.Len]...)
		}
	}
	if uint64(n) > uint64(len(in)) {
		panic(fmt.Sprintf("virtiotest: device claims %d bytes written in a request of %d", n, len(in)))
	}
	return in[:n]
}
