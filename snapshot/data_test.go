package snapshot

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestLayerData: holes of a layer are none of its data, however it came to have
// them.
func TestLayerData(t *testing.T) {
	w, err := NewLayerWriter(64 * PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	page := make([]byte, PageSize)
	page[7] = 1
	for _, at := range []int64{3, 4, 9, 20, 21, 22, 63} {
		if err := w.WriteAt(page, at*PageSize); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteAt(make([]byte, PageSize), 21*PageSize); err != nil {
		t.Fatal(err)
	}
	if err := w.FreeZeros(20*PageSize, 3*PageSize); err != nil {
		t.Fatal(err)
	}
	layer, err := w.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Release()
	want := []Range{{3 * PageSize, 5 * PageSize}, {9 * PageSize, 10 * PageSize}, {20 * PageSize, 21 * PageSize},
		{22 * PageSize, 23 * PageSize}, {63 * PageSize, 64 * PageSize}}
	if got := layer.Data(); !slices.Equal(got, want) {
		t.Errorf("data at %v; want %v", got, want)
	}
}

// TestLayerDataOfFile: a file that is one hole and that is opened
// twice, and one that cannot be asked.
func TestLayerDataOfFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "layer")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	layer, err := NewLayer(f, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Release()
	if got := layer.Data(); len(got) > 1 { // one where the file system knows no holes
		t.Errorf("data of an empty file: %v", got)
	}
	again, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	same, err := NewLayer(again, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer same.Release()
	if same.Inode() != layer.Inode() {
		t.Error("a file opened twice is two")
	}
	pipe, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	odd, err := NewLayer(pipe, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer odd.Release()
	if got := odd.Data(); !slices.Equal(got, []Range{{0, 1 << 20}}) {
		t.Errorf("data of what has no place to seek: %v", got)
	}
	if odd.Inode() == layer.Inode() {
		t.Error("two files are one")
	}
}

// TestInodesAreNew: a file which has the number of one that is gone is another,
// and nothing is kept of those that are gone.
func TestInodesAreNew(t *testing.T) {
	make1 := func(name string) *Layer {
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		layer, err := NewLayer(f, PageSize)
		if err != nil {
			t.Fatal(err)
		}
		return layer
	}
	name := filepath.Join(t.TempDir(), "layer")
	before := len(openInodes.uses)
	seen := map[Inode]bool{}
	for range 20 {
		layer := make1(name)
		id := layer.Inode()
		if seen[id] || layer.Inode() != id {
			t.Fatalf("%+v was that of a file that is gone", id)
		}
		seen[id] = true
		again, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		same, err := NewLayer(again, PageSize)
		if err != nil {
			t.Fatal(err)
		}
		if same.Inode() != id {
			t.Error("a file opened twice is two")
		}
		layer.Release()
		third := make1(name + "x")
		if same.Inode() != id || third.Inode() == id {
			t.Error("with one of two layers closed, the other is another")
		}
		third.Release()
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		same.Release()
	}
	if n := len(openInodes.uses); n != before {
		t.Errorf("%d inodes are known, and %d were before", n, before)
	}
}
