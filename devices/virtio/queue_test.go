package virtio_test

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

const allFeatures = virtio.FeatureVersion1 | virtio.FeatureIndirectDesc | virtio.FeatureEventIdx

// pair is a ring with a driver at one end and a device at the other.
type pair struct {
	mem      *virtiotest.Memory
	ring     *virtiotest.Ring
	queue    *virtio.Queue
	features uint64
}

func newPair(t testing.TB, size int, features uint64) *pair {
	t.Helper()
	p := &pair{mem: virtiotest.NewMemory(1 << 20), features: features}
	p.ring = virtiotest.NewRing(p.mem, size, features)
	p.reopen(t, p.ring.State())
	return p
}

func (p *pair) reopen(t testing.TB, st virtio.QueueState) {
	t.Helper()
	q, err := virtio.NewQueue(p.mem, st, p.features)
	if err != nil {
		t.Fatal(err)
	}
	p.queue = q
}

func (p *pair) pop(t testing.TB) *virtio.Chain {
	t.Helper()
	c, err := p.queue.Pop()
	if err != nil {
		t.Fatal(err)
	}
	if c == nil {
		t.Fatal("Pop found nothing")
	}
	return c
}

func (p *pair) push(t testing.TB, head uint16, n uint32) {
	t.Helper()
	if err := p.queue.Push(head, n); err != nil {
		t.Fatal(err)
	}
}

// serve answers one request by echoing it backwards.
func (p *pair) serve(t testing.TB) {
	t.Helper()
	c := p.pop(t)
	b := make([]byte, c.ReadableLen())
	if _, err := c.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(b)
	if _, err := c.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	p.push(t, c.Head, uint32(len(b)))
}

func (p *pair) take(t testing.TB) virtiotest.Used {
	t.Helper()
	u, ok := p.ring.Take()
	if !ok {
		t.Fatal("nothing used")
	}
	return u
}

func TestRequestAndReply(t *testing.T) {
	for _, c := range []struct {
		name string
		add  func(r *virtiotest.Ring, bufs ...virtiotest.Buffer) uint16
	}{
		{"direct", (*virtiotest.Ring).Add},
		{"indirect", (*virtiotest.Ring).AddIndirect},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, 8, allFeatures)
			if got, err := p.queue.Pop(); got != nil || err != nil {
				t.Fatalf("Pop of an empty queue: %v, %v", got, err)
			}
			head := c.add(p.ring, p.mem.Out([]byte("abc")), p.mem.Out([]byte("de")), p.mem.In(1), p.mem.In(9))
			if p.queue.Empty() || p.queue.Available() != 1 {
				t.Error("the request is not seen as available")
			}
			p.serve(t)
			if u := p.take(t); u.Head != head || string(u.In) != "edcba" {
				t.Errorf("used head %d, %q; want %d, %q", u.Head, u.In, head, "edcba")
			}
			if !p.queue.Empty() {
				t.Error("queue not empty after its one request")
			}
		})
	}
}

// A direct descriptor may be followed by an indirect one, whose WRITE flag
// means nothing (section 2.7.5.3.2).
func TestIndirectAfterDirect(t *testing.T) {
	p := newPair(t, 8, allFeatures)
	a, b, in := p.mem.Out([]byte("ab")), p.mem.Out([]byte("cd")), p.mem.In(4)
	table := p.mem.Alloc(32, 16)
	p.mem.PutDesc(table, virtiotest.Desc{Addr: b.GPA, Len: b.Len, Flags: virtiotest.DescNext, Next: 1})
	p.mem.PutDesc(table+16, virtiotest.Desc{Addr: in.GPA, Len: in.Len, Flags: virtiotest.DescWrite})
	p.ring.SetDesc(0, virtiotest.Desc{Addr: a.GPA, Len: a.Len, Flags: virtiotest.DescNext, Next: 5})
	p.ring.SetDesc(5, virtiotest.Desc{Addr: table, Len: 32, Flags: virtiotest.DescIndirect | virtiotest.DescWrite})
	p.ring.Offer(0)
	c := p.pop(t)
	if got := bytes.Join(c.Readable, nil); string(got) != "abcd" || c.WritableLen() != 4 {
		t.Errorf("chain reads %q and holds %d, want \"abcd\" and 4", got, c.WritableLen())
	}
}

// The largest chain that is legal without indirection is the whole queue.
func TestChainAsLongAsTheQueue(t *testing.T) {
	p := newPair(t, 16, virtio.FeatureVersion1)
	bufs := make([]virtiotest.Buffer, 16)
	for i := range bufs {
		bufs[i] = p.mem.Out([]byte{byte(i)})
	}
	p.ring.Add(bufs...)
	if c := p.pop(t); c.ReadableLen() != 16 {
		t.Errorf("chain of 16 bytes has %d", c.ReadableLen())
	}
}

