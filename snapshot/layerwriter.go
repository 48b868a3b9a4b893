package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// LayerWriter fills a layer that is not yet immutable. The layer is as long as
// the memory it is written for, and what is at an offset of one is at the same
// offset of the other: so a page can be written twice, and whatever is never
// written is zeros that take no memory. It is not safe for concurrent use.
type LayerWriter struct {
	file     *os.File
	window   []byte   // the whole layer, mapped shared
	reserved []uint64 // a bit for each page that has memory behind it
}

// NewLayerWriter starts a layer of size bytes of zeros in anonymous memory.
// The size must be a multiple of [PageSize].
func NewLayerWriter(size int64) (*LayerWriter, error) {
	if size <= 0 || size%PageSize != 0 {
		return nil, fmt.Errorf("snapshot: layer of %d bytes: not a positive multiple of %d", size, PageSize)
	}
	fd, err := unix.MemfdCreate("forkvm-layer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("snapshot: memfd_create: %w", err)
	}
	w := &LayerWriter{file: os.NewFile(uintptr(fd), "forkvm-layer")}
	if err := unix.Ftruncate(fd, size); err != nil {
		w.Close()
		return nil, fmt.Errorf("snapshot: size of layer: %w", err)
	}
	w.window, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("snapshot: map a layer of %d MiB: %w", size>>20, err)
	}
	w.reserved = make([]uint64, (size/PageSize+63)/64)
	return w, nil
}

// Reserve puts memory behind a range of whole pages, so that writing them
// costs a third of what it does otherwise. It fails when memory is exhausted.
func (w *LayerWriter) Reserve(off, n int64) error {
	if err := w.check(off, n); err != nil || n == 0 {
		return err
	}
	switch err := unix.Madvise(w.window[off:off+n], unix.MADV_POPULATE_WRITE); {
	case errors.Is(err, unix.EINVAL): // Linux before 5.14
		return nil
	case err != nil:
		return fmt.Errorf("snapshot: memory for a layer: %w", err)
	}
	w.setReserved(off, n, true)
	return nil
}

// WriteAt writes whole pages. Only reserved ones are stored to through the
// mapping: a store for which the kernel finds no memory would end the process,
// where a write to a file returns an error.
func (w *LayerWriter) WriteAt(p []byte, off int64) error {
	if err := w.check(off, int64(len(p))); err != nil {
		return err
	}
	if w.isReserved(off, int64(len(p))) {
		copy(w.window[off:], p)
		return nil
	}
	if _, err := w.file.WriteAt(p, off); err != nil {
		return fmt.Errorf("snapshot: write layer: %w", err)
	}
	w.setReserved(off, int64(len(p)), true)
	return nil
}

func (w *LayerWriter) setReserved(off, n int64, on bool) {
	for page := off / PageSize; page < (off+n)/PageSize; page++ {
		if on {
			w.reserved[page/64] |= 1 << (page % 64)
		} else {
			w.reserved[page/64] &^= 1 << (page % 64)
		}
	}
}

func (w *LayerWriter) isReserved(off, n int64) bool {
	for page := off / PageSize; page < (off+n)/PageSize; page++ {
		if w.reserved[page/64]&(1<<(page%64)) == 0 {
			return false
		}
	}
	return true
}

// Fill copies a range of a table, and returns how many bytes of it are of a
// layer; what is not is left alone.
func (w *LayerWriter) Fill(t *Table, off, n int64) (mapped int64, err error) {
	if err := w.check(off, n); err != nil {
		return 0, err
	}
	for _, e := range t.within(off, off+n) {
		if err := w.Reserve(e.Start, e.Length); err != nil {
			return 0, err
		}
		p := w.window[e.Start:e.End()]
		if !w.isReserved(e.Start, e.Length) {
			p = make([]byte, e.Length)
		}
		if _, err := e.Layer.ReadAt(p, e.Offset); err != nil {
			return 0, fmt.Errorf("snapshot: read layer: %w", err)
		}
		if !w.isReserved(e.Start, e.Length) {
			if err := w.WriteAt(p, e.Start); err != nil {
				return 0, err
			}
		}
		mapped += e.Length
	}
	return mapped, nil
}

// Holds tells whether the page at off is the same as p. It may be asked after
// Seal as well, until Close.
func (w *LayerWriter) Holds(p []byte, off int64) bool {
	if w.check(off, PageSize) != nil {
		return false
	}
	page := zeroPage[:]
	if w.isReserved(off, PageSize) { // a hole would be filled by looking at it
		page = w.window[off : off+PageSize]
	}
	return bytes.Equal(page, p)
}

// FreeZeros gives back the memory of pages in the range that were written and
// are all zeros. Only what was written may be looked at: reading a hole would
// fill it.
func (w *LayerWriter) FreeZeros(off, n int64) error {
	if err := w.check(off, n); err != nil {
		return err
	}
	end := off + n
	for off < end {
		zeros := leading(w.window[off:end], true)
		if zeros > 0 {
			if err := w.Free(off, zeros); err != nil {
				return err
			}
		}
		off += zeros
		off += leading(w.window[off:end], false)
	}
	return nil
}

// Free makes a range zeros that take no memory, as if never written.
func (w *LayerWriter) Free(off, n int64) error {
	if err := w.check(off, n); err != nil {
		return err
	}
	err := unix.Fallocate(int(w.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	if err != nil {
		return fmt.Errorf("snapshot: free pages of a layer: %w", err)
	}
	w.setReserved(off, n, false)
	return nil
}

func (w *LayerWriter) check(off, n int64) error {
	size := int64(len(w.window))
	if (off|n)%PageSize != 0 || off < 0 || n < 0 || off > size-n {
		return fmt.Errorf("snapshot: pages %#x+%#x of a layer of %#x bytes", off, n, size)
	}
	return nil
}

// forget empties the mapping, a little at a time. Whoever maps something in the
// process has to wait while one is removed.
func (w *LayerWriter) forget() {
	const chunk = 4 << 20
	for off := int64(0); off+chunk <= int64(len(w.window)); off += chunk {
		bits := w.reserved[off/PageSize/64 : (off+chunk)/PageSize/64]
		if slices.ContainsFunc(bits, func(b uint64) bool { return b != 0 }) {
			_ = unix.Madvise(w.window[off:off+chunk], unix.MADV_DONTNEED)
		}
	}
}

var zeroPage [PageSize]byte

// leading is the length of the pages at the start of p that are all zeros, or
// of those that are not.
func leading(p []byte, zeros bool) int64 {
	n := 0
	for n < len(p) && bytes.Equal(p[n:n+PageSize], zeroPage[:]) == zeros {
		n += PageSize
	}
	return int64(n)
}

// Seal makes the layer immutable. The writer must not be used afterwards, but
// for Holds, and needs a Close.
func (w *LayerWriter) Seal() (*Layer, error) {
	// FUTURE_WRITE rather than WRITE, which would have the mapping of the
	// writer removed first, page by page.
	const seals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(w.file.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		w.Close()
		return nil, fmt.Errorf("snapshot: seal layer: %w", err)
	}
	l := &Layer{file: w.file, size: int64(len(w.window)), memory: true}
	l.refs.Store(1)
	w.file = nil
	return l, nil
}

// Close frees what the writer has: the layer too, unless it is sealed.
func (w *LayerWriter) Close() {
	if w.window != nil {
		w.forget()
		_ = unix.Munmap(w.window)
		w.window = nil
	}
	if w.file != nil {
		w.file.Close()
		w.file = nil
	}
}
