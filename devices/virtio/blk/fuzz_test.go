package blk_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/forkvm/forkvm/devices/virtio/blk"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// strict is a backend that fails the test if it is asked for what [blk.Backend]
// says it never is.
func (d *disk) strict(t *testing.T) {
	d.hook = func(c call) error {
		if c.kind == typeFlush {
			return nil
		}
		if c.n <= 0 || c.n%sector != 0 || c.off%sector != 0 || c.off < 0 || c.off > d.Size()-c.n {
			t.Errorf("the backend was asked for %+v of %d bytes", c, d.Size())
		}
		return nil
	}
}

// FuzzRequests has a driver make requests of any bytes in any layout. Each is
// answered once, with a status that there is, and the backend is asked for
// nothing that is not there.
func FuzzRequests(f *testing.F) {
	one := func(cuts []byte, out []byte, in int) []byte {
		p := append([]byte{byte(len(cuts))}, cuts...)
		p = binary.LittleEndian.AppendUint16(p, uint16(len(out)))
		p = append(p, out...)
		return binary.LittleEndian.AppendUint16(p, uint16(in))
	}
	seeds := [][]byte{
		one(nil, header(typeIn, 1), sector+1),
		one([]byte{16}, header(typeIn, diskSectors-1), 2*sector+1),
		one([]byte{1, 15, 200}, append(header(typeOut, 1), pattern(sector)...), 1),
		one([]byte{3, 7}, header(typeFlush, 0), 1),
		one([]byte{20}, header(typeGetID, 0), 21),
		one([]byte{16, 4}, slices.Concat(header(typeDiscard, 0), span(0, 8, 0), span(9, 1, 0)), 1),
		one(nil, slices.Concat(header(typeWriteZeroes, 0), span(0, 8, unmap), span(9, 1, 0)), 1),
		one(nil, append(header(typeDiscard, 0), span(1<<60, 1<<20, 0)...), 1),
		one(nil, header(typeOut, 0), 0),
		one(nil, nil, 1),
		one(nil, header(typeFlush, 0), 100), // with room for what is never written
		one(nil, header(99, 0), 1),
	}
	for _, p := range seeds {
		f.Add(uint8(0), p)
	}
	f.Add(uint8(3), slices.Concat(seeds...))
	f.Add(uint8(4), slices.Concat(seeds...))
	f.Fuzz(func(t *testing.T, how uint8, program []byte) {
		synctest.Test(t, func(t *testing.T) { fuzzRequests(t, how, program) })
	})
}

func fuzzRequests(t *testing.T, how uint8, program []byte) {
	g := coldWith(t, blk.Config{ReadOnly: how&4 != 0}, 512<<10)
	g.disk.strict(t)
	before := bytes.Clone(g.disk.bytes)
	features := uint64(everything)
	if how&1 != 0 {
		features &^= featureFlush
	}
	g.start(t, features)
	take := func(n int) []byte {
		p := make([]byte, n)
		program = program[copy(p, program):]
		return p
	}
	waiting := make(map[uint16]pending)
	for len(program) > 0 && g.Mem.Free() > 1<<18 {
		cuts := take(int(take(1)[0] % 16))
		out := take(int(binary.LittleEndian.Uint16(take(2)) % 8192))
		in := make([]byte, binary.LittleEndian.Uint16(take(2))%8192)
		var sizes []int
		for _, c := range cuts {
			sizes = append(sizes, int(c))
		}
		bufs := slices.Concat(cut(out, sizes, g.Mem.Out),
			cut(in, sizes, func(b []byte) virtiotest.Buffer { return g.Mem.In(len(b)) }))
		if len(bufs) == 0 || len(bufs) > g.Rings[0].Free() {
			continue
		}
		p := g.add(0, bufs...)
		waiting[p.head] = p
		if how&2 != 0 && g.Rings[0].Free() > 32 {
			continue // several at a time
		}
		g.Kick(0)
		synctest.Wait()
		g.collect(t, waiting)
	}
	g.Kick(0)
	synctest.Wait()
	g.collect(t, waiting)
	if g.cfg.ReadOnly && !bytes.Equal(before, g.disk.bytes) {
		t.Error("a disk that is read-only has changed")
	}
}

// collect takes the answers to all that wait.
func (g *guest) collect(t *testing.T, waiting map[uint16]pending) {
	for {
		u, ok := g.Rings[0].Take() // panics at one that does not wait
		if !ok {
			break
		}
		p := waiting[u.Head]
		delete(waiting, u.Head)
		if p.status == 0 {
			continue // no room for one
		}
		if s := g.Mem.RAM()[p.status]; s > statusUnsupp {
			t.Errorf("status %d", s)
		} else if s == statusOK && u.Len == 0 && len(p.in) == 0 {
			t.Error("nothing written by a request that went well")
		}
	}
	if len(waiting) > 0 {
		t.Errorf("%d requests not answered", len(waiting))
	}
}

// ringAt is where the bytes of FuzzRing go, which is where rings are.
const ringAt = 4096

// FuzzRing has a device serve whatever a driver may have left in memory: the
// descriptors, the rings, and what they refer to.
func FuzzRing(f *testing.F) {
	for _, r := range []struct {
		out []byte
		in  int
	}{
		{header(typeIn, 1), sector},
		{append(header(typeOut, 1), pattern(sector)...), 0},
		{header(typeFlush, 0), 0},
		{header(typeGetID, 0), 20},
		{append(header(typeDiscard, 0), span(1, 1, 0)...), 0},
		{append(header(typeWriteZeroes, 0), span(1, 1, unmap)...), 0},
	} {
		mem := virtiotest.NewMemory(16 << 12)
		ring := virtiotest.NewRing(mem, 64, everything)
		ring.Add(mem.Out(r.out), mem.In(r.in+1))
		ring.AddIndirect(mem.Out(r.out), mem.In(r.in+1))
		f.Add(bytes.TrimRight(mem.RAM()[ringAt:], "\x00"))
	}
	f.Fuzz(func(t *testing.T, ram []byte) {
		synctest.Test(t, func(t *testing.T) {
			g := coldWith(t, blk.Config{}, 32<<12)
			g.disk.strict(t)
			g.start(t, everything)
			copy(g.Mem.RAM()[ringAt:], ram)
			g.dev.Notify(0)
			synctest.Wait()
			g.mmio.Quiesce()
			st := g.mmio.State().Queues[0]
			if st.NextAvail != st.NextUsed {
				t.Errorf("%d requests popped and %d pushed", st.NextAvail, st.NextUsed)
			}
			g.mmio.Resume()
			g.mmio.Reset()
			synctest.Wait()
			if got := serving(); got != 0 {
				t.Errorf("%d goroutines after a reset", got)
			}
		})
	})
}
