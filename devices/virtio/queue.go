package virtio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/forkvm/forkvm/devices"
)

const (
	// MaxQueueSize is the largest size of a split ring (section 2.7).
	MaxQueueSize = 32768

	// maxIndirect is the largest indirect table accepted, in descriptors. A
	// chain is to be no longer than the queue (section 2.7.5.3.1), but
	// drivers exist that hold only their tables' length to what the device
	// class allows.
	maxIndirect = 1024

	availNoInterrupt = 1 // VIRTQ_AVAIL_F_NO_INTERRUPT
	usedNoNotify     = 1 // VIRTQ_USED_F_NO_NOTIFY
)

// ErrQueueBroken is wrapped by every error of [Queue.Pop]: the driver broke
// the rules of the ring and nothing more is read from it until a reset.
var ErrQueueBroken = errors.New("queue broken")

// QueueState is a virtqueue's configuration and position. Everything else
// about a split ring is in guest memory.
type QueueState struct {
	MaxSize uint16 // largest size offered, in entries
	Size    uint16 // size the driver chose, a power of two
	Ready   bool   // QueueReady
	Broken  bool   // the driver broke the rules; see ErrQueueBroken

	Desc, Avail, Used uint64 // guest-physical addresses of the three areas

	NextAvail uint16 // index of the next available entry to pop
	NextUsed  uint16 // index of the next used entry to push

	// SignalledUsed is NextUsed at the last NeedInterrupt, from which
	// VIRTIO_F_EVENT_IDX tells whether the driver's event was crossed. If not
	// SignalledUsedValid the next NeedInterrupt says yes.
	SignalledUsed      uint16
	SignalledUsedValid bool
}

// Queue is the device side of one split virtqueue (section 2.7).
//
// It is not safe for concurrent use by several goroutines of the device. The
// driver, of course, uses its own side at any time.
type Queue struct {
	mem    devices.Memory
	st     QueueState
	broken error       // what Pop returns for ever after
	report func(error) // told once, when the queue breaks; may be nil
	mask   uint16      // Size - 1

	indirect, eventIdx bool // negotiated

	desc       []byte // descriptor table
	availFlags half
	availIdx   half
	availRing  []byte
	usedEvent  half    // driver's wish, if eventIdx
	usedHead   *uint32 // used.flags and used.idx
	usedFlags  uint16  // as last stored
	usedRing   []byte
	availEvent half // device's wish, if eventIdx

	chain Chain // reused by Pop
}

// NewQueue makes the device side of the ring that st describes, with the
// features that were negotiated. The addresses and indices come from a driver
// or a file: it checks alignment, that all three areas are RAM, and that the
// indices can be true. It touches no guest memory but for reading used.flags.
func NewQueue(mem devices.Memory, st QueueState, features uint64) (*Queue, error) {
	if st.Size == 0 || st.Size > MaxQueueSize || st.Size&(st.Size-1) != 0 || st.Size > st.MaxSize {
		return nil, fmt.Errorf("virtio: queue: size %d: not a power of two of at most %d", st.Size, min(st.MaxSize, MaxQueueSize))
	}
	if n := st.NextAvail - st.NextUsed; n > st.Size {
		return nil, fmt.Errorf("virtio: queue: %d requests in flight in a queue of %d", n, st.Size)
	}
	q := &Queue{
		mem:      mem,
		st:       st,
		mask:     st.Size - 1,
		indirect: features&FeatureIndirectDesc != 0,
		eventIdx: features&FeatureEventIdx != 0,
	}
	if st.Broken {
		q.broken = fmt.Errorf("virtio: %w: before it was restored", ErrQueueBroken)
	}
	if err := q.mapAreas(); err != nil {
		return nil, err
	}
	return q, nil
}

