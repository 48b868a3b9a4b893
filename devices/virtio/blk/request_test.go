package blk_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/forkvm/forkvm/devices/virtio/blk"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

func TestReadAndWrite(t *testing.T) {
	boot(t, blk.Config{}, func(t *testing.T, g *guest) {
		want := bytes.Repeat([]byte("forkvm! "), 3*sector/8)
		if status, n, _ := g.do(t, append(header(typeOut, 7), want...), 0); status != statusOK || n != 1 {
			t.Errorf("write: status %d, length %d", status, n)
		}
		if !bytes.Equal(g.disk.bytes[7*sector:10*sector], want) {
			t.Error("the disk has not what was written")
		}
		status, n, got := g.do(t, header(typeIn, 6), 5*sector)
		if status != statusOK || n != 5*sector+1 {
			t.Errorf("read: status %d, length %d", status, n)
		}
		if !bytes.Equal(got, g.disk.bytes[6*sector:11*sector]) {
			t.Error("what was read is not what the disk has")
		}
		if got, want := g.dev.Stats(), (blk.Stats{Reads: 1, Writes: 1, ReadBytes: 5 * sector, WrittenBytes: 3 * sector}); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
		rest := pattern(diskSectors * sector)
		copy(rest[7*sector:], want)
		if !bytes.Equal(g.disk.bytes, rest) {
			t.Error("other sectors have changed")
		}
	})
}

func TestIDIsPaddedWithZeros(t *testing.T) {
	for _, id := range []string{"", "disk 0", "exactly twenty bytes"} {
		boot(t, blk.Config{ID: id}, func(t *testing.T, g *guest) {
			want := make([]byte, 20)
			copy(want, id)
			if status, n, got := g.do(t, header(typeGetID, 0), 20); status != statusOK || n != 21 || !bytes.Equal(got, want) {
				t.Errorf("status %d, length %d, ID %q", status, n, got)
			}
			m := g.Mem
			if status, _, got := g.ask(t, m.Out(header(typeGetID, 0)), m.In(3), m.In(16), m.In(2)); status != statusOK || !bytes.Equal(got, want) {
				t.Errorf("in pieces: status %d, ID %q", status, got)
			}
		})
	}
}

func TestFlushDiscardAndZeroesReachTheBackend(t *testing.T) {
	boot(t, blk.Config{}, func(t *testing.T, g *guest) {
		for _, c := range []struct {
			name string
			out  []byte
			want []call
		}{
			{"flush", header(typeFlush, 0), []call{{kind: typeFlush}}},
			{"discard", slices.Concat(header(typeDiscard, 99), span(8, 16, 0), span(40, 8, 0)), []call{
				{kind: typeDiscard, off: 8 * sector, n: 16 * sector}, {kind: typeDiscard, off: 40 * sector, n: 8 * sector},
			}},
			{"discard to the end", append(header(typeDiscard, 0), span(0, diskSectors, 0)...), []call{
				{kind: typeDiscard, off: 0, n: diskSectors * sector},
			}},
			{"discard of nothing", append(header(typeDiscard, 0), span(diskSectors, 0, 0)...), nil},
			{"zeroes", slices.Concat(header(typeWriteZeroes, 0), span(1, 1, 0), span(3, 2, unmap)), []call{
				{typeWriteZeroes, 1 * sector, 1 * sector, false}, {typeWriteZeroes, 3 * sector, 2 * sector, true},
			}},
			{"most ranges", append(header(typeDiscard, 0), bytes.Repeat(span(5, 1, 0), 16)...),
				slices.Repeat([]call{{kind: typeDiscard, off: 5 * sector, n: sector}}, 16)},
		} {
			g.Mem.FreeAll()
			g.start(t, everything)
			copy(g.disk.bytes, pattern(len(g.disk.bytes)))
			if status, n, _ := g.do(t, c.out, 0); status != statusOK || n != 1 {
				t.Errorf("%s: status %d, length %d", c.name, status, n)
			}
			if got := g.disk.take(); !slices.Equal(got, c.want) {
				t.Errorf("%s: the backend was asked for %+v, want %+v", c.name, got, c.want)
			}
		}
		if got, want := g.dev.Stats(), (blk.Stats{Flushes: 1, Discards: 4, Zeroes: 1}); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	})
}

