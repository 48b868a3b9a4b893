package disk

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/snapshot"
)

func newDisk(t testing.TB, size int64, o Options) *Disk {
	t.Helper()
	base := snapshot.NewTable(size)
	defer base.Release()
	d := New(base, o)
	t.Cleanup(d.Close)
	return d
}

// fork freezes a disk and starts another from it.
func fork(t testing.TB, d *Disk) *Disk {
	t.Helper()
	table := freeze(t, d)
	defer table.Release()
	child := New(table, Options{Dir: d.dir})
	t.Cleanup(child.Close)
	return child
}

func freeze(t testing.TB, d *Disk) *snapshot.Table {
	t.Helper()
	f, err := d.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := f.Table()
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// pieces cuts p at random places, with empty pieces among them.
func pieces(r *rand.Rand, p []byte) (bufs [][]byte) {
	for len(p) > 0 {
		n := min(len(p), r.IntN(3000))
		bufs = append(bufs, p[:n:n])
		p = p[n:]
	}
	return append(bufs, nil)
}

// model is what a disk should hold.
type model struct {
	disk *Disk
	want []byte
}

func (m *model) compare(t *testing.T, r *rand.Rand) {
	t.Helper()
	got := bytes.Repeat([]byte{0xee}, len(m.want))
	if err := m.disk.ReadAt(pieces(r, got), 0); err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if got[i] != m.want[i] {
			t.Fatalf("byte %#x is %#x, want %#x", i, got[i], m.want[i])
		}
	}
}

// step does something at random.
func (m *model) step(t *testing.T, r *rand.Rand) {
	t.Helper()
	size := int64(len(m.want))
	off := r.Int64N(size/512) * 512
	n := min(r.Int64N(64)*512, size-off)
	var err error
	switch r.IntN(6) {
	case 0, 1, 2:
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		copy(m.want[off:], p)
		done := r.IntN(2) == 0 && n > 0
		if done {
			done, err = m.disk.TryWriteAt(pieces(r, p), off)
		}
		if !done {
			err = m.disk.WriteAt(pieces(r, p), off)
		}
	case 3:
		clear(m.want[off : off+n])
		err = m.disk.Discard(off, n)
	case 4:
		n = min(n*8, size-off)
		clear(m.want[off : off+n])
		err = m.disk.WriteZeroes(off, n, r.IntN(2) == 0)
	case 5:
		p := make([]byte, n)
		done := r.IntN(2) == 0 && n > 0
		if done {
			done, err = m.disk.TryReadAt(pieces(r, p), off)
		}
		if !done {
			err = m.disk.ReadAt(pieces(r, p), off)
		}
		if !bytes.Equal(p, m.want[off:off+n]) {
			t.Fatalf("%d bytes at %#x differ", n, off)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestAgainstModel writes to several disks that are forked from each other, and
// to as many slices of bytes.
func TestAgainstModel(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		for seed := range uint64(8) {
			t.Run(fmt.Sprintf("%t/%d", dir == "", seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 1))
				const size = 1 << 20
				all := []*model{{newDisk(t, size, Options{Dir: dir}), make([]byte, size)}}
				for range 400 {
					m := all[r.IntN(len(all))]
					m.step(t, r)
					if len(all) < 12 && r.IntN(20) == 0 {
						all = append(all, &model{fork(t, m.disk), bytes.Clone(m.want)})
					}
				}
				for _, m := range all {
					m.compare(t, r)
				}
			})
		}
	}
}

