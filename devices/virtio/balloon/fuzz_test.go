package balloon_test

import (
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// FuzzReleased has a driver name memory at will, in both ways. What is released
// is what it named, as Env promises, and none of the rings.
func FuzzReleased(f *testing.F) {
	f.Add([]byte{0, 0x20, 0x01, 0x20, 0x00, 0x40, 0x01, 0x20, 0x00}) // neighbours
	f.Add([]byte{0, 0x20, 0x01, 0x20, 0x00, 0x30, 0x01, 0x20, 0x00}) // overlap
	f.Add([]byte{1, 0x30, 0x01, 0x10, 0x00, 0x20, 0x01, 0x10, 0x00, 0x20, 0x01, 0x01, 0x00})
	f.Add([]byte{0, 0x00, 0x00, 0x40, 0x00}) // the rings
	f.Add([]byte{2, 0x20, 0x01, 0x10, 0x80, 0x28, 0x01, 0x10, 0x00})
	f.Add([]byte{1, 0xf0, 0x01, 0x40, 0x00})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		synctest.Test(t, func(t *testing.T) { release(t, data[0], data[1:]) })
	})
}

// release makes one request of pieces, 4 bytes of the program each: where it
// begins, in pages, and how long it is, in pages or, with the highest bit set,
// in bytes.
func release(t *testing.T, how byte, program []byte) {
	const ram = 2 * mib
	g := cold(t, ram)
	if err := g.Start(everything); err != nil {
		t.Fatal(err)
	}
	named := make(map[uint64]bool) // by page
	var bufs []virtiotest.Buffer
	var pfns []uint32
	for ; len(program) >= 4 && len(bufs) < 32; program = program[4:] {
		at := uint64(binary.LittleEndian.Uint16(program)) % (ram / page)
		size := uint64(binary.LittleEndian.Uint16(program[2:])) % 0x80 * page
		if program[3]&0x80 != 0 {
			size /= page
		}
		size = min(size, ram-at*page)
		for p := at; p < at+size/page; p++ {
			named[p] = true
			pfns = append(pfns, uint32(p)|uint32(how&2)<<30)
		}
		bufs = append(bufs, g.Mem.RAMBuffer(at*page, int(size)))
	}
	switch {
	case len(bufs) == 0:
		return
	case how&1 == 0:
		g.send(t, reportQ, bufs...)
	default:
		g.send(t, inflateQ, g.pfns(pfns[:min(len(pfns), 2000)]...))
	}
	st := g.mmio.State().Queues
	for _, call := range g.host.calls {
		checkReleased(t, call, ram)
		for _, r := range call {
			if r.Size < 64*kib {
				t.Errorf("piece %x is too small", r)
			}
			for _, q := range st {
				for _, ring := range []uint64{q.Desc, q.Avail, q.Used} {
					if r.GPA <= ring && ring < r.End() {
						t.Errorf("piece %x has the ring at %#x in it", r, ring)
					}
				}
			}
			for p := r.GPA / page; p < r.End()/page; p++ {
				if !named[p] {
					t.Fatalf("page %#x was released and not named", p)
				}
			}
		}
	}
}