// A driver that cannot flush is not told of a write before it is durable.
func TestWithoutFlushEachWriteIsFlushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cold(t, blk.Config{})
		g.start(t, everything&^featureFlush)
		for _, c := range []struct {
			out  []byte
			in   int
			want []uint32
		}{
			{append(header(typeOut, 1), pattern(sector)...), 0, []uint32{typeOut, typeFlush}},
			{append(header(typeWriteZeroes, 0), span(1, 1, 0)...), 0, []uint32{typeWriteZeroes, typeFlush}},
			{append(header(typeDiscard, 0), span(1, 1, 0)...), 0, []uint32{typeDiscard, typeFlush}},
			{header(typeIn, 1), sector, []uint32{typeIn}},
		} {
			if status, _, _ := g.do(t, c.out, c.in); status != statusOK {
				t.Errorf("status %d", status)
			}
			var got []uint32
			for _, call := range g.disk.take() {
				got = append(got, call.kind)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("the backend was asked for %d, want %d", got, c.want)
			}
		}
		g.disk.hook = func(c call) error {
			if c.kind == typeFlush {
				return syscall.EIO
			}
			return nil
		}
		if status, _, _ := g.do(t, append(header(typeOut, 1), pattern(sector)...), 0); status != statusIOErr {
			t.Errorf("status %d of a write that is not durable", status)
		}
	})
}

func TestRequestsAgainstTheRules(t *testing.T) {
	const most = diskSectors
	data := func(kind uint32, at uint64, n int) []byte { return append(header(kind, at), pattern(n)...) }
	for _, c := range []struct {
		name   string
		out    []byte
		in     int
		status byte
	}{
		{"header too short", header(typeIn, 0)[:15], sector, statusIOErr},
		{"read of half a sector", header(typeIn, 0), sector / 2, statusIOErr},
		{"read of a sector and a byte", header(typeIn, 0), sector + 1, statusIOErr},
		{"read past the end", header(typeIn, most-1), 2 * sector, statusIOErr},
		{"read behind the end", header(typeIn, most), sector, statusIOErr},
		{"read of nothing behind the end", header(typeIn, most+1), 0, statusIOErr},
		{"read at an offset that overflows", header(typeIn, 1<<55), sector, statusIOErr},
		{"read at the last sector there can be", header(typeIn, math.MaxUint64), sector, statusIOErr},
		{"write of half a sector", data(typeOut, 0, sector/2), 0, statusIOErr},
		{"write past the end", data(typeOut, most-1, 2*sector), 0, statusIOErr},
		{"write at an offset that overflows", data(typeOut, 1<<55, sector), 0, statusIOErr},
		{"write at the last sector there can be", data(typeOut, math.MaxUint64, sector), 0, statusIOErr},
		{"ID in too little room", header(typeGetID, 0), 19, statusIOErr},
		{"ID in too much room", header(typeGetID, 0), 21, statusIOErr},
		{"discard without ranges", header(typeDiscard, 0), 0, statusIOErr},
		{"discard of half a range", append(header(typeDiscard, 0), span(0, 1, 0)[:8]...), 0, statusIOErr},
		{"discard of too many ranges", append(header(typeDiscard, 0), bytes.Repeat(span(0, 1, 0), 17)...), 0, statusIOErr},
		{"discard of too much", append(header(typeDiscard, 0), span(0, 1<<18+1, 0)...), 0, statusIOErr},
		{"discard past the end", append(header(typeDiscard, 0), span(most-1, 2, 0)...), 0, statusIOErr},
		{"discard that overflows", append(header(typeDiscard, 0), span(math.MaxUint64, 2, 0)...), 0, statusIOErr},
		{"discard good and bad", slices.Concat(header(typeDiscard, 0), span(0, 1, 0), span(most, 1, 0)), 0, statusIOErr},
		{"discard with unmap", append(header(typeDiscard, 0), span(0, 1, unmap)...), 0, statusUnsupp},
		{"discard with an unknown flag", append(header(typeDiscard, 0), span(0, 1, 1<<31)...), 0, statusUnsupp},
		{"zeroes without ranges", header(typeWriteZeroes, 0), 0, statusIOErr},
		{"zeroes in too many ranges", append(header(typeWriteZeroes, 0), bytes.Repeat(span(0, 1, 0), 17)...), 0, statusIOErr},
		{"zeroes of too much", append(header(typeWriteZeroes, 0), span(0, 1<<18+1, 0)...), 0, statusIOErr},
		{"zeroes past the end", append(header(typeWriteZeroes, 0), span(most, 1, 0)...), 0, statusIOErr},
		{"zeroes with an unknown flag", append(header(typeWriteZeroes, 0), span(0, 1, 2|unmap)...), 0, statusUnsupp},
		{"secure erase", append(header(14, 0), span(0, 1, 0)...), 0, statusUnsupp},
		{"lifetime", header(10, 0), 40, statusUnsupp},
		{"flush of the legacy kind", header(5, 0), 0, statusUnsupp},
		{"unknown type", header(0x80000000, 0), 0, statusUnsupp},
	} {
		t.Run(c.name, func(t *testing.T) {
			boot(t, blk.Config{}, func(t *testing.T, g *guest) {
				status, n, got := g.do(t, c.out, c.in)
				if status != c.status {
					t.Errorf("status %d, want %d", status, c.status)
				}
				if want := map[bool]uint32{true: 1, false: 0}[c.in == 0]; n != want {
					t.Errorf("length %d, want %d", n, want)
				}
				if !bytes.Equal(got, make([]byte, c.in)) {
					t.Error("data written to a request that was refused")
				}
				if calls := g.disk.take(); len(calls) != 0 {
					t.Errorf("the backend was asked for %+v", calls)
				}
				if got, want := g.dev.Stats(), (blk.Stats{Refused: 1}); got != want {
					t.Errorf("counted %+v, want %+v", got, want)
				}
				if status, _, _ := g.do(t, header(typeIn, 0), sector); status != statusOK {
					t.Errorf("status %d of a good read afterwards", status)
				}
			})
		})
	}
}

