package snapshot

import (
	"fmt"
	"sort"
	"sync/atomic"
)

// Extent maps Length bytes at Start of a machine's memory to Layer at Offset.
// All three numbers are multiples of [PageSize]. An extent without a layer is
// zeros; it is of use only to hide something with [Table.Overlay].
type Extent struct {
	Start, Length int64
	Layer         *Layer
	Offset        int64
}

// End is the first byte after the extent.
func (e Extent) End() int64 { return e.Start + e.Length }

// Table describes the whole memory of a machine at one instant: sorted
// extents that do not overlap, and zeros wherever there is none. However many
// captures lie behind it, a table is one flat list, so depth costs nothing.
//
// A Table is immutable and counted: it is made with one reference and holds
// one on every extent's layer. It is safe for concurrent use.
type Table struct {
	size    int64
	extents []Extent
	refs    atomic.Int64
}

// NewTable describes size bytes of zeros.
func NewTable(size int64) *Table {
	t := &Table{size: size}
	t.refs.Store(1)
	return t
}

// Size is the size of the memory described, in bytes.
func (t *Table) Size() int64 { return t.size }

// Extents are the parts that are not zero, in order of their Start. The
// caller must not change the slice.
func (t *Table) Extents() []Extent { return t.extents }

// Retain adds a reference. The caller must hold one already.
func (t *Table) Retain() *Table {
	if t.refs.Add(1) <= 1 {
		panic("snapshot: Retain of a released table")
	}
	return t
}

// Release drops a reference; the last one releases the layers.
func (t *Table) Release() {
	switch n := t.refs.Add(-1); {
	case n == 0:
		for _, e := range t.extents {
			e.Layer.Release()
		}
	case n < 0:
		panic("snapshot: Release of a released table")
	}
}

// Overlay returns a new table in which the extents of top hide what t has in
// their ranges. t is unchanged. The new table takes references of its own.
func (t *Table) Overlay(top []Extent) (*Table, error) {
	top = append([]Extent(nil), top...)
	sort.Slice(top, func(i, j int) bool { return top[i].Start < top[j].Start })
	if err := check(top, t.size); err != nil {
		return nil, err
	}
	var out []Extent
	add := func(e Extent) {
		if e.Layer == nil {
			return // as if nothing were mapped
		}
		if n := len(out); n > 0 && adjoins(out[n-1], e) {
			out[n-1].Length += e.Length
			return
		}
		out = append(out, e)
	}
	old := t.extents
	// emit adds the parts of old in [from, to).
	emit := func(from, to int64) {
		if from == to {
			return
		}
		for len(old) > 0 && old[0].End() <= from {
			old = old[1:]
		}
		for _, e := range old {
			if e.Start >= to {
				return
			}
			add(clip(e, from, to))
		}
	}
	at := int64(0)
	for _, e := range top {
		emit(at, e.Start)
		add(e)
		at = e.End()
	}
	emit(at, t.size)

	n := &Table{size: t.size, extents: out}
	n.refs.Store(1)
	for _, e := range out {
		e.Layer.Retain()
	}
	return n, nil
}

// ReadAt fills p with the memory at off.
func (t *Table) ReadAt(p []byte, off int64) error {
	if off < 0 || off > t.size-int64(len(p)) {
		return fmt.Errorf("snapshot: read of %d bytes at %#x: memory has %#x", len(p), off, t.size)
	}
	clear(p)
	for _, e := range t.within(off, off+int64(len(p))) {
		if _, err := e.Layer.ReadAt(p[e.Start-off:e.End()-off], e.Offset); err != nil {
			return fmt.Errorf("snapshot: read layer: %w", err)
		}
	}
	return nil
}

// Locate says where the bytes from off on are: n of them in layer at offset at,
// or, if layer is nil, n zeros. It looks the place up in a sorted list, which
// no depth of captures makes slower. off must be less than Size.
func (t *Table) Locate(off int64) (layer *Layer, at, n int64) {
	i := sort.Search(len(t.extents), func(i int) bool { return t.extents[i].End() > off })
	switch {
	case i == len(t.extents):
		return nil, 0, t.size - off
	case t.extents[i].Start > off:
		return nil, 0, t.extents[i].Start - off
	}
	e := t.extents[i]
	return e.Layer, e.Offset + off - e.Start, e.End() - off
}

// Maps tells whether a layer has any of the n bytes at off.
func (t *Table) Maps(off, n int64) bool { return len(t.within(off, off+n)) > 0 }

// within is the parts of the extents that lie in a range.
func (t *Table) within(from, to int64) []Extent {
	i := sort.Search(len(t.extents), func(i int) bool { return t.extents[i].End() > from })
	j := i + sort.Search(len(t.extents)-i, func(k int) bool { return t.extents[i+k].Start >= to })
	if i >= j {
		return nil
	}
	parts := append([]Extent(nil), t.extents[i:j]...)
	parts[0] = clip(parts[0], from, to)
	last := &parts[len(parts)-1]
	*last = clip(*last, from, to)
	return parts
}

// Stored is the number of bytes that the table maps to layers.
func (t *Table) Stored() int64 {
	var n int64
	for _, e := range t.extents {
		n += e.Length
	}
	return n
}

func adjoins(a, b Extent) bool {
	return a.Layer == b.Layer && a.End() == b.Start && a.Offset+a.Length == b.Offset
}

func clip(e Extent, from, to int64) Extent {
	if e.Start < from {
		d := from - e.Start
		e.Start, e.Offset, e.Length = from, e.Offset+d, e.Length-d
	}
	if e.End() > to {
		e.Length = to - e.Start
	}
	return e
}

func check(sorted []Extent, size int64) error {
	at := int64(0)
	for _, e := range sorted {
		switch {
		case (e.Start|e.Length|e.Offset)%PageSize != 0, e.Length <= 0, e.Offset < 0:
			return fmt.Errorf("snapshot: extent %#x+%#x at offset %#x is not whole pages", e.Start, e.Length, e.Offset)
		case e.Start < at:
			return fmt.Errorf("snapshot: extent at %#x overlaps the one before", e.Start)
		case e.Length > size-e.Start:
			return fmt.Errorf("snapshot: extent %#x+%#x is past the end of memory", e.Start, e.Length)
		case e.Layer != nil && e.Offset > e.Layer.size-e.Length:
			return fmt.Errorf("snapshot: extent %#x+%#x is past the end of its layer", e.Start, e.Length)
		}
		at = e.End()
	}
	return nil
}