func TestEmptyBuffersAreNothing(t *testing.T) {
	p := newPair(t, 4, allFeatures)
	p.ring.SetDesc(0, virtiotest.Desc{Addr: 1 << 60})
	p.ring.Offer(0)
	if c := p.pop(t); len(c.Readable) != 0 || len(c.Writable) != 0 {
		t.Errorf("chain of nothing: %v", c)
	}
}

// Where a buffer lies in guest memory can be told apart from what is in it.
func TestWritableAt(t *testing.T) {
	p := newPair(t, 8, allFeatures)
	out, a, b := p.mem.Out([]byte("ab")), p.mem.In(4), p.mem.In(8)
	for range 2 {
		p.ring.AddIndirect(out, a, virtiotest.Buffer{GPA: 0, Writable: true}, b)
		c := p.pop(t)
		if want := []uint64{a.GPA, b.GPA}; !slices.Equal(c.WritableAt, want) || len(c.Writable) != len(want) {
			t.Errorf("%d writable buffers at %#x, want those at %#x", len(c.Writable), c.WritableAt, want)
		}
		if err := p.queue.Push(c.Head, 0); err != nil {
			t.Fatal(err)
		}
		p.take(t)
	}
}

// Indices are 16 bits wide and wrap independently of the size of the ring.
func TestIndicesWrap(t *testing.T) {
	for _, size := range []int{1, 2, 8, 256} {
		for _, features := range []uint64{virtio.FeatureVersion1, allFeatures} {
			t.Run(fmt.Sprintf("size %d features %#x", size, features), func(t *testing.T) {
				p := newPair(t, size, features|virtio.FeatureIndirectDesc)
				out, in := p.mem.Out([]byte{1, 2}), p.mem.In(2)
				table := p.mem.Alloc(32, 16)
				p.mem.PutDesc(table, virtiotest.Desc{Addr: out.GPA, Len: 2, Flags: virtiotest.DescNext, Next: 1})
				p.mem.PutDesc(table+16, virtiotest.Desc{Addr: in.GPA, Len: 2, Flags: virtiotest.DescWrite})
				for i := range uint16(size) {
					p.ring.SetDesc(i, virtiotest.Desc{Addr: table, Len: 32, Flags: virtiotest.DescIndirect})
				}
				interrupts := 0
				for i := range 70000 {
					p.ring.Offer(uint16(i % size))
					if !p.ring.NeedsNotify() {
						t.Fatalf("request %d: the device wants no notification", i)
					}
					p.serve(t)
					if p.queue.NeedInterrupt() {
						interrupts++
					}
					if got := p.ring.UsedIdx(); got != uint16(i+1) {
						t.Fatalf("request %d: used.idx %d", i, got)
					}
					p.ring.SetUsedEvent(uint16(i + 1))
					p.queue.SetNotify(true)
				}
				if interrupts != 70000 {
					t.Errorf("%d interrupts for 70000 requests", interrupts)
				}
			})
		}
	}
}

// Rings may sit anywhere that their alignment allows, up to the end of RAM.
func TestOddPlacesOfRings(t *testing.T) {
	mem := virtiotest.NewMemory(3 * 4096)
	size := uint64(mem.Size())
	for _, n := range []uint16{1, 2, 4} {
		for _, avail := range []uint64{0x1002, 0x1004, size - 6 - 2*uint64(n)} {
			st := virtio.QueueState{
				MaxSize: n, Size: n, Desc: 0x1100, Avail: avail,
				Used: 0x1200, SignalledUsedValid: true,
			}
			q, err := virtio.NewQueue(mem, st, allFeatures)
			if err != nil {
				t.Fatal(err)
			}
			mem.PutDesc(st.Desc, virtiotest.Desc{Addr: 0x1300, Len: 5})
			ring := mem.RAM()[avail:][:6+2*n]
			clear(ring)
			copy(mem.RAM()[st.Used:], make([]byte, 64))
			ring[2] = 1 // idx; entry 0 is head 0
			c, err := q.Pop()
			if err != nil || c == nil || c.ReadableLen() != 5 {
				t.Fatalf("size %d, available ring at %#x: Pop: %v, %v", n, avail, c, err)
			}
			if err := q.Push(c.Head, 0); err != nil {
				t.Fatal(err)
			}
			if !q.NeedInterrupt() {
				t.Errorf("size %d, available ring at %#x: used_event 0 not crossed", n, avail)
			}
			ring[4+2*n] = 7 // used_event
			ring[2] = 2
			if c, err = q.Pop(); err != nil || c == nil {
				t.Fatalf("second Pop: %v, %v", c, err)
			}
			if err := q.Push(c.Head, 0); err != nil {
				t.Fatal(err)
			}
			if q.NeedInterrupt() {
				t.Errorf("size %d, available ring at %#x: used_event 7 crossed", n, avail)
			}
		}
	}
}

