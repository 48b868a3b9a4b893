package vmm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// run is a range of pages by byte offset into RAM.
type run struct{ start, end int64 }

func (r run) pages() int64 { return (r.end - r.start) / pageSize }

var (
	pagemapMu   sync.Mutex
	pagemapFile *os.File // guarded by pagemapMu
)

// pagemap is /proc/self/pagemap, opened once for the process.
func pagemap() (*os.File, error) {
	pagemapMu.Lock()
	defer pagemapMu.Unlock()
	if pagemapFile == nil {
		f, err := os.Open("/proc/self/pagemap")
		if err != nil {
			return nil, err
		}
		pagemapFile = f
	}
	return pagemapFile, nil
}

// privatePages finds the pages of ram that are private to it: written since
// they were mapped, by the guest or by a device, and so not those of a layer.
// No page may be written meanwhile.
//
// PAGEMAP_SCAN (Linux 6.7) answers with ranges; before that every page's
// entry in /proc/self/pagemap is read.
func privatePages(ram []byte) ([]run, error) {
	f, err := pagemap()
	if err != nil {
		return nil, fmt.Errorf("vmm: find written pages: %w", err)
	}
	runs, err := scan(f, ram, pageIsFile, 0, 0)
	if errors.Is(err, unix.ENOTTY) {
		runs, err = readPagemap(f, ram)
	}
	if err != nil {
		return nil, fmt.Errorf("vmm: find written pages: %w", err)
	}
	return runs, nil
}

// readPagemap is the answer for kernels without PAGEMAP_SCAN. See
// Documentation/admin-guide/mm/pagemap.rst: bit 63 present, bit 62 swapped,
// bit 61 page of a file. A page of zeros that was only ever read counts as
// private here, which costs a copy and is not wrong.
func readPagemap(f *os.File, ram []byte) ([]run, error) {
	const present, swapped, file = 1 << 63, 1 << 62, 1 << 61
	var (
		runs []run
		buf  [64 << 10]byte
		at   = int64(hostAddr(ram)) / pageSize * 8
		n    = int64(len(ram)) / pageSize * 8
	)
	for done := int64(0); done < n; {
		chunk := buf[:min(int64(len(buf)), n-done)]
		if _, err := f.ReadAt(chunk, at+done); err != nil {
			return nil, err
		}
		for i := 0; i < len(chunk); i += 8 {
			e := binary.LittleEndian.Uint64(chunk[i:])
			if e&(present|swapped) != 0 && e&file == 0 {
				start := (done + int64(i)) / 8 * pageSize
				runs = appendRun(runs, run{start, start + pageSize})
			}
		}
		done += int64(len(chunk))
	}
	return runs, nil
}

func appendRun(runs []run, r run) []run {
	if n := len(runs); n > 0 && runs[n-1].end == r.start {
		runs[n-1].end = r.end
		return runs
	}
	return append(runs, r)
}

// coalesce joins runs whose gap is at most maxGap pages, and then those with
// the smallest gaps, until at most limit are left. The clean pages in the gaps
// are copied along: correct, only more. A mapping costs every child about as
// much time as copying a few pages does, and its process one of the mappings
// it may have.
func coalesce(runs []run, maxGap int64, limit int) []run {
	out := joinGaps(runs, maxGap*pageSize, len(runs))
	if len(out) <= limit {
		return out
	}
	gaps := make([]int64, 0, len(out)-1)
	for i := 1; i < len(out); i++ {
		gaps = append(gaps, out[i].start-out[i-1].end)
	}
	slices.Sort(gaps)
	excess := len(out) - limit
	widest := gaps[excess-1]
	// Gaps as wide as the widest to be joined: no more than are needed.
	ties := excess
	for ties > 0 && gaps[excess-ties] != widest {
		ties--
	}
	return joinGaps(out, widest, ties)
}

// joinGaps joins runs whose gap is narrower than widest, and the first ties of
// those whose gap is just as wide.
func joinGaps(runs []run, widest int64, ties int) []run {
	var out []run
	for _, r := range runs {
		if n := len(out); n > 0 {
			gap := r.start - out[n-1].end
			if gap < widest || gap == widest && ties > 0 {
				if gap == widest {
					ties--
				}
				out[n-1].end = r.end
				continue
			}
		}
		out = append(out, r)
	}
	return out
}

// union is the pages of either; both are in order.
func union(a, b []run) []run {
	if len(a) == 0 {
		return b
	}
	out := make([]run, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		from := &a
		if len(a) == 0 || len(b) > 0 && b[0].start < a[0].start {
			from = &b
		}
		r := (*from)[0]
		*from = (*from)[1:]
		if n := len(out); n > 0 && r.start <= out[n-1].end {
			out[n-1].end = max(out[n-1].end, r.end)
			continue
		}
		out = append(out, r)
	}
	return out
}

// pagesIn counts the pages of runs.
func pagesIn(runs []run) int64 {
	var n int64
	for _, r := range runs {
		n += r.pages()
	}
	return n
}

// lacking is what of a no run of b covers; both are in order.
func lacking(a, b []run) []run {
	var out []run
	for _, r := range a {
		for len(b) > 0 && b[0].end <= r.start {
			b = b[1:]
		}
		for _, c := range b {
			if c.start >= r.end {
				break
			}
			if c.start > r.start {
				out = append(out, run{r.start, c.start})
			}
			r.start = max(r.start, c.end)
		}
		if r.start < r.end {
			out = append(out, r)
		}
	}
	return out
}
