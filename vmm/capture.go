package vmm

import (
	"fmt"

	"github.com/forkvm/forkvm/snapshot"
)

// Bounds of what a capture does. Mapping one more extent costs every child
// some microseconds, as copying a few pages does, and its process one mapping
// of a limited number; so short gaps between written pages are copied along,
// and a table that has grown long is rewritten as one layer, though never
// while the machine stands still.
const (
	maxGap     = 8    // pages
	maxRuns    = 1024 // extents of one capture
	maxExtents = 2048 // of a table before it is rewritten
	fewExtents = 64   // of a table that was rewritten
)

// captured is a machine's memory at one instant.
type captured struct {
	table         *snapshot.Table
	dirty, copied int64 // pages written since the last capture; pages copied
}

// capture moves the private pages into a new layer and returns the table that
// describes all of memory. The machine itself runs on from that layer, so the
// next capture finds only what was written after this one. On an error the
// memory is as it was.
func (m *memory) capture() (captured, error) {
	runs, err := privatePages(m.ram)
	if err != nil {
		return captured{}, err
	}
	var c captured
	for _, r := range runs {
		c.dirty += r.pages()
	}
	base := m.table
	if m.compact != nil {
		base = m.compact
	}
	runs = coalesce(runs, maxGap, maxRuns)
	for _, r := range runs {
		c.copied += r.pages()
	}
	if c.table, err = m.layOver(base, runs); err != nil {
		return captured{}, err
	}
	m.remap(c.table)
	return c, nil
}

// remap shows the layers of table that the memory does not have yet, in place
// of the private pages they were copied from. Should there be no room for a
// mapping, those pages stay private: they hold the same bytes, and the next
// capture copies them once more.
func (m *memory) remap(table *snapshot.Table) {
	m.useSmallPages()
	known := make(map[*snapshot.Layer]bool)
	for _, e := range m.table.Extents() {
		known[e.Layer] = true
	}
	if mappings.resize(&m.mappings, mappingsOf(table)) == nil {
		for _, e := range table.Extents() {
			if !known[e.Layer] && m.overlay(e) != nil {
				break
			}
		}
	}
	old := m.table
	m.table = table.Retain()
	old.Release()
	m.forgetCompact()
}

// adoptCompact has the next capture build on table, which describes the same
// bytes as the memory's own in fewer extents.
func (m *memory) adoptCompact(table *snapshot.Table) {
	m.forgetCompact()
	m.compact = table.Retain()
}

func (m *memory) forgetCompact() {
	if m.compact != nil {
		m.compact.Release()
		m.compact = nil
	}
}

// layOver copies runs of RAM into a layer over table.
func (m *memory) layOver(table *snapshot.Table, runs []run) (*snapshot.Table, error) {
	if len(runs) == 0 {
		return table.Retain(), nil
	}
	return newLayer(table, runs, func(w *snapshot.LayerWriter, r run) (int64, error) {
		return w.Append(m.ram[r.start:r.end])
	})
}

// compactTable describes the same bytes as table in a layer of their own and
// few extents.
func compactTable(table *snapshot.Table) (*snapshot.Table, error) {
	extents := table.Extents()
	all := make([]run, 0, len(extents))
	for _, e := range extents {
		all = appendRun(all, run{e.Start, e.End()})
	}
	zero := snapshot.NewTable(table.Size())
	defer zero.Release()
	buf := make([]byte, 1<<20)
	return newLayer(zero, coalesce(all, maxGap, fewExtents), func(w *snapshot.LayerWriter, r run) (int64, error) {
		start := w.Size()
		for at := r.start; at < r.end; {
			p := buf[:min(int64(len(buf)), r.end-at)]
			if err := table.ReadAt(p, at); err != nil {
				return 0, err
			}
			if _, err := w.Append(p); err != nil {
				return 0, err
			}
			at += int64(len(p))
		}
		return start, nil
	})
}

// newLayer has write copy each run into a new layer, and lays that over table.
func newLayer(table *snapshot.Table, runs []run, write func(*snapshot.LayerWriter, run) (offset int64, err error)) (*snapshot.Table, error) {
	w, err := snapshot.NewLayerWriter()
	if err != nil {
		return nil, err
	}
	defer w.Abandon()
	extents := make([]snapshot.Extent, 0, len(runs))
	for _, r := range runs {
		off, err := write(w, r)
		if err != nil {
			return nil, err
		}
		extents = append(extents, snapshot.Extent{Start: r.start, Length: r.end - r.start, Offset: off})
	}
	layer, err := w.Seal()
	if err != nil {
		return nil, err
	}
	defer layer.Release()
	for i := range extents {
		extents[i].Layer = layer
	}
	top, err := table.Overlay(extents)
	if err != nil {
		return nil, fmt.Errorf("vmm: %w", err)
	}
	return top, nil
}
