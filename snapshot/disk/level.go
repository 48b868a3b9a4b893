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

// Bounds of a table. Nothing is mapped of a disk, so extents are cheap; but a
// manifest names a limited number of them, and each layer is an open file.
// Beyond these, small layers and gaps are copied, though never much more than
// was written: a guest that scatters little over much must not have much copied.
var bounds = struct {
	extents, layers int
	slack           int64 // bytes copied at most beside as many as were written
}{65536, 64, 16 << 20}

// over seals the top and lays it over base.
func (t *top) over(base *snapshot.Table) (*snapshot.Table, error) {
	// If there is no space to copy, the table is long: a disk that was frozen
	// must not become one that cannot be read.
	budget := t.written() + bounds.slack
	budget, _ = t.mergeLayers(base, budget)
	_ = t.joinRuns(base, budget)
	runs := t.cover.runs(t.size / pageSize)
	layer, err := t.seal()
	if err != nil {
		return nil, err
	}
	defer layer.Release()
	extents := make([]snapshot.Extent, len(runs))
	for i, r := range runs {
		extents[i] = snapshot.Extent{Start: r.first * pageSize, Length: r.bytes()}
		if !r.zero {
			extents[i].Layer, extents[i].Offset = layer, extents[i].Start
		}
	}
	return base.Overlay(extents)
}

// written is the number of bytes that the top has and that are not known to be
// zeros.
func (t *top) written() (n int64) {
	for _, r := range t.cover.runs(t.size / pageSize) {
		if !r.zero {
			n += r.bytes()
		}
	}
	return n
}

// mergeLayers copies what base has of its smallest layers to the top, until few
// are left or the budget, in bytes, is spent. It returns what is left of that.
func (t *top) mergeLayers(base *snapshot.Table, budget int64) (int64, error) {
	size := bytesOf(base)
	if len(size) < bounds.layers {
		return budget, nil
	}
	var layers []*snapshot.Layer
	for l := range size {
		layers = append(layers, l)
	}
	slices.SortFunc(layers, func(a, b *snapshot.Layer) int { return cmp.Compare(size[a], size[b]) })
	merged := map[*snapshot.Layer]bool{}
	for _, l := range layers[:len(layers)-bounds.layers/2] {
		if budget -= size[l]; budget < 0 {
			budget += size[l]
			break
		}
		merged[l] = true
	}
	for _, e := range base.Extents() {
		if merged[e.Layer] {
			if err := t.fill(base, e.Start/pageSize, e.End()/pageSize); err != nil {
				return budget, err
			}
		}
	}
	return budget, nil
}

// bytesOf is how much of each layer a table has.
func bytesOf(t *snapshot.Table) map[*snapshot.Layer]int64 {
	n := map[*snapshot.Layer]int64{}
	for _, e := range t.Extents() {
		n[e.Layer] += e.Length
	}
	return n
}

// joinRuns fills gaps between what the top has, the smallest first, until the
// table is not too long or the budget is spent.
func (t *top) joinRuns(base *snapshot.Table, budget int64) error {
	runs := t.cover.runs(t.size / pageSize)
	excess := len(base.Extents()) + len(runs) - bounds.extents
	if excess <= 0 {
		return nil
	}
	gaps := gapsBetween(runs)
	slices.SortFunc(gaps, func(a, b run) int { return cmp.Compare(a.bytes(), b.bytes()) })
	for _, g := range gaps[:min(excess, len(gaps))] {
		if budget -= g.bytes(); budget < 0 {
			return nil
		}
		if err := t.fill(base, g.first, g.end); err != nil {
			return err
		}
	}
	return nil
}

// gapsBetween are the pages between runs that are not zeros. There is none next
// to zeros, which are in no layer.
func gapsBetween(runs []run) (gaps []run) {
	var before run
	for i, r := range runs {
		if i > 0 && !before.zero && !r.zero && r.first > before.end {
			gaps = append(gaps, run{first: before.end, end: r.first})
		}
		before = r
	}
	return gaps
}
