package snapshot

import (
	"context"
	"fmt"
	"os"
)

// Snapshot is a stored snapshot that was verified and can be run. It stays
// what it is when the store is closed or the snapshot deleted, until Release.
type Snapshot struct {
	Manifest
	// Sections are the parts of the machine's state by name.
	Sections map[string][]byte
	// Memory is the guest's, in layers that are files.
	Memory *Table
	// Disks are in the order in which they were saved.
	Disks []Disk
}

// Disk is what a machine has on a disk.
type Disk struct {
	Name  string
	Table *Table
}

// Release gives up the snapshot's references to its tables.
func (s *Snapshot) Release() {
	s.Memory.Release()
	for _, d := range s.Disks {
		d.Table.Release()
	}
}

// Load returns a snapshot whose every byte has been verified: its layers in
// full the first time that this store hands them out, all else each time. It
// fails with [ErrNotFound], [ErrBadID], [ErrCorrupt] or [ErrVersion]. report, if
// it is not nil, is told how many bytes of layers are verified.
func (s *Store) Load(ctx context.Context, id string, report func(done, total int64)) (*Snapshot, error) {
	snap, err := s.load(ctx, id, report)
	return snap, wrapf(err, "snapshot: load %.60q", id)
}

func (s *Store) load(ctx context.Context, id string, report func(done, total int64)) (*Snapshot, error) {
	c, files, err := s.openSnapshot(ctx, id)
	if err != nil {
		return nil, err
	}
	sections, _, err := decodeSections(c.sections)
	if err != nil {
		closeAll(files)
		return nil, err
	}
	layers, err := s.verified(ctx, c, files, newProgress(c.dataBytes(nil), report))
	if err != nil {
		return nil, err
	}
	defer releaseAll(layers) // the tables have references of their own
	snap := &Snapshot{Manifest: c.Manifest, Sections: sections}
	if snap.Memory, err = c.memory.table(layers); err != nil {
		return nil, err
	}
	for _, d := range c.disks {
		t, err := d.table(layers)
		if err != nil {
			snap.Release()
			return nil, fmt.Errorf("disk %s: %w", d.Name, err)
		}
		snap.Disks = append(snap.Disks, Disk{d.Name, t})
	}
	return snap, nil
}

// verified makes layers of their files, which it takes over.
func (s *Store) verified(ctx context.Context, c *contents, files []*os.File, p *progress) (layers []*Layer, err error) {
	for i, f := range files {
		l, err := s.cache.layer(ctx, f, c.layers[i], p)
		if err != nil {
			closeAll(files[i+1:])
			releaseAll(layers)
			return nil, err
		}
		layers = append(layers, l)
	}
	return layers, nil
}

func releaseAll(layers []*Layer) {
	for _, l := range layers {
		l.Release()
	}
}

// table makes the table that t describes.
func (t tableInfo) table(layers []*Layer) (*Table, error) {
	zeros := NewTable(t.Size)
	defer zeros.Release()
	extents := make([]Extent, len(t.Extents))
	for i, e := range t.Extents {
		extents[i] = Extent{Start: e[0], Length: e[1], Layer: layers[e[2]], Offset: e[3]}
	}
	return zeros.Overlay(extents)
}
