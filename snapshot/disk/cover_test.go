package disk

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
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

// TestRunOfAPageThatIsJustBeingSet has at least that page: a read that begins in
// the middle of it would go backwards.
func TestRunOfAPageThatIsJustBeingSet(t *testing.T) {
	c := newCover(64)
	c.chunkOf(0)
	looks := 0
	set, next := c.sameRun(5, 64, func(*chunk, int64) uint64 {
		looks++
		return uint64(looks-1) << 5 // set from the second look on
	})
	if set || next <= 5 {
		t.Errorf("%v up to before %d", set, next)
	}
}

// TestReadOfPagesThatAreJustBeingWritten, from the middle of one on: what comes is
// as many bytes as were asked for, of zeros and of what is written.
func TestReadOfPagesThatAreJustBeingWritten(t *testing.T) {
	const pages = 1 << 15
	for range 8 {
		d := newDisk(t, pages*pageSize, Options{})
		ones := [][]byte{bytes.Repeat([]byte{1}, pageSize)}
		if err := d.WriteAt(ones, 0); err != nil { // now others may write beside each other
			t.Fatal(err)
		}
		var at atomic.Int64
		at.Store(1)
		var writer sync.WaitGroup
		writer.Go(func() {
			defer at.Store(0)
			for k := int64(1); k < pages-2; k++ {
				at.Store(k)
				if err := d.WriteAt(ones, k*pageSize); err != nil {
					t.Error(err)
				}
			}
		})
		buf := make([]byte, 2*pageSize)
		for k := at.Load(); k > 0; k = at.Load() {
			if err := d.ReadAt([][]byte{buf}, k*pageSize+512); err != nil {
				t.Error(err)
				break
			}
		}
		writer.Wait()
		d.Close()
	}
}