// mapAreas resolves the three areas: descriptor table (section 2.7.5),
// available ring (2.7.6) and used ring (2.7.8).
func (q *Queue) mapAreas() error {
	n := uint64(q.st.Size)
	table, err := mapRing(q.mem, "descriptor table", q.st.Desc, n*descSize, 16)
	if err != nil {
		return err
	}
	avail, err := mapRing(q.mem, "available ring", q.st.Avail, 6+2*n, 2)
	if err != nil {
		return err
	}
	used, err := mapRing(q.mem, "used ring", q.st.Used, 6+8*n, 4)
	if err != nil {
		return err
	}
	q.desc = table.bytes(0, n*descSize)
	q.availFlags = avail.half(0)
	q.availIdx = avail.half(2)
	q.availRing = avail.bytes(4, 2*n)
	q.usedEvent = avail.half(4 + 2*n)
	q.usedHead = used.word(0)
	q.usedFlags = used.half(0).load() & usedNoNotify
	q.usedRing = used.bytes(4, 8*n)
	q.availEvent = used.half(4 + 8*n)
	return nil
}

// State is the queue's state, to be taken when the device is quiet.
func (q *Queue) State() QueueState {
	st := q.st
	st.Broken = q.broken != nil
	return st
}

// Available is the number of chains the driver has made available that were
// not popped yet. Pop may still find that the driver lied.
func (q *Queue) Available() int {
	return int(q.availIdx.load() - q.st.NextAvail)
}

// Empty tells whether there is nothing to pop.
func (q *Queue) Empty() bool { return q.Available() == 0 }

// Pop takes the next chain, or nil if there is none. The chain and its slices
// are valid until the next Pop.
//
// An error wraps [ErrQueueBroken] and is final: the transport has been told
// and has asked the driver for a reset, and every further Pop returns the same.
func (q *Queue) Pop() (*Chain, error) {
	if q.broken != nil {
		return nil, q.broken
	}
	n := q.availIdx.load() - q.st.NextAvail
	if n == 0 {
		return nil, nil
	}
	if inFlight := q.st.NextAvail - q.st.NextUsed; n > q.st.Size-inFlight {
		return nil, q.fail("%d entries available and %d in flight in a queue of %d", n, inFlight, q.st.Size)
	}
	slot := uint64(q.st.NextAvail & q.mask)
	head := binary.LittleEndian.Uint16(q.availRing[2*slot:])
	if err := q.walk(head); err != nil {
		return nil, err
	}
	q.st.NextAvail++
	return &q.chain, nil
}

// walk fills q.chain from the chain that starts at head. It ends after at
// most as many descriptors as the tables have: a longer chain is a loop.
func (q *Queue) walk(head uint16) error {
	q.chain = Chain{
		Head:       head,
		Readable:   q.chain.Readable[:0],
		Writable:   q.chain.Writable[:0],
		WritableAt: q.chain.WritableAt[:0],
	}
	table, entries := q.desc, uint64(q.st.Size)
	inTable, bytes := false, uint64(0)
	i := head
	for left := entries; ; left-- {
		if left == 0 {
			return q.fail("chain %d: loop", head)
		}
		if uint64(i) >= entries {
			return q.fail("chain %d: descriptor %d of %d", head, i, entries)
		}
		d := readDesc(table, i)
		if d.flags&descIndirect != 0 {
			t, err := q.enter(d, inTable)
			if err != nil {
				return err
			}
			table, entries, inTable, i = t, uint64(len(t)/descSize), true, 0
			left = entries + 1 // the loop takes one off
			continue
		}
		if bytes += uint64(d.len); bytes > math.MaxUint32 {
			return q.fail("chain %d: longer than 4 GiB", head)
		}
		if err := q.add(d); err != nil {
			return err
		}
		if d.flags&descNext == 0 {
			return nil
		}
		i = d.next
	}
}

// enter resolves the indirect table of d (section 2.7.5.3). VIRTQ_DESC_F_WRITE
// of d means nothing.
func (q *Queue) enter(d desc, inTable bool) ([]byte, error) {
	switch {
	case !q.indirect:
		return nil, q.fail("indirect descriptor without VIRTIO_F_INDIRECT_DESC")
	case inTable:
		return nil, q.fail("indirect descriptor in an indirect table")
	case d.flags&descNext != 0:
		return nil, q.fail("indirect descriptor with VIRTQ_DESC_F_NEXT")
	case d.len == 0 || d.len%descSize != 0 || d.len > maxIndirect*descSize:
		return nil, q.fail("indirect table of %d bytes", d.len)
	}
	t, err := q.mem.Slice(d.addr, uint64(d.len))
	if err != nil {
		return nil, q.fail("indirect table: %w", err)
	}
	return t, nil
}

