package snapshot

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// span is a range of a layer's bytes.
type span struct{ start, end int64 }

// spans is a set of bytes: sorted, neither overlapping nor touching. Nil is
// the set of all.
type spans []span

// newSpans makes a set of ranges in any order, which may overlap.
func newSpans(ranges []span) spans {
	slices.SortFunc(ranges, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	set := spans{}
	for _, r := range ranges {
		if n := len(set); n > 0 && r.start <= set[n-1].end {
			set[n-1].end = max(set[n-1].end, r.end)
			continue
		}
		set = append(set, r)
	}
	return set
}

// from is the index of the first span that ends after off.
func (s spans) from(off int64) int {
	return sort.Search(len(s), func(i int) bool { return s[i].end > off })
}

// next is the first byte of the set at or after off; very far if there is none.
func (s spans) next(off int64) int64 {
	if s == nil {
		return off
	}
	i := s.from(off)
	if i == len(s) {
		return math.MaxInt64
	}
	return max(s[i].start, off)
}

// within is how many bytes of [start, end) are in the set.
func (s spans) within(start, end int64) (n int64) {
	if s == nil {
		return end - start
	}
	for i := s.from(start); i < len(s) && s[i].start < end; i++ {
		n += min(s[i].end, end) - max(s[i].start, start)
	}
	return n
}

// covers tells whether all of other is in the set.
func (s spans) covers(other spans) bool {
	if s == nil {
		return true
	}
	if other == nil {
		return false
	}
	for _, o := range other {
		if s.within(o.start, o.end) != o.end-o.start {
			return false
		}
	}
	return true
}
