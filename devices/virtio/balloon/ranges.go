package balloon

import (
	"cmp"
	"slices"

	"github.com/forkvm/forkvm/devices/virtio"
)

// maxRange is the largest piece that is believed, in bytes: 16 times what any
// Linux reports as one. It bounds what one descriptor makes the host do.
const maxRange = 64 << 20

// Range is a piece of guest-physical memory.
type Range struct {
	GPA  uint64 // where it begins
	Size uint64 // in bytes
}

// End is the address behind the range.
func (r Range) End() uint64 { return r.GPA + r.Size }

// wellFormed tells whether r is a number of whole pages that can be released.
func (r Range) wellFormed() bool {
	return r.Size > 0 && r.Size <= maxRange && r.GPA%PageSize == 0 && r.Size%PageSize == 0
}

// overlaps tells whether r has a byte in common with one of others.
func (r Range) overlaps(others []Range) bool {
	return slices.ContainsFunc(others, func(o Range) bool { return r.GPA < o.End() && o.GPA < r.End() })
}

// join sorts ranges and makes one of those that touch, in place. What overlaps
// another is dropped; the second result is how many were.
func join(ranges []Range) ([]Range, int) {
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.GPA, b.GPA) })
	joined, dropped := ranges[:0], 0
	for _, r := range ranges {
		last := len(joined) - 1
		switch {
		case last < 0 || r.GPA > joined[last].End():
			joined = append(joined, r)
		case r.GPA == joined[last].End():
			joined[last].Size += r.Size
		default:
			dropped++
		}
	}
	return joined, dropped
}

// ringsOf are the three areas of a queue (section 2.7), a little more rather
// than less.
func ringsOf(q virtio.QueueState) []Range {
	n := uint64(q.Size)
	return []Range{{q.Desc, 16 * n}, {q.Avail, 8 + 2*n}, {q.Used, 8 + 8*n}}
}
