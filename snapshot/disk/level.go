package disk

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/forkvm/forkvm/snapshot"
)

// level is all of a disk as it was when it was frozen, or began. It is made in
// no time: what it takes to lay a top over what was below is done by the first
// who looks.
//
// It is counted: the last release closes what it holds. It is safe for
// concurrent use.
type level struct {
	refs atomic.Int64
	once sync.Once

	// Until then.
	below *level
	top   *top

	// From then on.
	table *snapshot.Table
	err   error
	ready atomic.Bool // table may be read without once
}

func newLevel(l *level) *level {
	l.refs.Store(1)
	return l
}

// wholeLevel is a level that has a table already.
func wholeLevel(t *snapshot.Table) *level {
	l := newLevel(&level{table: t.Retain()})
	l.ready.Store(true)
	return l
}

func (l *level) retain() *level {
	l.refs.Add(1)
	return l
}

func (l *level) release() {
	if l.refs.Add(-1) > 0 {
		return
	}
	l.dropParts()
	if l.table != nil {
		l.table.Release()
	}
}

// dropParts gives up what a table was, or would have been, made of.
func (l *level) dropParts() {
	if l.below != nil {
		l.below.release()
		l.below = nil
	}
	if l.top != nil {
		l.top.close()
		l.top = nil
	}
}

// resolve is the table of the level, which lives as long as that.
func (l *level) resolve() (*snapshot.Table, error) {
	l.once.Do(func() {
		if l.table == nil {
			l.table, l.err = l.lay()
		}
		l.ready.Store(l.err == nil)
	})
	return l.table, l.err
}

func (l *level) lay() (*snapshot.Table, error) {
	base, err := l.below.resolve()
	if err != nil {
		return nil, err
	}
	table, err := l.top.over(base)
	if err == nil {
		l.top = nil // it is a layer now
		l.dropParts()
	}
	return table, err
}

// Bounds of a table. Nothing is mapped of a disk, so extents are cheap: these
// keep a manifest small and the number of open files low.
const (
	maxExtents = 16384
	maxLayers  = 64

	// Of a table that exceeds them, what is kept as it is: large pieces of
	// large layers.
	keepLayers = 16
	keepExtent = 256 << 10 // bytes
	firstGap   = 16        // pages between two pieces that are filled
)

// over seals the top and lays it over base. Where the table would have too many
// pieces, gaps between them are filled and small ones copied.
func (t *top) over(base *snapshot.Table) (*snapshot.Table, error) {
	runs := t.cover.runs(t.size / pageSize)
	if tooMany(base, len(runs)) {
		// If there is no space for it, the table is long: a disk that was
		// frozen must not become one that cannot be read.
		if fewer, err := t.gather(base, runs); err == nil {
			runs = fewer
		} else {
			runs = t.cover.runs(t.size / pageSize)
		}
	}
	layer, err := t.seal()
	if err != nil {
		return nil, err
	}
	defer layer.Release()
	extents := make([]snapshot.Extent, len(runs))
	for i, r := range runs {
		extents[i] = snapshot.Extent{Start: r.first * pageSize, Length: (r.end - r.first) * pageSize}
		if !r.zero {
			extents[i].Layer, extents[i].Offset = layer, extents[i].Start
		}
	}
	return base.Overlay(extents)
}

func tooMany(base *snapshot.Table, runs int) bool {
	return len(base.Extents())+runs > maxExtents || len(bytesOf(base)) >= maxLayers
}

// bytesOf is how much of each layer a table has.
func bytesOf(t *snapshot.Table) map[*snapshot.Layer]int64 {
	n := map[*snapshot.Layer]int64{}
	for _, e := range t.Extents() {
		n[e.Layer] += e.Length
	}
	return n
}

// gather copies what base has in small pieces to the top, and what lies
// between pieces of the top, until few are left. It returns those.
func (t *top) gather(base *snapshot.Table, runs []run) ([]run, error) {
	for _, e := range small(base) {
		runs = append(runs, run{first: e.Start / pageSize, end: e.End() / pageSize})
	}
	slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.first, b.first) })
	joined := join(runs, firstGap)
	for gap := int64(firstGap); len(joined) > maxExtents/4; gap *= 4 {
		joined = join(joined, gap)
	}
	for _, r := range joined {
		if err := t.fill(base, r.first, r.end); err != nil {
			return nil, err
		}
	}
	return joined, nil
}

// small are the extents of a table that are not worth keeping.
func small(base *snapshot.Table) []snapshot.Extent {
	size := bytesOf(base)
	var layers []*snapshot.Layer
	for l := range size {
		layers = append(layers, l)
	}
	slices.SortFunc(layers, func(a, b *snapshot.Layer) int { return cmp.Compare(size[b], size[a]) })
	keep := map[*snapshot.Layer]bool{}
	for _, l := range layers[:min(keepLayers, len(layers))] {
		keep[l] = true
	}
	var out []snapshot.Extent
	for _, e := range base.Extents() {
		if !keep[e.Layer] || e.Length < keepExtent {
			out = append(out, e)
		}
	}
	return out
}

// join joins sorted runs, which may overlap, that are at most gap pages apart.
func join(runs []run, gap int64) []run {
	var out []run
	for _, r := range runs {
		if n := len(out); n > 0 && r.first <= out[n-1].end+gap {
			out[n-1].end = max(out[n-1].end, r.end)
			continue
		}
		out = append(out, run{first: r.first, end: r.end})
	}
	return out
}