// TestSectorsOfOnePage writes the sectors of pages that are below, each by
// another goroutine, along with whole pages, while the disk is frozen time and
// again. No sector gets lost.
func TestSectorsOfOnePage(t *testing.T) {
	const pages, sectors = 16, pageSize / 512
	parent := newDisk(t, pages*pageSize, Options{})
	for round := range 20 {
		if err := parent.WriteAt([][]byte{bytes.Repeat([]byte{0xff}, pages*pageSize)}, 0); err != nil {
			t.Fatal(err)
		}
		d := fork(t, parent)
		var wg sync.WaitGroup
		for s := range sectors {
			wg.Go(func() {
				for page := range pages {
					p := bytes.Repeat([]byte{byte(s + 1)}, 512)
					if err := d.WriteAt([][]byte{p}, int64(page*pageSize+s*512)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for range 5 {
			freeze(t, d).Release()
		}
		wg.Wait()
		got := make([]byte, pages*pageSize)
		if err := d.ReadAt([][]byte{got}, 0); err != nil {
			t.Fatal(err)
		}
		for i, b := range got {
			if want := byte(i/512%sectors + 1); b != want {
				t.Fatalf("round %d: byte %#x is %#x, want %#x", round, i, b, want)
			}
		}
	}
}

// TestFrozenStaysWhatItWas: neither who goes on nor who comes after changes it.
func TestFrozenStaysWhatItWas(t *testing.T) {
	d := newDisk(t, 1<<20, Options{})
	write := func(d *Disk, off int64, b byte) {
		t.Helper()
		if err := d.WriteAt([][]byte{bytes.Repeat([]byte{b}, 512)}, off); err != nil {
			t.Fatal(err)
		}
	}
	write(d, 4096, 1)
	table := freeze(t, d)
	defer table.Release()
	write(d, 4096, 2)
	child := New(table, Options{})
	write(child, 4608, 3)
	child.Close()
	d.Close()
	got := make([]byte, 4096)
	if err := table.ReadAt(got, 4096); err != nil {
		t.Fatal(err)
	}
	want := append(bytes.Repeat([]byte{1}, 512), make([]byte, 4096-512)...)
	if !bytes.Equal(got, want) {
		t.Error("it has changed")
	}
}

// TestFreezeOfNothingWritten makes no layer: the table is the same.
func TestFreezeOfNothingWritten(t *testing.T) {
	d := newDisk(t, 1<<20, Options{})
	if err := d.WriteAt([][]byte{{1}}, 0); err != nil {
		t.Fatal(err)
	}
	first, second := freeze(t, d), freeze(t, d)
	defer first.Release()
	defer second.Release()
	if first != second {
		t.Error("another table")
	}
}

// TestSpaceOfAFork: a fresh fork has nothing, one that wrote has that, and what
// it discards is free again.
func TestSpaceOfAFork(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		parent := newDisk(t, 64<<20, Options{Dir: dir})
		if err := parent.WriteAt([][]byte{bytes.Repeat([]byte{1}, 8<<20)}, 0); err != nil {
			t.Fatal(err)
		}
		child := fork(t, parent)
		check := func(what string, low, high int64) {
			t.Helper()
			switch n, _, err := child.Usage(); {
			case err != nil:
				t.Fatal(err)
			case n < low || n > high:
				t.Errorf("%s: %d bytes, want %d to %d", what, n, low, high)
			}
		}
		check("fresh", 0, 0)
		if err := child.WriteAt([][]byte{bytes.Repeat([]byte{2}, 1<<20)}, 4096); err != nil {
			t.Fatal(err)
		}
		check("1 MiB written", 1<<20, 1<<20+256<<10)
		if err := child.Discard(0, 4<<20); err != nil {
			t.Fatal(err)
		}
		check("discarded", 0, 256<<10)
		if err := child.Discard(16<<20, 48<<20); err != nil {
			t.Fatal(err)
		}
		table := freeze(t, child)
		defer table.Release()
		if got := table.Stored(); got != 4<<20 {
			t.Errorf("%d bytes left in layers, want %d", got, 4<<20)
		}
	}
}

// withBounds has other bounds for one test.
func withBounds(t *testing.T, extents, layers int, slack int64) {
	old := bounds
	bounds.extents, bounds.layers, bounds.slack = extents, layers, slack
	t.Cleanup(func() { bounds = old })
}

// TestManyPieces scatters writes until a table would be too long, and freezes
// so often that there would be too many layers.
func TestManyPieces(t *testing.T) {
	const extents, layers, pages = 400, 16, 16 << 20 / pageSize
	withBounds(t, extents, layers, 1<<20)
	d := newDisk(t, pages*pageSize, Options{})
	want := make([]byte, pages)
	write := func(page int64) {
		t.Helper()
		want[page] = byte(page%251 + 1)
		if err := d.WriteAt([][]byte{bytes.Repeat(want[page:page+1], pageSize)}, page*pageSize); err != nil {
			t.Fatal(err)
		}
	}
	for page := int64(0); page < 2*(extents+100); page += 2 {
		write(page)
	}
	table := freeze(t, d)
	if n := len(table.Extents()); n > extents {
		t.Errorf("%d extents, want at most %d", n, extents)
	}
	table.Release()
	for k := range int64(4 * layers) {
		write(pages - 2 - 3*k)
		freeze(t, d).Release()
	}
	end := freeze(t, d)
	defer end.Release()
	if n := len(bytesOf(end)); n > layers {
		t.Errorf("%d layers, want at most %d", n, layers)
	}
	p := make([]byte, pageSize)
	for page := range int64(pages) {
		if err := d.ReadAt([][]byte{p}, page*pageSize); err != nil {
			t.Fatal(err)
		}
		if p[0] != want[page] || p[pageSize-1] != want[page] {
			t.Fatalf("page %d has %d, want %d", page, p[0], want[page])
		}
	}
}

// TestLittleIsCopied scatters writes, and discards, over a disk that is full:
// what has to be copied for a shorter table stays in proportion.
func TestLittleIsCopied(t *testing.T) {
	const pages, n = 64 << 20 / pageSize, 1000
	withBounds(t, 500, 16, 1<<20)
	parent := newDisk(t, pages*pageSize, Options{})
	if err := parent.WriteAt([][]byte{bytes.Repeat([]byte{1}, pages*pageSize)}, 0); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(d *Disk, off int64) error{
		"writes":   func(d *Disk, off int64) error { return d.WriteAt([][]byte{make([]byte, pageSize)}, off) },
		"discards": func(d *Disk, off int64) error { return d.Discard(off, pageSize) },
	} {
		d := fork(t, parent)
		for i := range int64(n) {
			if err := change(d, i*(pages/n)*pageSize); err != nil {
				t.Fatal(err)
			}
		}
		table := freeze(t, d)
		defer table.Release()
		shared := freeze(t, parent)
		defer shared.Release()
		for l := range bytesOf(table) {
			if _, ok := bytesOf(shared)[l]; ok {
				continue
			}
			var st unix.Stat_t
			if err := unix.Fstat(l.FD(), &st); err != nil {
				t.Fatal(err)
			}
			if got, most := st.Blocks*512, int64(2*n*pageSize+2<<20); got > most {
				t.Errorf("%s: %d KiB in a layer, want at most %d", name, got>>10, most>>10)
			}
		}
	}
}

// TestFailedWriteIsNotForgotten: what a write leaves that fails half way, in a
// page that was discarded, does not change by a freeze.
func TestFailedWriteIsNotForgotten(t *testing.T) {
	d := newDisk(t, 1<<20, Options{})
	if err := d.WriteAt([][]byte{{1}}, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Discard(0, 2*pageSize); err != nil {
		t.Fatal(err)
	}
	bad, err := unix.Mmap(-1, 0, pageSize, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(bad)
	if err := d.WriteAt([][]byte{bytes.Repeat([]byte{9}, pageSize), bad}, 0); err == nil {
		t.Fatal("the write did not fail")
	}
	before, after := make([]byte, 2*pageSize), make([]byte, 2*pageSize)
	if err := d.ReadAt([][]byte{before}, 0); err != nil {
		t.Fatal(err)
	}
	freeze(t, d).Release()
	if err := d.ReadAt([][]byte{after}, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Errorf("it was %d and is %d", before[0], after[0])
	}
}

func TestOutside(t *testing.T) {
	d := newDisk(t, 1<<20, Options{})
	for _, off := range []int64{-512, 1 << 20, 1<<20 - 511, 1<<63 - 512} {
		for name, err := range map[string]error{
			"read":    d.ReadAt([][]byte{make([]byte, 512)}, off),
			"write":   d.WriteAt([][]byte{make([]byte, 512)}, off),
			"discard": d.Discard(off, 512),
			"zeroes":  d.WriteZeroes(off, 1<<62, true),
		} {
			if err == nil {
				t.Errorf("%s at %d: no error", name, off)
			}
		}
	}
	d.Close()
	d.Close()
	for name, err := range map[string]error{
		"read":    d.ReadAt([][]byte{make([]byte, 512)}, 0),
		"write":   d.WriteAt([][]byte{make([]byte, 512)}, 0),
		"discard": d.Discard(0, 4096),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s of a closed disk: %v", name, err)
		}
	}
	if _, err := d.Freeze(); !errors.Is(err, ErrClosed) {
		t.Errorf("freeze of a closed disk: %v", err)
	}
}

// TestDirectoryThatIsNone fails the write and leaves the disk readable.
func TestDirectoryThatIsNone(t *testing.T) {
	d := newDisk(t, 1<<20, Options{Dir: t.TempDir() + "/none"})
	if err := d.WriteAt([][]byte{{1}}, 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("write: %v", err)
	}
	if err := d.ReadAt([][]byte{make([]byte, 10)}, 0); err != nil {
		t.Error(err)
	}
}

// TestNothingIsLeft: descriptors go with the disks and tables that need them.
func TestNothingIsLeft(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := count()
	for range 50 {
		base := snapshot.NewTable(1 << 20)
		d := New(base, Options{})
		base.Release()
		for range 3 {
			if err := d.WriteAt([][]byte{make([]byte, 700)}, 100); err != nil {
				t.Fatal(err)
			}
			f, err := d.Freeze()
			if err != nil {
				t.Fatal(err)
			}
			f.Close() // and never looked at
		}
		if err := d.WriteAt([][]byte{make([]byte, 700)}, 100); err != nil {
			t.Fatal(err)
		}
		d.Close()
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}
