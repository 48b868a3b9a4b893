package snapshot

import (
	"bytes"
	"errors"
	"math/rand"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func layerOf(t *testing.T, pages ...byte) *Layer {
	t.Helper()
	w, err := NewLayerWriter(int64(len(pages)) * PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i, b := range pages {
		if i%2 == 1 { // both ways to write
			if err := w.Reserve(int64(i)*PageSize, PageSize); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.WriteAt(bytes.Repeat([]byte{b}, PageSize), int64(i)*PageSize); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.FreeZeros(0, int64(len(pages))*PageSize); err != nil {
		t.Fatal(err)
	}
	l, err := w.Seal()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestSealedLayerCannotChange(t *testing.T) {
	l := layerOf(t, 1, 2)
	defer l.Release()
	if _, err := unix.Pwrite(l.FD(), []byte{9}, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write to a sealed layer: %v, want EPERM", err)
	}
	for _, size := range []int64{0, 3 * PageSize} {
		if err := unix.Ftruncate(l.FD(), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v, want EPERM", size, err)
		}
	}
}

func TestZerosAreReadBackAndTakeNoMemory(t *testing.T) {
	l := layerOf(t, 0, 0, 7, 0, 8, 9, 0, 0)
	defer l.Release()
	got := make([]byte, 8*PageSize)
	if _, err := l.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	for i, want := range []byte{0, 0, 7, 0, 8, 9, 0, 0} {
		if !bytes.Equal(got[i*PageSize:(i+1)*PageSize], bytes.Repeat([]byte{want}, PageSize)) {
			t.Errorf("page %d is not all %d", i, want)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(l.FD(), &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != 8*PageSize || st.Blocks*512 > 3*PageSize {
		t.Errorf("size %d, %d bytes of memory", st.Size, st.Blocks*512)
	}
}

func TestLayerWriterRefusesBadRanges(t *testing.T) {
	for _, size := range []int64{0, -PageSize, 100} {
		if _, err := NewLayerWriter(size); err == nil {
			t.Errorf("a layer of %d bytes was accepted", size)
		}
	}
	w, err := NewLayerWriter(4 * PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, r := range [][2]int64{{0, 100}, {1, PageSize}, {-PageSize, PageSize}, {4 * PageSize, PageSize}, {0, 5 * PageSize}} {
		if w.Reserve(r[0], r[1]) == nil || w.Free(r[0], r[1]) == nil || w.WriteAt(make([]byte, r[1]), r[0]) == nil {
			t.Errorf("%v was accepted", r)
		}
	}
}

func TestPageWrittenTwiceAndFreed(t *testing.T) {
	w, err := NewLayerWriter(3 * PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Reserve(0, 2*PageSize); err != nil {
		t.Fatal(err)
	}
	for _, b := range []byte{1, 2} {
		if err := w.WriteAt(bytes.Repeat([]byte{b}, 3*PageSize), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Free(0, PageSize); err != nil {
		t.Fatal(err)
	}
	l, err := w.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	got := make([]byte, 3*PageSize)
	if _, err := l.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	want := append(make([]byte, PageSize), bytes.Repeat([]byte{2}, 2*PageSize)...)
	if !bytes.Equal(got, want) {
		t.Error("the layer has other bytes")
	}
}

func TestLastReleaseClosesTheDescriptor(t *testing.T) {
	l := layerOf(t, 1)
	a, err := NewTable(PageSize).Overlay([]Extent{{0, PageSize, l, 0}})
	if err != nil {
		t.Fatal(err)
	}
	l.Release() // the table still holds it
	if _, err := l.ReadAt(make([]byte, 1), 0); err != nil {
		t.Fatalf("layer of a live table: %v", err)
	}
	a.Retain()
	a.Release()
	a.Release()
	if _, err := l.ReadAt(make([]byte, 1), 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read after the last release: %v, want ErrClosed", err)
	}
}

func TestOverlayRefusesBadExtents(t *testing.T) {
	l := layerOf(t, 1, 2, 3)
	defer l.Release()
	const p = PageSize
	for name, top := range map[string][]Extent{
		"unaligned":         {{1, p, l, 0}},
		"empty":             {{0, 0, l, 0}},
		"negative":          {{-p, p, l, 0}},
		"past memory":       {{3 * p, 2 * p, l, 0}},
		"past layer":        {{0, 3 * p, l, p}},
		"negative offset":   {{0, p, l, -p}},
		"overlap":           {{0, 2 * p, l, 0}, {p, p, l, 0}},
		"huge":              {{0, 1 << 62, l, 0}},
		"start overflowing": {{1<<63 - p, p, l, 0}},
	} {
		if _, err := NewTable(4 * p).Overlay(top); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestOverlayAgainstPlainCopy overlays random extents again and again and
// compares each table with a plain array of pages.
func TestOverlayAgainstPlainCopy(t *testing.T) {
	const pages = 64
	rng := rand.New(rand.NewSource(1))
	type page struct {
		layer *Layer
		off   int64
	}
	model := make([]page, pages)
	table := NewTable(pages * PageSize)
	for round := 0; round < 200; round++ {
		w, err := NewLayerWriter(pages * PageSize)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		l, err := w.Seal()
		if err != nil {
			t.Fatal(err)
		}
		var top []Extent
		for at := rng.Intn(8); at < pages; {
			n := 1 + rng.Intn(6)
			if at+n > pages {
				break
			}
			off := rng.Intn(pages - n + 1)
			e := Extent{int64(at) * PageSize, int64(n) * PageSize, l, int64(off) * PageSize}
			if rng.Intn(4) == 0 {
				e.Layer, e.Offset = nil, 0 // zeros
			}
			top = append(top, e)
			for i := range n {
				model[at+i] = page{}
				if e.Layer != nil {
					model[at+i] = page{l, int64(off+i) * PageSize}
				}
			}
			at += n + rng.Intn(8)
		}
		rng.Shuffle(len(top), func(i, j int) { top[i], top[j] = top[j], top[i] })
		next, err := table.Overlay(top)
		if err != nil {
			t.Fatal(err)
		}
		table.Release()
		l.Release()
		table = next

		got := make([]page, pages)
		last := int64(-1)
		for _, e := range table.Extents() {
			if e.Start <= last {
				t.Fatalf("round %d: extents out of order", round)
			}
			last = e.Start
			for i := int64(0); i < e.Length; i += PageSize {
				got[(e.Start+i)/PageSize] = page{e.Layer, e.Offset + i}
			}
		}
		for i := range model {
			if got[i] != model[i] {
				t.Fatalf("round %d: page %d maps to %v, want %v", round, i, got[i], model[i])
			}
		}
	}
	table.Release()
}
