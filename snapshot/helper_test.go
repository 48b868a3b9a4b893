package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const page = PageSize

// pages is the content of a memory: a byte for each page, which fills it.
type pages []byte

func (p pages) bytes() []byte {
	var all []byte
	for _, b := range p {
		all = append(all, bytes.Repeat([]byte{b}, page)...)
	}
	return all
}

// memoryLayer is a layer as a capture makes it.
func memoryLayer(t testing.TB, content pages) *Layer {
	t.Helper()
	w, err := NewLayerWriter(int64(len(content)) * page)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i, b := range content {
		if b == 0 {
			continue
		}
		if err := w.WriteAt(pages{b}.bytes(), int64(i)*page); err != nil {
			t.Fatal(err)
		}
	}
	l, err := w.Seal()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Release)
	return l
}

// overlay puts the pages of a new layer that are not zero on a table, each run
// at its own place.
func overlay(t testing.TB, on *Table, content pages) *Table {
	t.Helper()
	l := memoryLayer(t, content)
	var top []Extent
	for i, b := range content {
		if b != 0 {
			top = append(top, Extent{int64(i) * page, page, l, int64(i) * page})
		}
	}
	table, err := on.Overlay(top)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Release)
	return table
}

func tableOf(t testing.TB, content pages) *Table {
	t.Helper()
	empty := NewTable(int64(len(content)) * page)
	t.Cleanup(empty.Release)
	return overlay(t, empty, content)
}

// memoryDir is a directory in memory, if there is such a thing: tests that
// make thousands of changes durable would take minutes on a busy disk.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "forkvm-store-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func openStore(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustCreate(t testing.TB, s *Store, d Draft) Info {
	t.Helper()
	info, err := s.Create(context.Background(), d)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func mustLoad(t testing.TB, s *Store, id string) *Snapshot {
	t.Helper()
	snap, err := s.Load(context.Background(), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(snap.Release)
	return snap
}

func wantPages(t testing.TB, table *Table, want pages) {
	t.Helper()
	if table.Size() != int64(len(want))*page {
		t.Errorf("%d bytes of memory, want %d", table.Size(), len(want)*page)
	}
	got := make([]byte, table.Size())
	if err := table.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	for i, b := range want {
		if !bytes.Equal(got[i*page:(i+1)*page], pages{b}.bytes()) {
			t.Errorf("page %d begins with %d, want %d", i, got[i*page], b)
		}
	}
}

func listed(t testing.TB, s *Store) (ids []string) {
	t.Helper()
	infos, err := s.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if i.Err != nil {
			t.Errorf("%s: %v", i.ID, i.Err)
		}
		ids = append(ids, i.ID)
	}
	return ids
}

// files are all files of a store but the lock, with their sizes.
func files(t testing.TB, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir || filepath.Dir(path) == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		names = append(names, fmt.Sprintf("%s %d", rel, info.Size()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

func layerFiles(t testing.TB, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, layersDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// noLeftovers checks that a store has the layers of its snapshots and nothing
// else.
func noLeftovers(t testing.TB, s *Store, dir string) {
	t.Helper()
	all, broken, err := s.readAll(context.Background())
	if err != nil || len(broken) > 0 {
		t.Fatal(err, broken)
	}
	want := map[string]bool{}
	for _, c := range all {
		want[snapshotsDir+"/"+c.ID+suffix] = true
		for _, l := range c.layers {
			want[layerName(l.Sum)] = true
		}
	}
	got := files(t, dir)
	for _, f := range got {
		var name string
		var size int64
		fmt.Sscanf(f, "%s %d", &name, &size)
		if !want[name] {
			t.Errorf("left over: %s", f)
		}
	}
	if len(got) < len(want) {
		t.Errorf("files %v, want %v", got, want)
	}
}
