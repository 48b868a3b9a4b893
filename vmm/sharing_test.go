package vmm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"testing"

	"github.com/forkvm/forkvm/kvm/kvmtest"
	"github.com/forkvm/forkvm/snapshot"
)

// pageOf is a page of a layer.
type pageOf struct {
	layer *snapshot.Layer
	off   int64
}

// naive is what a memory has of layers, found out page by page.
func naive(t *testing.T, m *memory) map[pageOf]bool {
	t.Helper()
	f, err := pagemap()
	if err != nil {
		t.Fatal(err)
	}
	pages := map[pageOf]bool{}
	for at := int64(0); at < int64(len(m.ram)); at += pageSize {
		layer, off, _ := m.table.Locate(at)
		private, err := scan(f, m.ram[at:at+pageSize], pageIsFile, 0, 0)
		if err != nil {
			kvmtest.Skip(t, "PAGEMAP_SCAN: "+err.Error())
		}
		hole := slices.ContainsFunc(m.holes, func(r run) bool { return r.start <= at && at < r.end })
		if layer != nil && len(private) == 0 && !hole && isData(layer, off) {
			pages[pageOf{layer, off}] = true
		}
	}
	return pages
}

func isData(layer *snapshot.Layer, off int64) bool {
	return slices.ContainsFunc(layer.Data(), func(d snapshot.Range) bool { return d.Start <= off && off < d.End })
}

func inBoth(a, b map[pageOf]bool) (n int64) {
	for p := range a {
		if b[p] {
			n += pageSize
		}
	}
	return n
}

