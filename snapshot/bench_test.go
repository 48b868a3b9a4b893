package snapshot

import (
	"testing"
)

// machineMemory is 256 MiB of which a fifth was written: in chunks, as a Linux
// guest does.
func machineMemory(b *testing.B) *Table {
	b.Helper()
	content := make(pages, 256<<20/page)
	for i := range content {
		if i/64%5 == 0 {
			content[i] = byte(i%255 + 1)
		}
	}
	l := memoryLayer(b, content)
	empty := NewTable(l.Size())
	defer empty.Release()
	table, err := empty.Overlay([]Extent{{0, l.Size(), l, 0}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(table.Release)
	return table
}

// dirty puts a layer of 1,000 pages in 250 places on top.
func dirty(b *testing.B, under *Table, with byte) *Table {
	b.Helper()
	content := make(pages, under.Size()/page)
	for i := range 1000 {
		content[i/4*256+i%4] = with
	}
	return overlay(b, under, content)
}

func BenchmarkCreate(b *testing.B) {
	s := openStore(b, b.TempDir())
	b.SetBytes(256 << 20 / 5)
	for b.Loop() {
		b.StopTimer()
		memory := machineMemory(b) // which no store has seen
		b.StartTimer()
		info := mustCreate(b, s, Draft{Memory: memory})
		b.StopTimer()
		if err := s.Delete(ctx, info.ID); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkCreateOfAFork(b *testing.B) {
	s := openStore(b, b.TempDir())
	base := machineMemory(b)
	mustCreate(b, s, Draft{Memory: base})
	with := byte(0)
	for b.Loop() {
		b.StopTimer()
		with = with%255 + 1
		memory := dirty(b, base, with)
		b.StartTimer()
		mustCreate(b, s, Draft{Memory: memory})
	}
}

func BenchmarkLoad(b *testing.B) {
	dir := b.TempDir()
	s := openStore(b, dir)
	id := mustCreate(b, s, Draft{
		Memory:   dirty(b, machineMemory(b), 9),
		Sections: map[string][]byte{"vcpu": make([]byte, 20_000), "devices": make([]byte, 20_000)},
	}).ID
	load := func(b *testing.B, s *Store) {
		snap, err := s.Load(ctx, id, nil)
		if err != nil {
			b.Fatal(err)
		}
		snap.Release()
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			s, err := Open(dir)
			if err != nil {
				b.Fatal(err)
			}
			load(b, s)
			s.Close()
		}
	})
	b.Run("again", func(b *testing.B) {
		for b.Loop() {
			load(b, s)
		}
	})
}