func TestNothingToReadOrWriteIsFine(t *testing.T) {
	boot(t, blk.Config{}, func(t *testing.T, g *guest) {
		for _, at := range []uint64{0, 5, diskSectors} {
			for _, kind := range []uint32{typeIn, typeOut} {
				if status, n, _ := g.do(t, header(kind, at), 0); status != statusOK || n != 1 {
					t.Errorf("type %d at %d: status %d, length %d", kind, at, status, n)
				}
			}
		}
		if calls := g.disk.take(); len(calls) != 0 {
			t.Errorf("the backend was asked for %+v", calls)
		}
	})
}

// A request whose end has no room for a status comes back unserved.
func TestRequestWithoutRoomForAStatus(t *testing.T) {
	boot(t, blk.Config{}, func(t *testing.T, g *guest) {
		p := g.add(0, g.Mem.Out(append(header(typeOut, 0), make([]byte, sector)...)))
		g.Kick(0)
		synctest.Wait()
		if _, n := g.answer(t, 0, p); n != 0 {
			t.Errorf("%d bytes written, of none", n)
		}
		if calls := g.disk.take(); len(calls) != 0 {
			t.Errorf("the backend was asked for %+v", calls)
		}
		if got, want := g.dev.Stats(), (blk.Stats{Refused: 1}); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	})
}

func TestReadOnlyRefusesChanges(t *testing.T) {
	boot(t, blk.Config{ReadOnly: true}, func(t *testing.T, g *guest) {
		for _, out := range [][]byte{
			append(header(typeOut, 0), make([]byte, sector)...),
			append(header(typeDiscard, 0), span(0, 1, 0)...),
			append(header(typeWriteZeroes, 0), span(0, 1, 0)...),
		} {
			if status, _, _ := g.do(t, out, 0); status != statusIOErr {
				t.Errorf("type %d: status %d, want an error", out[0], status)
			}
		}
		if calls := g.disk.take(); len(calls) != 0 {
			t.Errorf("the backend was asked for %+v", calls)
		}
		if status, _, got := g.do(t, header(typeIn, 1), sector); status != statusOK || !bytes.Equal(got, pattern(2 * sector)[sector:]) {
			t.Errorf("read: status %d", status)
		}
		if status, _, _ := g.do(t, header(typeFlush, 0), 0); status != statusOK {
			t.Errorf("flush: status %d", status)
		}
	})
}

// cut divides p into buffers of the sizes given and one of what is left.
func cut(p []byte, sizes []int, buffer func([]byte) virtiotest.Buffer) (bufs []virtiotest.Buffer) {
	for _, n := range sizes {
		n = min(n, len(p))
		if n > 0 {
			bufs = append(bufs, buffer(p[:n]))
		}
		p = p[n:]
	}
	if len(p) > 0 {
		bufs = append(bufs, buffer(p))
	}
	return bufs
}