// What lies behind the used ring belongs to the guest.
func TestAvailEventLeavesItsNeighbourAlone(t *testing.T) {
	p := newPair(t, 8, allFeatures)
	at := p.ring.State().Used + 4 + 8*8
	p.mem.Scribble(at+2, []byte{0xab, 0xcd})
	for i := range 70000 {
		p.ring.Add(p.mem.RAMBuffer(0x1000, 1))
		c := p.pop(t)
		p.push(t, c.Head, 0)
		p.take(t)
		p.queue.SetNotify(true)
		want := []byte{byte(i + 1), byte((i + 1) >> 8), 0xab, 0xcd}
		if got := p.mem.RAM()[at:][:4]; !bytes.Equal(got, want) {
			t.Fatalf("after %d requests: % x, want % x", i+1, got, want)
		}
	}
}

func TestUndo(t *testing.T) {
	p := newPair(t, 8, allFeatures)
	a, b := p.ring.Add(p.mem.Out([]byte("a"))), p.ring.Add(p.mem.Out([]byte("b")))
	p.queue.Undo() // nothing popped: nothing happens
	p.pop(t)
	p.pop(t)
	p.queue.Undo()
	p.queue.Undo()
	p.queue.Undo()
	if p.queue.Available() != 2 {
		t.Fatalf("%d available after all was given back, want 2", p.queue.Available())
	}
	for _, want := range []uint16{a, b} {
		if c := p.pop(t); c.Head != want {
			t.Errorf("popped %d, want %d", c.Head, want)
		}
	}
}

func TestPushRefusesWhatWasNotPopped(t *testing.T) {
	p := newPair(t, 8, allFeatures)
	if err := p.queue.Push(0, 0); err == nil {
		t.Error("pushed with nothing in flight")
	}
	p.ring.Add(p.mem.In(1))
	p.pop(t)
	if err := p.queue.Push(8, 0); err == nil {
		t.Error("pushed head 8 of a queue of 8")
	}
	if got := p.ring.UsedIdx(); got != 0 {
		t.Errorf("used.idx %d after refused pushes", got)
	}
}

// complete answers n requests as one batch.
func (p *pair) complete(t testing.TB, n int) {
	t.Helper()
	for range n {
		p.ring.Add(p.mem.RAMBuffer(0x1000, 1))
		p.push(t, p.pop(t).Head, 0)
		p.take(t)
	}
}

func TestInterruptFlag(t *testing.T) {
	p := newPair(t, 8, virtio.FeatureVersion1)
	if p.queue.NeedInterrupt() {
		t.Error("interrupt for nothing")
	}
	p.complete(t, 1)
	if !p.queue.NeedInterrupt() {
		t.Error("no interrupt for a used buffer")
	}
	if p.queue.NeedInterrupt() {
		t.Error("second interrupt for the same buffer")
	}
	p.ring.SetInterrupts(false)
	p.complete(t, 1)
	if p.queue.NeedInterrupt() {
		t.Error("interrupt although the driver wants none")
	}
	p.ring.SetInterrupts(true)
	p.complete(t, 1)
	if !p.queue.NeedInterrupt() {
		t.Error("no interrupt after the driver wanted them again")
	}
}

func TestInterruptEvent(t *testing.T) {
	p := newPair(t, 8, allFeatures)
	p.ring.SetInterrupts(false) // so that taking does not move the event
	for _, c := range []struct {
		done  int    // requests completed so far
		batch int    // completed now
		event uint16 // used_event
		want  bool
	}{
		{0, 1, 0, true},    // crosses 0
		{1, 1, 0, false},   // already crossed
		{2, 1, 5, false},   // not reached
		{3, 2, 5, false},   // entries 3 and 4
		{5, 1, 5, true},    // entry 5
		{6, 4, 8, true},    // in the middle of a batch
		{10, 4, 9, false},  // just before the batch
		{14, 4, 18, false}, // just behind it
		{18, 0, 17, false}, // no batch at all
		{18, 1, 0xffff, false},
	} {
		p.ring.SetUsedEvent(c.event)
		p.complete(t, c.batch)
		if got := p.queue.NeedInterrupt(); got != c.want {
			t.Errorf("entries %d to %d with used_event %d: %v, want %v", c.done, c.done+c.batch, c.event, got, c.want)
		}
	}
}

// A device that does not ask for so long that the index comes around cannot
// tell any more whether the event was crossed.
func TestInterruptEventAfterAWholeTurn(t *testing.T) {
	p := newPair(t, 8, allFeatures)
	p.ring.SetInterrupts(false)
	p.ring.SetUsedEvent(0x8000)
	p.complete(t, 1<<16)
	if !p.queue.NeedInterrupt() {
		t.Error("no interrupt after 65536 requests")
	}
}

