package vmm

import "github.com/forkvm/forkvm/snapshot"

// Bounds of a machine's extent table. A mapping costs a child some
// microseconds and its process one of 65,530 (vm.max_map_count), so a capture
// of many scattered pages copies clean ones between them, and a table that
// has grown long is rewritten as one layer.
const (
	maxRuns    = 64
	maxExtents = 256
)

// capture moves the private pages into a new layer and returns the table that
// describes all of memory. The machine itself runs on from that layer, so the
// next capture finds only what was written after this one. On an error the
// memory is as it was.
func (m *memory) capture() (table *snapshot.Table, dirty int64, err error) {
	runs, err := privatePages(m.ram)
	if err != nil {
		return nil, 0, err
	}
	for _, r := range runs {
		dirty += r.pages()
	}
	if len(runs) == 0 {
		return m.table.Retain(), 0, nil
	}
	if table, err = m.store(coalesce(runs, maxRuns)); err != nil {
		return nil, 0, err
	}
	m.remap(table)
	return table, dirty, nil
}

// remap shows the layers of table that the memory does not have yet, in place
// of the private pages they were copied from. Should a mapping fail, those
// pages stay private: they hold the same bytes, and the next capture copies
// them once more.
func (m *memory) remap(table *snapshot.Table) {
	known := make(map[*snapshot.Layer]bool)
	for _, e := range m.table.Extents() {
		known[e.Layer] = true
	}
	for _, e := range table.Extents() {
		if !known[e.Layer] && m.overlay(e) != nil {
			break
		}
	}
	m.useSmallPages()
	old := m.table
	m.table = table.Retain()
	old.Release()
}

// store copies runs into a layer and returns the table with it on top. If that
// table got too long it is made anew as a single layer.
func (m *memory) store(runs []run) (*snapshot.Table, error) {
	table, err := m.layOver(m.table, runs)
	if err != nil || len(table.Extents()) <= maxExtents {
		return table, err
	}
	defer table.Release()
	all := make([]run, 0, len(table.Extents()))
	for _, e := range table.Extents() {
		all = appendRun(all, run{e.Start, e.End()})
	}
	zero := snapshot.NewTable(m.table.Size())
	defer zero.Release()
	return m.layOver(zero, coalesce(all, maxRuns))
}

// layOver copies runs of RAM into a layer over table.
func (m *memory) layOver(table *snapshot.Table, runs []run) (*snapshot.Table, error) {
	w, err := snapshot.NewLayerWriter()
	if err != nil {
		return nil, err
	}
	defer w.Abandon()
	extents := make([]snapshot.Extent, 0, len(runs))
	for _, r := range runs {
		off, err := w.Append(m.ram[r.start:r.end])
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
	return table.Overlay(extents)
}
