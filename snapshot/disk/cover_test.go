package disk

import (
	"math/rand/v2"
	"testing"
)

// TestCoverAgainstAList sets pages of several chunks, most of them apart, and
// compares runs with what a list of pages says.
func TestCoverAgainstAList(t *testing.T) {
	const pages = 3*chunkPages + 100
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		c, list := newCover(pages), make([]byte, pages) // 0 not owned, 1 owned, 2 zero
		for range 30 {
			first := r.Int64N(pages)
			if r.IntN(4) == 0 {
				first = first / chunkPages * chunkPages
			}
			end := min(pages, first+1+r.Int64N(200))
			if r.IntN(10) == 0 {
				end = min(pages, first+chunkPages+r.Int64N(100))
			}
			zero := r.IntN(2) == 0
			c.set(first, end, zero)
			for p := first; p < end; p++ {
				list[p] = 1
				if zero {
					list[p] = 2
				}
			}
		}
		at := int64(0)
		for _, run := range c.runs(pages) {
			for ; at < run.first; at++ {
				if list[at] != 0 {
					t.Fatalf("seed %d: page %d is in no run", seed, at)
				}
			}
			for ; at < run.end; at++ {
				if want := byte(1); run.zero && list[at] != 2 || !run.zero && list[at] != want {
					t.Fatalf("seed %d: page %d is %d, in %+v", seed, at, list[at], run)
				}
			}
		}
		for ; at < pages; at++ {
			if list[at] != 0 {
				t.Fatalf("seed %d: page %d is in no run", seed, at)
			}
		}
	}
}
