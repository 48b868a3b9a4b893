package disk

import (
	"math/bits"
	"sync/atomic"
)

// cover says of each page of a disk whether a top has it, and whether it is
// known to be zeros there. Pages that differ in time are set by several
// goroutines at once; a chunk of the disk in which nothing is set takes no
// memory.
type cover struct {
	chunks []atomic.Pointer[chunk]
}

const (
	chunkWords = 512
	chunkPages = chunkWords * 64 // 128 MiB
)

// chunk has a bit a page in each of its sets.
type chunk struct{ owned, zero [chunkWords]atomic.Uint64 }

func newCover(pages int64) *cover {
	return &cover{make([]atomic.Pointer[chunk], (pages+chunkPages-1)/chunkPages)}
}

// chunkOf is the chunk of a page, made if it is not there yet.
func (c *cover) chunkOf(page int64) *chunk {
	p := &c.chunks[page/chunkPages]
	if p.Load() == nil {
		p.CompareAndSwap(nil, new(chunk))
	}
	return p.Load()
}

// set notes that the top has the pages from first to before end.
func (c *cover) set(first, end int64, zero bool) {
	for first < end {
		k, word := c.chunkOf(first), first%chunkPages/64
		n := min(64-first%64, end-first)
		mask := ^uint64(0) >> (64 - n) << (first % 64)
		if zero {
			k.zero[word].Or(mask)
		} else {
			k.zero[word].And(^mask)
		}
		k.owned[word].Or(mask)
		first += n
	}
}

// notZero notes that pages may not be zeros any more.
func (c *cover) notZero(first, end int64) {
	for first < end {
		n := min(64-first%64, end-first)
		if k := c.chunks[first/chunkPages].Load(); k != nil {
			k.zero[first%chunkPages/64].And(^(^uint64(0) >> (64 - n) << (first % 64)))
		}
		first += n
	}
}

func (c *cover) owns(page int64) bool {
	k := c.chunks[page/chunkPages].Load()
	return k != nil && k.owned[page%chunkPages/64].Load()>>(page%64)&1 == 1
}

// run tells whether the top has the page first, and up to which page, at most
// end, that is so.
func (c *cover) run(first, end int64) (owned bool, next int64) {
	return c.sameRun(first, end, func(k *chunk, word int64) uint64 { return k.owned[word].Load() })
}

// zeroRun is run for whether pages are known to be zeros.
func (c *cover) zeroRun(first, end int64) (zero bool, next int64) {
	return c.sameRun(first, end, func(k *chunk, word int64) uint64 { return k.zero[word].Load() })
}

// sameRun is the bit of the page first in one of the sets, and up to which page
// it is the same: past first at any rate, if that is before end.
func (c *cover) sameRun(first, end int64, word func(k *chunk, word int64) uint64) (set bool, next int64) {
	at := func(page int64) uint64 {
		k := c.chunks[page/chunkPages].Load()
		if k == nil {
			return 0
		}
		return word(k, page%chunkPages/64)
	}
	set = at(first)>>(first%64)&1 == 1
	for next = first; next < end; next = (next/64 + 1) * 64 {
		if c.chunks[next/chunkPages].Load() == nil && !set {
			next = (next/chunkPages+1)*chunkPages - 1 // to the next chunk
			continue
		}
		differ := at(next)
		if set {
			differ = ^differ
		}
		if differ >>= next % 64; differ != 0 {
			// The first page may have been set since it was looked at.
			return set, min(end, max(first+1, next+int64(bits.TrailingZeros64(differ))))
		}
	}
	return set, end
}

// runs are the longest sequences of pages that the top has, apart where they
// are zeros, in order.
func (c *cover) runs(pages int64) (out []run) {
	for at := int64(0); at < pages; {
		owned, next := c.run(at, pages)
		if owned {
			out = c.split(out, run{first: at, end: next})
		}
		at = next
	}
	return out
}

// split appends r in parts that are all zeros or not known to be.
func (c *cover) split(out []run, r run) []run {
	for r.first < r.end {
		zero, next := c.zeroRun(r.first, r.end)
		out = append(out, run{r.first, next, zero})
		r.first = next
	}
	return out
}

// run is a sequence of pages.
type run struct {
	first, end int64
	zero       bool
}

func (r run) bytes() int64 { return (r.end - r.first) * pageSize }
