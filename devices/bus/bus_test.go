package bus

import (
	"bytes"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
)

// recorder answers reads with its id and remembers the last write.
type recorder struct {
	id      byte
	lastOff atomic.Uint64
	lastLen atomic.Int64
	reads   atomic.Uint64
	writes  atomic.Uint64
}

func (r *recorder) Read(off uint64, p []byte) {
	r.lastOff.Store(off)
	r.reads.Add(1)
	for i := range p {
		p[i] = r.id
	}
}

func (r *recorder) Write(off uint64, p []byte) {
	r.lastOff.Store(off)
	r.lastLen.Store(int64(len(p)))
	r.writes.Add(1)
}

func TestInsertRefusesBadRanges(t *testing.T) {
	var b Bus
	if err := b.Insert(0x1000, 0x100, &recorder{}); err != nil {
		t.Fatal(err)
	}
	if err := b.Insert(0x2000, 0x100, &recorder{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name         string
		base, length uint64
		d            Device
		want         error
	}{
		{"zero length", 0x3000, 0, &recorder{}, ErrRange},
		{"wrap", math.MaxUint64, 2, &recorder{}, ErrRange},
		{"up to the top", 1, math.MaxUint64, &recorder{}, ErrOverlap},
		{"same", 0x1000, 0x100, &recorder{}, ErrOverlap},
		{"head", 0xfff, 2, &recorder{}, ErrOverlap},
		{"tail", 0x10ff, 1, &recorder{}, ErrOverlap},
		{"inside", 0x1010, 1, &recorder{}, ErrOverlap},
		{"around", 0x800, 0x2000, &recorder{}, ErrOverlap},
		{"bridge to the next", 0x1100, 0xf01, &recorder{}, ErrOverlap},
		{"nil device", 0x3000, 1, nil, ErrNoDevice},
	} {
		err := b.Insert(c.base, c.length, c.d)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: Insert(%#x, %#x) = %v, want %v", c.name, c.base, c.length, err, c.want)
		}
	}
	// A refused device is not on the bus, and neighbours may touch.
	if b.Read(0x3000, make([]byte, 1)) {
		t.Error("a refused device answers")
	}
	if err := b.Insert(0x1100, 0xf00, &recorder{}); err != nil {
		t.Errorf("filling the gap exactly: %v", err)
	}
}

func TestDispatch(t *testing.T) {
	var b Bus
	low, mid, top := &recorder{id: 1}, &recorder{id: 2}, &recorder{id: 3}
	// Out of order, adjacent, and at both ends of the address space.
	for _, e := range []struct {
		base, length uint64
		d            Device
	}{{0x10, 8, mid}, {math.MaxUint64 - 3, 4, top}, {0, 0x10, low}} {
		if err := b.Insert(e.base, e.length, e.d); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		addr    uint64
		n       int
		want    *recorder
		wantOff uint64
	}{
		{0, 1, low, 0},
		{0xf, 1, low, 0xf},
		{0xc, 4, low, 0xc},
		{0xd, 4, nil, 0}, // straddles low and mid
		{0x10, 8, mid, 0},
		{0x10, 9, nil, 0},
		{0x17, 1, mid, 7},
		{0x17, 2, nil, 0}, // straddles the end
		{0x18, 1, nil, 0},
		{math.MaxUint64, 1, top, 3},
		{math.MaxUint64 - 3, 4, top, 0},
		{math.MaxUint64, 2, nil, 0}, // wraps
		{0, 0, nil, 0},
	} {
		p := bytes.Repeat([]byte{0xaa}, c.n)
		got := b.Read(c.addr, p)
		if got != (c.want != nil) {
			t.Errorf("Read(%#x, %d bytes) = %v", c.addr, c.n, got)
			continue
		}
		fill := byte(0xff)
		if c.want != nil {
			fill = c.want.id
			if off := c.want.lastOff.Load(); off != c.wantOff {
				t.Errorf("Read(%#x): device saw offset %#x, want %#x", c.addr, off, c.wantOff)
			}
		}
		if !bytes.Equal(p, bytes.Repeat([]byte{fill}, c.n)) {
			t.Errorf("Read(%#x, %d bytes) gave % x, want all %#x", c.addr, c.n, p, fill)
		}
		if got := b.Write(c.addr, p); got != (c.want != nil) {
			t.Errorf("Write(%#x, %d bytes) = %v", c.addr, c.n, got)
		}
		if c.want != nil && c.want.lastLen.Load() != int64(c.n) {
			t.Errorf("Write(%#x): device saw %d bytes, want %d", c.addr, c.want.lastLen.Load(), c.n)
		}
	}
	if r, w := b.Unmatched(); r != 6 || w != 6 {
		t.Errorf("Unmatched() = %d, %d, want 6, 6", r, w)
	}
}

func TestEmptyBus(t *testing.T) {
	var b Bus
	p := []byte{1, 2}
	if b.Read(0, p) || !bytes.Equal(p, []byte{0xff, 0xff}) {
		t.Errorf("read of an empty bus: % x", p)
	}
	if b.Write(0, p) {
		t.Error("write to an empty bus was taken")
	}
}

func TestNoAllocation(t *testing.T) {
	var b Bus
	for i := range uint64(32) {
		if err := b.Insert(i*0x1000, 0x200, &recorder{}); err != nil {
			t.Fatal(err)
		}
	}
	p := make([]byte, 4)
	addr := uint64(0)
	if n := testing.AllocsPerRun(1000, func() {
		addr = (addr + 0x1100) % 0x20000 // hits, misses and changes of device
		b.Read(addr, p)
		b.Write(addr, p)
	}); n != 0 {
		t.Errorf("%v allocations an access", n)
	}
}

func TestConcurrentAccess(t *testing.T) {
	var b Bus
	devs := make([]*recorder, 8)
	for i := range devs {
		devs[i] = &recorder{id: byte(i)}
		if err := b.Insert(uint64(i)*0x100, 0x100, devs[i]); err != nil {
			t.Fatal(err)
		}
	}
	const each = 2000
	var wg sync.WaitGroup
	for i := range devs {
		wg.Go(func() {
			p := make([]byte, 2)
			for j := range each {
				k := (i + j) % len(devs)
				if !b.Read(uint64(k)*0x100+0x10, p) || p[0] != byte(k) {
					t.Errorf("device %d answered for %d", p[0], k)
					return
				}
				b.Write(0x10000, p)
			}
		})
	}
	wg.Wait()
	var total uint64
	for _, d := range devs {
		total += d.reads.Load()
	}
	if total != each*uint64(len(devs)) {
		t.Errorf("%d reads arrived, want %d", total, each*len(devs))
	}
	if _, w := b.Unmatched(); w != each*uint64(len(devs)) {
		t.Errorf("%d unmatched writes counted", w)
	}
}

// FuzzDispatch compares the bus with a map from every address to its device.
func FuzzDispatch(f *testing.F) {
	f.Add([]byte{0, 8, 8, 8, 20, 4}, uint16(6), uint8(4))
	f.Add([]byte{250, 6, 0, 1}, uint16(255), uint8(1))
	f.Fuzz(func(t *testing.T, ranges []byte, addr uint16, n uint8) {
		var b Bus
		owner := map[uint64]*recorder{}
		for i := 0; i+1 < len(ranges) && i < 64; i += 2 {
			base, length := uint64(ranges[i]), uint64(ranges[i+1])
			d := &recorder{id: byte(i)}
			free := length > 0
			for a := base; a < base+length; a++ {
				free = free && owner[a] == nil
			}
			if err := b.Insert(base, length, d); (err == nil) != free {
				t.Fatalf("Insert(%d, %d) = %v, free %v", base, length, err, free)
			} else if err == nil {
				for a := base; a < base+length; a++ {
					owner[a] = d
				}
			}
		}
		want := owner[uint64(addr)]
		for i := range uint64(n) {
			if owner[uint64(addr)+i] != want {
				want = nil
			}
		}
		for range 2 { // the second time through the last-hit cache
			if got := b.Read(uint64(addr), make([]byte, n)); got != (want != nil && n > 0) {
				t.Fatalf("Read(%d, %d) = %v, want %v", addr, n, got, want != nil)
			}
		}
	})
}

func BenchmarkRead(b *testing.B) {
	var bus Bus
	for i := range uint64(16) {
		if err := bus.Insert(i*0x1000, 0x1000, &recorder{}); err != nil {
			b.Fatal(err)
		}
	}
	p := make([]byte, 4)
	b.ReportAllocs()
	for b.Loop() {
		bus.Read(0x5000, p)
	}
}
