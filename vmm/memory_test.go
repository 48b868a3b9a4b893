package vmm

import (
	"bytes"
	"errors"
	"math/rand"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/devices/virtio/balloon"
	"github.com/forkvm/forkvm/snapshot"
)

func newMemory(t *testing.T, size int64) *memory {
	t.Helper()
	table := snapshot.NewTable(size)
	defer table.Release()
	return mapped(t, table)
}

func mapped(t testing.TB, table *snapshot.Table) *memory {
	t.Helper()
	m, err := reserveMemory(table.Size())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.mapTable(table); err != nil {
		t.Fatal(err)
	}
	return m
}

// capture captures a memory whose machine stands still all the time.
func capture(t testing.TB, m *memory) captured {
	t.Helper()
	return captureWhile(t, m, false, func() {})
}

// captureWhile captures the memory of a machine that runs until it is frozen,
// when stop is called.
func captureWhile(t testing.TB, m *memory, runs bool, stop func()) captured {
	t.Helper()
	c, err := m.newCapture(runs)
	if err != nil {
		t.Fatal(err)
	}
	defer c.abandon()
	stop()
	if err := c.freeze(); err != nil {
		t.Fatal(err)
	}
	done, err := c.finish()
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// bothWays runs a test with write tracking and as on a kernel that has none.
func bothWays(t *testing.T, f func(t *testing.T, untracked bool)) {
	t.Run("tracked", func(t *testing.T) { f(t, false) })
	t.Run("untracked", func(t *testing.T) { f(t, true) })
}

func TestSliceAroundTheGap(t *testing.T) {
	m := newMemory(t, 4<<30) // 3 GiB below the gap, 1 GiB above
	for _, c := range []struct {
		gpa, n uint64
		ok     bool
	}{
		{0, 4096, true},
		{gapStart - 1, 1, true},
		{gapStart - 1, 2, false},
		{gapStart, 1, false},
		{gapEnd - 1, 2, false},
		{gapEnd, 1 << 30, true},
		{gapEnd, 1<<30 + 1, false},
		{5<<30 - 8, 8, true},
		{5 << 30, 1, false},
		{^uint64(0), 2, false},
		{8, ^uint64(0), false},
	} {
		p, err := m.Slice(c.gpa, c.n)
		if c.ok != (err == nil) || err == nil && uint64(len(p)) != c.n {
			t.Errorf("Slice(%#x, %#x): %d bytes, %v; want ok %v", c.gpa, c.n, len(p), err, c.ok)
		}
		if err != nil && !errors.Is(err, errNotRAM) {
			t.Errorf("Slice(%#x, %#x): %v is not errNotRAM", c.gpa, c.n, err)
		}
	}
	// The first byte above the gap lies right after the last below.
	p, err := m.Slice(gapEnd, 1)
	if err != nil {
		t.Fatal(err)
	}
	p[0] = 7
	if m.ram[gapStart] != 7 {
		t.Error("memory above the gap is not where it should be")
	}
}

func TestCaptureAndChildrenAgainstPlainCopy(t *testing.T) { bothWays(t, testChildrenAgainstPlainCopy) }

func testChildrenAgainstPlainCopy(t *testing.T, untracked bool) {
	const pages = 512
	rng := rand.New(rand.NewSource(2))
	parent := newMemory(t, pages*pageSize)
	parent.untracked = untracked
	scribble := func(m *memory, model []byte, n int) {
		for range n {
			at := rng.Intn(len(model) - 64)
			for i := range 64 {
				b := byte(rng.Int())
				m.ram[at+i], model[at+i] = b, b
			}
		}
	}
	giveBack := func(m *memory, model []byte) {
		at, n := rng.Intn(pages-32)*pageSize, (1+rng.Intn(32))*pageSize
		m.ram[at]++ // else there may be nothing to give back
		if err := m.release([]balloon.Range{{GPA: uint64(at), Size: uint64(n)}}); err != nil {
			t.Fatal(err)
		}
		clear(model[at : at+n])
	}
	model := make([]byte, pages*pageSize)
	for round := range 20 {
		scribble(parent, model, 1+rng.Intn(300))
		giveBack(parent, model)
		scribble(parent, model, rng.Intn(10))
		c := capture(t, parent)
		table := c.table
		if c.dirty == 0 {
			t.Fatalf("round %d: nothing found to capture", round)
		}
		frozen := bytes.Clone(model)
		child, other := mapped(t, table), mapped(t, table)
		table.Release()
		childModel := bytes.Clone(model)
		scribble(child, childModel, 50)
		giveBack(child, childModel)
		scribble(parent, model, 50)
		for name, c := range map[string]struct{ got, want []byte }{
			"parent":  {parent.ram, model},
			"child":   {child.ram, childModel},
			"sibling": {other.ram, frozen},
		} {
			if !bytes.Equal(c.got, c.want) {
				t.Fatalf("round %d: %s has wrong bytes", round, name)
			}
		}
	}
}

func TestCaptureFindsOnlyWhatWasWrittenSince(t *testing.T) { bothWays(t, testOnlyWhatWasWritten) }

func testOnlyWhatWasWritten(t *testing.T, untracked bool) {
	m := newMemory(t, 4<<20)
	m.untracked = untracked
	for _, page := range []int{3, 4, 100, 700} {
		m.ram[page*pageSize] = 1
	}
	dirty := func() int64 {
		t.Helper()
		c := capture(t, m)
		c.table.Release()
		return c.dirty
	}
	// Before the first capture the kernel may use huge pages.
	if n := dirty(); n < 4 {
		t.Errorf("first capture: %d pages, wrote 4", n)
	}
	_ = m.ram[900*pageSize] // reading makes no private page
	for i, pages := range [][]int{{}, {100}, {}, {3, 4, 5, 900}} {
		for _, p := range pages {
			m.ram[p*pageSize+5] = 2
		}
		if n := dirty(); n != int64(len(pages)) {
			t.Errorf("capture %d: %d pages, wrote %v", i, n, pages)
		}
	}
}

// TestCompactTables rewrites a table again and again; the memory goes on from
// what was rewritten.
func TestCompactTables(t *testing.T) {
	const pages = 4096
	m := newMemory(t, pages*pageSize)
	rng := rand.New(rand.NewSource(3))
	for range 8 {
		for range 200 {
			m.ram[rng.Intn(pages)*pageSize] = byte(rng.Int())
		}
		c := capture(t, m)
		compact, err := compactTable(c.table, fewExtents)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(compact.Extents()); n > fewExtents {
			t.Errorf("%d extents after a rewrite", n)
		}
		m.adoptCompact(compact)
		child, other := mapped(t, c.table), mapped(t, compact)
		if !bytes.Equal(child.ram, m.ram) || !bytes.Equal(other.ram, m.ram) {
			t.Fatal("children differ")
		}
		c.table.Release()
		compact.Release()
	}
}

// TestCaptureCopiesLittleMoreThanIsDirty scatters pages so that no two have
// a short gap between them.
func TestCaptureCopiesLittleMoreThanIsDirty(t *testing.T) {
	m := newMemory(t, 1<<30)
	for _, n := range []int64{1, 65, 500, maxRuns} {
		for i := range n {
			m.ram[i*(1<<30/n)+64] = byte(n)
		}
		c := capture(t, m)
		c.table.Release()
		if c.dirty > 1 && n > 1 && c.dirty < n || c.copied > c.dirty+n*maxGap {
			t.Errorf("%d pages written: %d dirty, %d copied", n, c.dirty, c.copied)
		}
		m.useSmallPages()
	}
}

func TestCaptureOnBothSidesOfTheGap(t *testing.T) {
	m := newMemory(t, 4<<30)
	for i, gpa := range []uint64{0, gapStart - pageSize, gapEnd, 5<<30 - pageSize} {
		if err := m.write(gpa, []byte{byte(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	c := capture(t, m)
	child := mapped(t, c.table)
	c.table.Release()
	for i, gpa := range []uint64{0, gapStart - pageSize, gapEnd, 5<<30 - pageSize} {
		p, err := child.Slice(gpa, 1)
		if err != nil || p[0] != byte(i+1) {
			t.Errorf("%#x: %v, %v", gpa, p, err)
		}
	}
}

// TestPagemapScanAgreesWithPagemap compares the two ways to find pages.
func TestPagemapScanAgreesWithPagemap(t *testing.T) {
	m := newMemory(t, 8<<20)
	rng := rand.New(rand.NewSource(4))
	for range 100 {
		m.ram[rng.Intn(len(m.ram))] = 1
	}
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	slow, err := readPagemap(f, m.ram)
	if err != nil {
		t.Fatal(err)
	}
	fast, err := scan(f, m.ram, pageIsFile, 0, 0)
	if errors.Is(err, unix.ENOTTY) {
		t.Log("this kernel has no PAGEMAP_SCAN")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(slow, fast) {
		t.Errorf("PAGEMAP_SCAN finds %v, pagemap %v", fast, slow)
	}
}

func TestCoalesce(t *testing.T) {
	rng := rand.New(rand.NewSource(5))
	for range 200 {
		var runs []run
		at := int64(rng.Intn(5))
		for range rng.Intn(100) {
			n := 1 + int64(rng.Intn(5))
			runs = append(runs, run{at * pageSize, (at + n) * pageSize})
			at += n + 1 + int64(rng.Intn(20))
		}
		limit := 1 + rng.Intn(50)
		in := slices.Clone(runs)
		gap := int64(rng.Intn(4))
		out := coalesce(runs, gap, limit)
		if len(out) > limit {
			t.Fatalf("%d runs, limit %d", len(out), limit)
		}
		if gap == 0 && len(out) < min(len(runs), limit) {
			t.Fatalf("%d of %d runs left, limit %d", len(out), len(runs), limit)
		}
		if !slices.Equal(in, runs) {
			t.Fatal("the input was changed")
		}
		for _, r := range runs { // each lies within one of out
			if !slices.ContainsFunc(out, func(o run) bool { return o.start <= r.start && r.end <= o.end }) {
				t.Fatalf("%v lost", r)
			}
		}
		for i := 1; i < len(out); i++ {
			if out[i].start <= out[i-1].end {
				t.Fatalf("runs out of order: %v", out)
			}
		}
	}
}

// TestMemoryUnmapsItsOwn has somebody else map where a memory is going to be:
// it fails to map, and leaves what is theirs.
func TestMemoryUnmapsItsOwn(t *testing.T) {
	const size = 64 << 20
	m, err := reserveMemory(size)
	if err != nil {
		t.Fatal(err)
	}
	theirs := m.ram[size/2 : size/2+pageSize]
	if err := mapNewZeros(theirs); err != nil {
		t.Fatal(err)
	}
	defer unmap(theirs)
	theirs[0] = 1
	table := snapshot.NewTable(size)
	defer table.Release()
	if err := m.mapTable(table); !errors.Is(err, unix.EEXIST) {
		t.Errorf("mapped: %v, want EEXIST", err)
	}
	if err := m.close(); err != nil {
		t.Error(err)
	}
	if theirs[0] != 1 {
		t.Error("it is gone")
	}
	other, err := reserveMemory(size)
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	if at := hostAddr(other.ram); at < hostAddr(theirs) && hostAddr(theirs) < at+size {
		t.Error("the next memory gets the same addresses")
	}
}

// TestAddresses checks that machines get ranges of their own, where nothing
// was, and that those of machines that are gone are used again.
func TestAddresses(t *testing.T) {
	const size = 64 << 20
	a := newAddressSpace()
	var all []uintptr
	for range 20 {
		addr, err := a.take(size)
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range all {
			if addr < other+size && other < addr+size {
				t.Fatalf("ranges at %#x and %#x overlap", addr, other)
			}
		}
		if err := mapNewZeros(bytesAt(addr, size)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unmap(bytesAt(addr, size)) })
		all = append(all, addr)
	}
	if err := mapNewZeros(bytesAt(all[3], size)); !errors.Is(err, unix.EEXIST) {
		t.Errorf("mapped over what is there: %v", err)
	}
	// Somebody else's mapping where the next range would be.
	a.next = all[5]
	if addr, err := a.take(size); err != nil || addr == all[5] {
		t.Errorf("a range in use is handed out: %#x, %v", addr, err)
	}
	if err := unmap(bytesAt(all[7], size)); err != nil {
		t.Fatal(err)
	}
	a.give(all[7], size)
	if addr, err := a.take(2 * size); err != nil || addr == all[7] {
		t.Errorf("a short range for a long one: %#x, %v", addr, err)
	}
	if addr, err := a.take(size); err != nil || addr != all[7] {
		t.Errorf("got %#x, %v, want that given back, %#x", addr, err, all[7])
	}
	// A range that nobody has mapped yet is somebody's all the same.
	if addr, err := a.take(size); err != nil {
		t.Fatal(err)
	} else {
		a.next = addr - size/2
		if next, err := a.take(size); err != nil || next < addr+size && addr < next+size {
			t.Errorf("the range at %#x is handed out twice: %#x, %v", addr, next, err)
		}
	}
	if _, err := a.take(highestAddress); err == nil {
		t.Error("more than there is was found")
	}
}