func TestNotifyFlag(t *testing.T) {
	p := newPair(t, 8, virtio.FeatureVersion1)
	p.queue.SetNotify(false)
	p.ring.Add(p.mem.In(1))
	if p.ring.NeedsNotify() {
		t.Error("driver would notify although the device wants none")
	}
	if !p.queue.SetNotify(true) {
		t.Error("SetNotify(true) missed the request that came without notification")
	}
	p.push(t, p.pop(t).Head, 0)
	if p.queue.SetNotify(true) {
		t.Error("SetNotify(true) sees a request where there is none")
	}
	p.ring.Add(p.mem.In(1))
	if !p.ring.NeedsNotify() {
		t.Error("driver would not notify")
	}
	if got := p.ring.UsedIdx(); got != 1 {
		t.Errorf("used.idx %d, want 1", got)
	}
}

func TestNotifyEvent(t *testing.T) {
	p := newPair(t, 8, allFeatures)
	p.ring.Add(p.mem.In(1))
	if !p.ring.NeedsNotify() {
		t.Error("driver would not notify for the first request of all")
	}
	p.queue.SetNotify(false)
	p.pop(t)
	p.ring.Add(p.mem.In(1))
	if p.ring.NeedsNotify() {
		t.Error("driver would notify although the device did not ask again")
	}
	if !p.queue.SetNotify(true) {
		t.Error("SetNotify(true) missed the request that came without notification")
	}
	p.pop(t)
	if p.queue.SetNotify(true) {
		t.Error("SetNotify(true) sees a request where there is none")
	}
	p.ring.Add(p.mem.In(1))
	if !p.ring.NeedsNotify() {
		t.Error("driver would not notify although the device asked")
	}
}

// A queue restored from its state goes on as if nothing had been, in the
// middle of a batch and with the driver's and its own wishes pending.
func TestStateSurvivesAtAnyPoint(t *testing.T) {
	for _, features := range []uint64{virtio.FeatureVersion1, allFeatures} {
		run := func(restore bool) (log []string) {
			p := newPair(t, 8, features)
			again := func() {
				if restore {
					p.reopen(t, p.queue.State())
				}
			}
			p.ring.SetInterrupts(false)
			for i := range 300 {
				p.ring.SetUsedEvent(uint16(i &^ 3))
				if i%4 == 0 { // and keep it that way for a while
					p.queue.SetNotify(i%8 == 0)
				}
				again()
				head := p.ring.Add(p.mem.RAMBuffer(0x1000, 1))
				again()
				c := p.pop(t)
				log = append(log, fmt.Sprint(c.Head == head, p.ring.NeedsNotify()))
				again()
				p.push(t, head, 0)
				again()
				if i%3 == 0 {
					log = append(log, fmt.Sprint(p.queue.NeedInterrupt()))
				}
				p.take(t)
			}
			return append(log, fmt.Sprintf("%+v", p.queue.State()))
		}
		if got, want := run(true), run(false); !slices.Equal(got, want) {
			t.Errorf("features %#x: a queue that is restored all the time behaves unlike one that is not", features)
		}
	}
}

func TestChainReadAtWriteAt(t *testing.T) {
	c := virtio.Chain{
		Readable: [][]byte{[]byte("abc"), {}, []byte("defg")},
		Writable: [][]byte{make([]byte, 2), make([]byte, 3)},
	}
	got, err := io.ReadAll(io.NewSectionReader(&c, 2, 100))
	if err != nil || string(got) != "cdefg" {
		t.Errorf("read %q, %v from offset 2", got, err)
	}
	if n, err := c.ReadAt(make([]byte, 1), 7); n != 0 || err != io.EOF {
		t.Errorf("read at the end: %d, %v", n, err)
	}
	if n, err := c.WriteAt([]byte("xyz"), 1); n != 3 || err != nil {
		t.Errorf("wrote %d, %v", n, err)
	}
	if n, err := c.WriteAt([]byte("123"), 4); n != 1 || err != io.ErrShortWrite {
		t.Errorf("wrote %d, %v past the end", n, err)
	}
	if got := bytes.Join(c.Writable, nil); string(got) != "\x00xyz1" {
		t.Errorf("written %q", got)
	}
	if _, err := c.ReadAt(nil, -1); err == nil {
		t.Error("read at a negative offset")
	}
	if _, err := c.WriteAt(nil, -1); err == nil {
		t.Error("wrote at a negative offset")
	}
}

func TestPopAndPushDoNotAllocate(t *testing.T) {
	p := newPair(t, 64, allFeatures)
	step := p.stepper(t)
	if n := testing.AllocsPerRun(1000, step); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}
