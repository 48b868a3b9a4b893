package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// blockSize is the unit in which layers are read and summed. Blocks are
// independent of each other, so all CPUs can work on one layer.
const blockSize = 1 << 20

// LayerInfo says what a stored layer is.
type LayerInfo struct {
	// Sum identifies the content.
	Sum Sum `json:"sum"`
	// Size is the length in bytes, zeros included: a multiple of [PageSize].
	Size int64 `json:"size"`
	// Data is the number of bytes in pages that are not all zeros.
	Data int64 `json:"data"`
}

// block holds the pages of one block that are not all zeros.
type block struct {
	off  int64
	buf  []byte
	used [blockSize / PageSize]bool
}

// blocks are used again: fresh memory costs as much as the sum of it.
var blocks = sync.Pool{New: func() any { return &block{buf: make([]byte, blockSize)} }}

func (b *block) reset(off int64) {
	b.off = off
	clear(b.used[:])
}

// runs are the longest sequences of used pages, with their offsets in the layer.
func (b *block) runs() iter.Seq2[int64, []byte] {
	return func(yield func(int64, []byte) bool) {
		for i := 0; i < len(b.used); i++ {
			first := i
			for i < len(b.used) && b.used[i] {
				i++
			}
			if i > first && !yield(b.off+int64(first)*PageSize, b.buf[first*PageSize:i*PageSize]) {
				return
			}
		}
	}
}

// blockSum is the sum of what is in a block: of each run the offset, the
// length and the bytes.
type blockSum struct {
	off, data int64
	sum       [sha256.Size]byte
}

func (b *block) sum() blockSum {
	s := blockSum{off: b.off}
	h := sha256.New()
	for off, p := range b.runs() {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(off)))
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(p))))
		h.Write(p)
		s.data += int64(len(p))
	}
	h.Sum(s.sum[:0])
	return s
}

// layerInfo sums up a layer of its blocks that are not all zeros, in any
// order. What a file system reports as a hole has no influence.
func layerInfo(size int64, blocks []blockSum) LayerInfo {
	slices.SortFunc(blocks, func(a, b blockSum) int { return cmp.Compare(a.off, b.off) })
	info := LayerInfo{Size: size}
	h := sha256.New()
	io.WriteString(h, "forkvm layer 1\n")
	for _, b := range blocks {
		if b.data > 0 {
			h.Write(binary.LittleEndian.AppendUint64(nil, uint64(b.off)))
			h.Write(b.sum[:])
			info.Data += b.data
		}
	}
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
	h.Sum(info.Sum[:0])
	return info
}

// scanner goes through the pages of a file that are not all zeros.
type scanner struct {
	file *os.File
	size int64
	want spans // pages outside of it count as zeros

	mu   sync.Mutex
	next int64 // guarded by mu
}

// nextBlock finds the next block that may have something in it.
func (s *scanner) nextBlock() (off int64, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		s.next = s.want.next(s.next) / blockSize * blockSize
		if s.next >= s.size {
			return 0, false, nil
		}
		data, ok, err := seek(s.file, s.next, unix.SEEK_DATA)
		if !ok || err != nil || data >= s.size {
			return 0, false, err
		}
		off = data / blockSize * blockSize
		s.next = off + blockSize
		if s.want.next(off) < s.next {
			return off, true, nil
		}
	}
}

// read fills b with what the file has from b.off.
func (s *scanner) read(b *block) error {
	end := min(b.off+blockSize, s.size)
	for at := b.off; at < end; {
		data, ok, err := seek(s.file, at, unix.SEEK_DATA)
		if !ok || err != nil || data >= end {
			return err
		}
		hole, ok, err := seek(s.file, data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if !ok {
			return corrupt("file shrank below %d bytes", s.size)
		}
		// A file system's blocks may be smaller than pages.
		at = min((hole+PageSize-1)/PageSize*PageSize, end)
		first := data / PageSize * PageSize
		if n, err := s.file.ReadAt(b.buf[first-b.off:at-b.off], first); int64(n) < at-first {
			if errors.Is(err, io.EOF) {
				return corrupt("file ends at %d, not at %d", first+int64(n), s.size)
			}
			return err
		}
		s.mark(b, first, at)
	}
	return nil
}

func (s *scanner) mark(b *block, from, to int64) {
	for off := from; off < to; off += PageSize {
		page := b.buf[off-b.off:][:PageSize]
		b.used[(off-b.off)/PageSize] = !bytes.Equal(page, zeroPage[:]) && s.want.next(off) == off
	}
}

// scan reads all of the file and sums it up. It hands each run to visit, if
// there is one, from several goroutines at a time and in no order.
func (s *scanner) scan(ctx context.Context, done *progress, visit func(off int64, p []byte) error) (LayerInfo, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var (
		mu   sync.Mutex
		sums []blockSum
		all  sync.WaitGroup
	)
	for range min(int64(runtime.GOMAXPROCS(0)), 8, (s.size+blockSize-1)/blockSize) {
		all.Go(func() {
			mine, err := s.work(ctx, done, visit)
			if err != nil {
				stop(err)
			}
			mu.Lock()
			defer mu.Unlock()
			sums = append(sums, mine...)
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return LayerInfo{}, err
	}
	// Where a file ends there seem to be only holes.
	st, err := s.file.Stat()
	if err == nil && st.Size() < s.size {
		err = corrupt("the file has %d bytes of %d", st.Size(), s.size)
	}
	if err != nil {
		return LayerInfo{}, err
	}
	return layerInfo(s.size, sums), nil
}

func (s *scanner) work(ctx context.Context, done *progress, visit func(off int64, p []byte) error) (sums []blockSum, err error) {
	b := blocks.Get().(*block)
	defer blocks.Put(b)
	for ctx.Err() == nil {
		off, ok, err := s.nextBlock()
		if !ok || err != nil {
			return sums, err
		}
		b.reset(off)
		if err := s.read(b); err != nil {
			return nil, err
		}
		sum := b.sum()
		for off, p := range b.runs() {
			if visit == nil {
				break
			}
			if err := visit(off, p); err != nil {
				return nil, err
			}
		}
		sums = append(sums, sum)
		done.add(sum.data)
	}
	return sums, nil
}

// dataBytes is about how much of a file is not holes, within want.
func dataBytes(f *os.File, size int64, want spans) (total int64, err error) {
	for at := want.next(0); at < size; at = want.next(at) {
		data, ok, err := seek(f, at, unix.SEEK_DATA)
		if !ok || err != nil {
			return total, err
		}
		hole, ok, err := seek(f, data, unix.SEEK_HOLE)
		if !ok || err != nil {
			return total, err
		}
		hole = min(hole, size)
		total += want.within(data, hole)
		at = hole
	}
	return total, nil
}

// seek finds data or a hole; ok is false if there is none before the end.
func seek(f *os.File, off int64, whence int) (at int64, ok bool, err error) {
	at, err = f.Seek(off, whence)
	if errors.Is(err, unix.ENXIO) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("find data: %w", err)
	}
	return at, true, nil
}

// progress counts bytes for somebody who watches. A nil one does nothing.
type progress struct {
	mu          sync.Mutex
	done, total int64
	report      func(done, total int64)
}

func newProgress(total int64, report func(done, total int64)) *progress {
	if report == nil {
		return nil
	}
	report(0, total)
	return &progress{total: total, report: report}
}

func (p *progress) add(n int64) {
	if p == nil || n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	p.total = max(p.total, p.done) // the total is an estimate
	p.report(p.done, p.total)
}