func sharingOf(t testing.TB, m *memory) *Sharing {
	t.Helper()
	s := &Sharing{MemorySize: int64(len(m.ram))}
	if err := m.shared(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	s.MemoryShared = s.memory.finish()
	return s
}

// TestSharingAgainstModel compares what a family of memories has in common, after
// writes, reads, releases, captures and resets in any order, with what a look at
// each page says; and that pages which two share are alike and not zeros.
func TestSharingAgainstModel(t *testing.T) {
	bothWays(t, func(t *testing.T, untracked bool) {
		const pages = 512
		r := rand.New(rand.NewSource(3))
		first := newMemory(t, pages*pageSize)
		first.untracked = untracked
		family := []*memory{first}
		for step := range 300 {
			m := family[r.Intn(len(family))]
			at := r.Intn(pages)
			n := 1 + r.Intn(min(20, pages-at))
			switch k := r.Intn(20); {
			case k < 10:
				for i := range n {
					m.ram[(at+i)*pageSize+r.Intn(pageSize)] = byte(r.Intn(3)) // often zero
				}
			case k < 13:
				_ = bytes.Count(m.ram[at*pageSize:(at+n)*pageSize], []byte{1})
			case k < 15:
				if err := giveBack(m, at, n); err != nil {
					t.Fatal(err)
				}
			case k < 18:
				c := capture(t, m)
				if len(family) < 6 {
					child := mapped(t, c.table)
					child.untracked = untracked
					family = append(family, child)
				}
				c.table.Release()
			case k < 19:
				if err := m.reset(); err != nil {
					t.Fatal(err)
				}
			}
			if step%10 == 9 {
				compareSharing(t, family)
			}
		}
	})
}

func compareSharing(t *testing.T, family []*memory) {
	t.Helper()
	var all []*Sharing
	var want []map[pageOf]bool
	for _, m := range family {
		m.settle()
		s, pages := sharingOf(t, m), naive(t, m)
		if s.MemoryShared != int64(len(pages))*pageSize {
			t.Fatalf("shared %d bytes, page by page %d", s.MemoryShared, len(pages)*pageSize)
		}
		if s.MemoryOwn+s.MemoryShared > s.MemorySize {
			t.Fatalf("%d own and %d shared of %d bytes", s.MemoryOwn, s.MemoryShared, s.MemorySize)
		}
		all, want = append(all, s), append(want, pages)
	}
	for i := range all {
		for j := range all {
			got := all[i].With(all[j]).Memory
			if got != inBoth(want[i], want[j]) {
				t.Fatalf("%d and %d have %d bytes in common, page by page %d", i, j, got, inBoth(want[i], want[j]))
			}
			if got > min(all[i].MemoryShared, all[j].MemoryShared) {
				t.Fatalf("%d and %d have %d bytes in common, of %d and %d", i, j, got, all[i].MemoryShared, all[j].MemoryShared)
			}
			for p := range want[i] {
				if want[j][p] && !bytes.Equal(family[i].ram[p.off:][:pageSize], family[j].ram[p.off:][:pageSize]) {
					t.Fatalf("page %d is not the same in %d and %d", p.off/pageSize, i, j)
				}
			}
		}
	}
}

// TestSharingFollowsWrites: two of one table have all of it in common, and less
// by what either writes, whether or not the other has written there too.
func TestSharingFollowsWrites(t *testing.T) {
	const pages = 40 << 8 // 40 MiB, but one page in 4 is zeros
	parent := newMemory(t, 4*pages*pageSize)
	for i := range pages {
		if i%4 != 0 {
			parent.ram[i*pageSize] = 1
		}
	}
	c := capture(t, parent)
	defer c.table.Release()
	a, b := mapped(t, c.table), mapped(t, c.table)
	want := int64(pages*3/4) * pageSize
	check := func() {
		t.Helper()
		if got := sharingOf(t, a).With(sharingOf(t, b)).Memory; got != want {
			t.Errorf("%d pages in common, want %d", got/pageSize, want/pageSize)
		}
	}
	check()
	for i := range 1000 {
		a.ram[(4*i+1)*pageSize]++
	}
	want -= 1000 * pageSize
	check()
	for i := 500; i < 1500; i++ {
		b.ram[(4*i+1)*pageSize]++
	}
	want -= 500 * pageSize
	check()
	_ = bytes.Count(b.ram, []byte{1}) // reading, also of zeros, changes nothing
	check()
	if got := sharingOf(t, a).With(sharingOf(t, layered(t, 1000))); got.Memory != 0 {
		t.Errorf("strangers have %d bytes in common", got.Memory)
	}
}

// TestResetForgetsOwn: what a reset throws away is no longer the machine's own,
// also where writes are tracked.
func TestResetForgetsOwn(t *testing.T) {
	bothWays(t, func(t *testing.T, untracked bool) {
		m := layered(t, 1024)
		m.untracked = untracked
		for i := range 300 {
			m.ram[i*pageSize]++
		}
		capture(t, m).table.Release()
		if err := m.reset(); err != nil {
			t.Fatal(err)
		}
		if s := sharingOf(t, m); s.MemoryOwn != 0 || s.MemoryShared != 1024*pageSize {
			t.Errorf("after a reset %d pages are its own and %d shared", s.MemoryOwn/pageSize, s.MemoryShared/pageSize)
		}
	})
}

// layerOf is a layer of pages that all have something in them.
func layerOf(t testing.TB, pages int64) *snapshot.Layer {
	t.Helper()
	w, err := snapshot.NewLayerWriter(pages * pageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.WriteAt(bytes.Repeat([]byte{1}, int(pages)*pageSize), 0); err != nil {
		t.Fatal(err)
	}
	layer, err := w.Seal()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(layer.Release)
	return layer
}

// TestPiecesAgainstModel compares tables of any kind, pages of layers in other
// places and twice among them, with a set of pages.
func TestPiecesAgainstModel(t *testing.T) {
	r := rand.New(rand.NewSource(5))
	layers := []*snapshot.Layer{layerOf(t, 128), layerOf(t, 64), layerOf(t, 128)}
	random := func() (p pieces, pages map[pageOf]bool) {
		pages = map[pageOf]bool{}
		var top []snapshot.Extent
		for at := int64(r.Intn(8)); at < 256; {
			layer := layers[r.Intn(len(layers))]
			off := r.Int63n(layer.Size() / pageSize)
			n := 1 + r.Int63n(min(16, layer.Size()/pageSize-off, 256-at))
			top = append(top, snapshot.Extent{Start: at * pageSize, Length: n * pageSize, Layer: layer, Offset: off * pageSize})
			at += n + int64(r.Intn(3))
		}
		zero := snapshot.NewTable(256 * pageSize)
		defer zero.Release()
		table, err := zero.Overlay(top)
		if err != nil {
			t.Fatal(err)
		}
		defer table.Release()
		hidden := make([]bool, 256)
		var runs []run
		for i := range hidden {
			if hidden[i] = r.Intn(4) == 0; hidden[i] {
				runs = appendRun(runs, run{int64(i) * pageSize, int64(i+1) * pageSize})
			}
		}
		half := run{0, 100 * pageSize}
		p.addTable(table, half, runs)
		p.addTable(table, run{half.end, 256 * pageSize}, runs)
		for i := range int64(256) {
			if layer, off, _ := table.Locate(i * pageSize); layer != nil && !hidden[i] {
				pages[pageOf{layer, off}] = true
			}
		}
		return p, pages
	}
	for range 500 {
		a, inA := random()
		b, inB := random()
		for _, c := range []struct {
			p     *pieces
			pages map[pageOf]bool
		}{{&a, inA}, {&b, inB}} {
			if got := c.p.finish(); got != int64(len(c.pages))*pageSize {
				t.Fatalf("%d bytes, page by page %d", got, len(c.pages)*pageSize)
			}
		}
		want := inBoth(inA, inB)
		if got, back := a.common(&b), b.common(&a); got != want || back != want {
			t.Fatalf("%d and %d bytes in common, page by page %d", got, back, want)
		}
	}
}

// TestScatteredWritesAreBounded: a guest that writes every other page is kept
// account of in so many pieces and no more, the longest, and never with more
// than it shares.
func TestScatteredWritesAreBounded(t *testing.T) {
	defer func(n int) { maxPieces = n }(maxPieces)
	maxPieces = 64
	m, other := layered(t, 1024), (*memory)(nil)
	c := capture(t, m)
	defer c.table.Release()
	m, other = mapped(t, c.table), mapped(t, c.table)
	for i := 0; i < 900; i += 2 {
		m.ram[i*pageSize]++
	}
	s := sharingOf(t, m)
	if s.MemoryOwn != 450*pageSize {
		t.Errorf("%d pages of its own, want 450", s.MemoryOwn/pageSize)
	}
	if want := int64(63+124) * pageSize; s.MemoryShared > want+pageSize || s.MemoryShared < want-pageSize || s.memory.n > maxPieces {
		t.Errorf("%d pages shared in %d pieces, want about %d in at most %d", s.MemoryShared/pageSize, s.memory.n, want/pageSize, maxPieces)
	}
	if got := s.With(sharingOf(t, other)).Memory; got != s.MemoryShared {
		t.Errorf("%d bytes in common with one that has all; it has %d", got, s.MemoryShared)
	}
}

// TestSharingAtAnyMoment asks for it while machines are captured, forked, reset,
// paused and closed.
func TestSharingAtAnyMoment(t *testing.T) {
	kvmtest.OpenOrSkip(t)
	parent := startMicro(t, guestCounter)
	children, err := parent.Fork(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, vm := range []*VM{parent, children[0], children[1]} {
		wg.Go(func() {
			for ctx.Err() == nil {
				s, err := vm.Sharing(ctx)
				if ctx.Err() != nil || errors.Is(err, ErrClosed) {
					return
				}
				if err != nil || s.MemoryOwn+s.MemoryShared > s.MemorySize {
					t.Errorf("%+v, %v", s, err)
					return
				}
			}
		})
	}
	for range 8 {
		forkAndClose(t, children[0], 2)
		if err := children[1].Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := parent.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		forkAndClose(t, parent, 1)
		if err := parent.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, vm := range children {
		closeVM(t, vm)
		if _, err := vm.Sharing(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("of a closed machine: %v", err)
		}
	}
	stop()
	wg.Wait()
}

// TestSharingWaitsForNobody: whoever has the machine's turn does not keep it.
func TestSharingWaitsForNobody(t *testing.T) {
	vm := startMicro(t, guestCounter)
	vm.turn.take()
	defer vm.turn.give()
	if s, err := vm.Sharing(t.Context()); err != nil || s.MemoryOwn == 0 || s.MemoryShared != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := vm.Disks(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := vm.Sharing(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// TestSharingOfLinux: children of one capture share nearly all they have; what
// one of them writes they share no more.
func TestSharingOfLinux(t *testing.T) {
	const wrote = 24 << 20
	parent := minimal.fork(t)
	output(t, parent, "sh", "-c", "head -c 33554432 /dev/urandom >/dev/shm/x 2>/dev/null || head -c 33554432 /dev/urandom >/tmp/x")
	children := forks(t, parent, 2)
	look := func(vm *VM) *Sharing {
		t.Helper()
		s, err := vm.Sharing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := look(children[0]), look(children[1])
	if a.MemorySize != children[0].cfg.Memory || a.MemoryOwn <= 0 || a.MemoryOwn > 24<<20 || a.MemoryShared < 40<<20 {
		t.Errorf("a fresh child: %+v", a)
	}
	before := a.With(b).Memory
	if lost := a.MemoryShared - before; before > a.MemoryShared || lost > 8<<20 {
		t.Errorf("children have %d MiB in common, of %d", before>>20, a.MemoryShared>>20)
	}
	output(t, children[0], "sh", "-c", "head -c 25165824 /dev/urandom >/dev/shm/y 2>/dev/null || head -c 25165824 /dev/urandom >/tmp/y")
	grown := look(children[0])
	if more := grown.MemoryOwn - a.MemoryOwn; more < wrote || more > wrote*3/2 {
		t.Errorf("it wrote %d bytes, and %d more are its own", wrote, more)
	}
	// What it overwrites in place is had in common no more.
	output(t, children[0], "sh", "-c", "f=/dev/shm/x; test -e $f || f=/tmp/x; dd if=/dev/urandom of=$f bs=1048576 count=24 conv=notrunc 2>/dev/null")
	after := look(children[0]).With(look(children[1])).Memory
	if fell := before - after; fell < wrote || fell > wrote*3/2 {
		t.Errorf("it wrote over %d MiB, and the figure fell by %d, from %d to %d", wrote>>20, fell>>20, before>>20, after>>20)
	}
	if with := look(parent).With(look(children[1])).Memory; with > look(parent).MemoryShared {
		t.Errorf("the parent has %d bytes in common with its child, of %d", with, look(parent).MemoryShared)
	}
}

// BenchmarkSharing looks at a child of 256 MiB to 4 GiB that has written in many
// places, and at what 100 such children have in common, pair by pair.
func BenchmarkSharing(b *testing.B) {
	for _, mib := range []int64{256, 4096} {
		b.Run(fmt.Sprintf("look-%dMiB", mib), func(b *testing.B) {
			m := scattered(b, mib<<20, 2000)
			for b.Loop() {
				sharingOf(b, m)
			}
			b.ReportMetric(float64(sharingOf(b, m).memory.n), "pieces")
		})
	}
	b.Run("pairs-of-100", func(b *testing.B) {
		m := scattered(b, 256<<20, 2000)
		all := make([]*Sharing, 100)
		for i := range all {
			all[i] = sharingOf(b, m)
		}
		for b.Loop() {
			for i := range all {
				for j := range i {
					all[i].With(all[j])
				}
			}
		}
	})
}

// scattered is a child of memory half of which was written, which itself has
// written n pages all over it and read the rest.
func scattered(b *testing.B, size int64, n int) *memory {
	b.Helper()
	table := snapshot.NewTable(size)
	parent := mapped(b, table)
	table.Release()
	for at := int64(0); at < size/2; at += pageSize {
		parent.ram[at] = 1
	}
	c := capture(b, parent)
	defer c.table.Release()
	m := mapped(b, c.table)
	_ = bytes.Count(m.ram[:size/2], []byte{1})
	r := rand.New(rand.NewSource(7))
	for range n {
		m.ram[r.Int63n(size/2)]++
	}
	return m
}
