package snapshot_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/forkvm/forkvm/snapshot"
)

// A memory of two pages is stored, changed, and stored again: the second
// snapshot adds the page that was changed.
func ExampleStore() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := snapshot.Open(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	ctx := context.Background()

	empty := snapshot.NewTable(2 * snapshot.PageSize)
	defer empty.Release()
	memory := write(empty, "one", "two")
	defer memory.Release()
	first, err := store.Create(ctx, snapshot.Draft{Label: "first", Memory: memory})
	if err != nil {
		log.Fatal(err)
	}

	restored, err := store.Load(ctx, first.ID, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer restored.Release()
	changed := write(restored.Memory, "", "three")
	defer changed.Release()
	if _, err := store.Create(ctx, snapshot.Draft{Label: "second", Parent: first.ID, Memory: changed}); err != nil {
		log.Fatal(err)
	}

	all, err := store.List(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range all {
		text := make([]byte, 5)
		snap, err := store.Load(ctx, s.ID, nil)
		if err != nil {
			log.Fatal(err)
		}
		if err := snap.Memory.ReadAt(text, snapshot.PageSize); err != nil {
			log.Fatal(err)
		}
		snap.Release()
		fmt.Printf("%s: %q, %d pages of %d stored\n", s.Label, text, s.Stored/snapshot.PageSize, s.Logical/snapshot.PageSize)
	}
	// Output:
	// first: "two\x00\x00", 2 pages of 2 stored
	// second: "three", 3 pages of 2 stored
}

// write puts texts at the start of pages, in a layer on top of a table.
func write(under *snapshot.Table, texts ...string) *snapshot.Table {
	w, err := snapshot.NewLayerWriter(under.Size())
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	page := func(i int) int64 { return int64(i) * snapshot.PageSize }
	for i, text := range texts {
		if err := w.WriteAt(append([]byte(text), make([]byte, snapshot.PageSize-len(text))...), page(i)); err != nil {
			log.Fatal(err)
		}
	}
	layer, err := w.Seal()
	if err != nil {
		log.Fatal(err)
	}
	defer layer.Release() // the table keeps it
	var top []snapshot.Extent
	for i, text := range texts {
		if text != "" {
			top = append(top, snapshot.Extent{Start: page(i), Length: snapshot.PageSize, Layer: layer, Offset: page(i)})
		}
	}
	table, err := under.Overlay(top)
	if err != nil {
		log.Fatal(err)
	}
	return table
}