// Where one buffer ends and the next begins means nothing.
func TestAnyLayout(t *testing.T) {
	layouts := [][]int{
		nil,                       // all in one
		{16},                      // header, rest
		{16, 2 * sector},          // header, data, status
		{1, 15},                   // header in two
		{8, 8, 1, sector},         // and data at odd places
		{15, 2, 3, sector - 1, 7}, // header and data share a buffer
		{20, 2*sector - 4},
		{2 * sector}, // status alone, if there is no header
		{2*sector - 1, 1},
		{sector, sector - 1}, // data shares a buffer with the status
		slices.Repeat([]int{37}, 40),
	}
	for i, out := range layouts {
		for j, in := range layouts {
			t.Run(fmt.Sprintf("%d-%d", i, j), func(t *testing.T) {
				boot(t, blk.Config{}, func(t *testing.T, g *guest) {
					ask := func(p []byte, room int) (byte, uint32, []byte) {
						t.Helper()
						writable := func(b []byte) virtiotest.Buffer { return g.Mem.In(len(b)) }
						return g.ask(t, slices.Concat(cut(p, out, g.Mem.Out), cut(make([]byte, room+1), in, writable))...)
					}
					want := bytes.Repeat([]byte("0123456789abcdef"), 2*sector/16)
					if status, n, _ := ask(append(header(typeOut, 3), want...), 0); status != statusOK || n != 1 {
						t.Errorf("write: status %d, length %d", status, n)
					}
					if !bytes.Equal(g.disk.bytes[3*sector:5*sector], want) {
						t.Error("the disk has not what was written")
					}
					if status, n, got := ask(header(typeIn, 3), 2*sector); status != statusOK || n != 2*sector+1 || !bytes.Equal(got, want) {
						t.Errorf("read: status %d, length %d", status, n)
					}
					if status, _, _ := ask(slices.Concat(header(typeDiscard, 0), span(3, 1, 0), span(4, 1, 0)), 0); status != statusOK {
						t.Errorf("discard: status %d", status)
					}
					if !bytes.Equal(g.disk.bytes[3*sector:5*sector], make([]byte, 2*sector)) {
						t.Error("the disk has what was discarded")
					}
				})
			})
		}
	}
}

// A backend that fails fails the request, and the device lives on.
func TestBackendFails(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
		boot(t, blk.Config{}, func(t *testing.T, g *guest) {
			g.disk.hook = func(call) error { return fmt.Errorf("disk: %w", errno) }
			for i, c := range []struct {
				out []byte
				in  int
			}{
				{header(typeIn, 0), sector},
				{append(header(typeOut, 0), make([]byte, sector)...), 0},
				{header(typeFlush, 0), 0},
				{append(header(typeDiscard, 0), span(0, 1, 0)...), 0},
				{append(header(typeWriteZeroes, 0), span(0, 1, 0)...), 0},
			} {
				if status, _, _ := g.do(t, c.out, c.in); status != statusIOErr {
					t.Errorf("type %d: status %d, want an error", c.out[0], status)
				}
				if got, want := g.dev.Stats(), (blk.Stats{Failed: uint64(i) + 1}); got != want {
					t.Errorf("counted %+v, want %+v", got, want)
				}
				if err := g.dev.Failure(); !errors.Is(err, errno) {
					t.Errorf("failure %v, want %v", err, errno)
				}
			}
			g.disk.hook = nil
			if status, _, _ := g.do(t, append(header(typeOut, 0), make([]byte, sector)...), 0); status != statusOK {
				t.Errorf("status %d once there is space", status)
			}
		})
	}
}

// A guest that turns a write of sector 1 into other requests while it is
// served gets one or the other.
func TestHeaderIsCopiedBeforeItIsBelieved(t *testing.T) {
	boot(t, blk.Config{}, func(t *testing.T, g *guest) {
		var at uint64
		g.disk.hook = func(c call) error {
			g.Mem.Scribble(at, header(typeOut, math.MaxUint64-1))
			return nil
		}
		out := g.Mem.Out(append(header(typeOut, 1), make([]byte, sector)...))
		at = out.GPA
		if status, _, _ := g.ask(t, out, g.Mem.In(1)); status != statusOK {
			t.Errorf("status %d", status)
		}
		ranges := g.Mem.Out(slices.Concat(header(typeDiscard, 0), span(0, 1, 0), span(2, 1, 0)))
		g.disk.take()
		g.disk.hook = func(c call) error {
			g.Mem.Scribble(ranges.GPA+headerSize, bytes.Repeat(span(1<<40, math.MaxUint32, 0), 2))
			return nil
		}
		if status, _, _ := g.ask(t, ranges, g.Mem.In(1)); status != statusOK {
			t.Errorf("status %d", status)
		}
		want := []call{{kind: typeDiscard, off: 0, n: sector}, {kind: typeDiscard, off: 2 * sector, n: sector}}
		if got := g.disk.take(); !slices.Equal(got, want) {
			t.Errorf("the backend was asked for %+v, want %+v", got, want)
		}
	})
}

const headerSize = 16