// add appends the buffer of d to the chain. An empty one is legal and nothing.
func (q *Queue) add(d desc) error {
	writable := d.flags&descWrite != 0
	if !writable && len(q.chain.Writable) > 0 {
		return q.fail("chain %d: readable descriptor after a writable one", q.chain.Head)
	}
	if d.len == 0 {
		return nil
	}
	b, err := q.mem.Slice(d.addr, uint64(d.len))
	if err != nil {
		return q.fail("chain %d: %w", q.chain.Head, err)
	}
	if writable {
		q.chain.Writable = append(q.chain.Writable, b)
		q.chain.WritableAt = append(q.chain.WritableAt, d.addr)
	} else {
		q.chain.Readable = append(q.chain.Readable, b)
	}
	return nil
}

// fail breaks the queue.
func (q *Queue) fail(format string, args ...any) error {
	q.broken = fmt.Errorf("virtio: %w: "+format, append([]any{ErrQueueBroken}, args...)...)
	if q.report != nil {
		q.report(q.broken)
	}
	return q.broken
}

// Undo gives the last popped chain, which was not pushed, back, so that the
// next Pop returns it again. Calling it n times gives the last n back. It does
// nothing if no chain is in flight.
func (q *Queue) Undo() {
	if q.st.NextAvail != q.st.NextUsed {
		q.st.NextAvail--
	}
}

// Push gives the chain of head back to the driver, with written bytes in its
// writable part. The device must not touch the chain any more. It fails only
// on a mistake of the device: no chain in flight or an impossible head.
func (q *Queue) Push(head uint16, written uint32) error {
	if head >= q.st.Size {
		return fmt.Errorf("virtio: queue: push of head %d to a queue of %d", head, q.st.Size)
	}
	if q.st.NextAvail == q.st.NextUsed {
		return fmt.Errorf("virtio: queue: push of head %d with nothing in flight", head)
	}
	e := q.usedRing[8*uint64(q.st.NextUsed&q.mask):][:8]
	binary.LittleEndian.PutUint32(e, uint32(head))
	binary.LittleEndian.PutUint32(e[4:], written)
	q.st.NextUsed++
	q.publish()
	if q.st.NextUsed == q.st.SignalledUsed {
		q.st.SignalledUsedValid = false // went once around since it was asked
	}
	return nil
}

// publish stores used.flags and used.idx, both of which are the device's.
func (q *Queue) publish() {
	storeWord(q.usedHead, uint32(q.usedFlags)|uint32(q.st.NextUsed)<<16)
}

// NeedInterrupt tells whether the driver wants to be interrupted for what was
// pushed since the last call (section 2.7.7). It is called once after a batch
// of Push, whose barrier it relies on.
func (q *Queue) NeedInterrupt() bool {
	old, valid := q.st.SignalledUsed, q.st.SignalledUsedValid
	now := q.st.NextUsed
	q.st.SignalledUsed, q.st.SignalledUsedValid = now, true
	switch {
	case !valid:
		return true
	case now == old:
		return false
	case q.eventIdx:
		return now-q.usedEvent.load()-1 < now-old
	default:
		return q.availFlags.load()&availNoInterrupt == 0
	}
}

// SetNotify asks the driver to notify, or not to, when it makes chains
// available (section 2.7.10). With VIRTIO_F_EVENT_IDX asking not to is
// implied by not asking again. When enabling, it tells whether there is
// already something to pop for which no notification may come.
func (q *Queue) SetNotify(enabled bool) (more bool) {
	switch {
	case q.eventIdx && enabled:
		q.availEvent.store(q.st.NextAvail)
	case !q.eventIdx && enabled:
		q.setUsedFlags(0)
	case !q.eventIdx:
		q.setUsedFlags(usedNoNotify)
	}
	return enabled && !q.Empty()
}

// setUsedFlags stores used.flags, unless they are so already: see half.store.
func (q *Queue) setUsedFlags(v uint16) {
	if q.usedFlags != v {
		q.usedFlags = v
		q.publish()
	}
}
