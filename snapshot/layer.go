// Package snapshot answers what outlives a machine: immutable layers of bytes
// and the extent tables that say which layer backs which part of a machine's
// memory (and, in time, of its disks).
//
// The state of vCPUs and devices is opaque to this package.
package snapshot

import (
	"bytes"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// PageSize is the granularity of layers and extents in bytes.
const PageSize = 4096

// Layer is an immutable sequence of pages that any number of machines map
// privately. Its bytes live in a memfd sealed against writing, growing and
// shrinking, so a mapping of it can neither change nor fault past its end.
//
// A Layer is counted: it is made with one reference, and the last Release
// closes its descriptor. Mappings made before stay valid. It is safe for
// concurrent use.
type Layer struct {
	file *os.File
	size int64
	refs atomic.Int64
	kept keptForms
}

// FD is the descriptor to map. It is valid while the caller holds a reference.
func (l *Layer) FD() int { return int(l.file.Fd()) }

// Size is the length of the layer in bytes, a multiple of [PageSize].
func (l *Layer) Size() int64 { return l.size }

// ReadAt reads from the layer as io.ReaderAt does.
func (l *Layer) ReadAt(p []byte, off int64) (int, error) { return l.file.ReadAt(p, off) }

// Retain adds a reference. The caller must hold one already.
func (l *Layer) Retain() {
	if l.refs.Add(1) <= 1 {
		panic("snapshot: Retain of a released layer")
	}
}

// Release drops a reference.
func (l *Layer) Release() {
	switch n := l.refs.Add(-1); {
	case n == 0:
		l.file.Close()
	case n < 0:
		panic("snapshot: Release of a released layer")
	}
}

// LayerWriter fills a layer that is not yet immutable. It is not safe for
// concurrent use.
type LayerWriter struct {
	file *os.File
	size int64
}

// NewLayerWriter starts an empty layer in anonymous memory.
func NewLayerWriter() (*LayerWriter, error) {
	fd, err := unix.MemfdCreate("forkvm-layer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("snapshot: memfd_create: %w", err)
	}
	return &LayerWriter{file: os.NewFile(uintptr(fd), "forkvm-layer")}, nil
}

var zeroPage [PageSize]byte

// Append adds p, whose length must be a multiple of [PageSize], and returns
// the offset at which it begins. Pages of zeros take no memory. When memory is
// exhausted it fails and the layer must be abandoned.
func (w *LayerWriter) Append(p []byte) (off int64, err error) {
	if len(p)%PageSize != 0 {
		return 0, fmt.Errorf("snapshot: append of %d bytes: not a multiple of %d", len(p), PageSize)
	}
	off = w.size
	for len(p) > 0 {
		zeros := leading(p, true)
		w.size += int64(zeros)
		p = p[zeros:]
		data := p[:leading(p, false)]
		if _, err := w.file.WriteAt(data, w.size); err != nil {
			return 0, fmt.Errorf("snapshot: write layer: %w", err)
		}
		w.size += int64(len(data))
		p = p[len(data):]
	}
	return off, nil
}

// leading is the length of the pages at the start of p that are all zeros, or
// of those that are not.
func leading(p []byte, zeros bool) int {
	n := 0
	for n < len(p) && bytes.Equal(p[n:n+PageSize], zeroPage[:]) == zeros {
		n += PageSize
	}
	return n
}

// Size is the number of bytes appended so far.
func (w *LayerWriter) Size() int64 { return w.size }

// Seal makes the layer immutable. The writer must not be used afterwards.
func (w *LayerWriter) Seal() (*Layer, error) {
	if err := w.file.Truncate(w.size); err != nil { // it may end in zeros
		w.Abandon()
		return nil, fmt.Errorf("snapshot: seal layer: %w", err)
	}
	// FUTURE_WRITE rather than WRITE: it need not look for writable mappings,
	// of which there are none, and so does not walk the pages.
	const seals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(w.file.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		w.Abandon()
		return nil, fmt.Errorf("snapshot: seal layer: %w", err)
	}
	l := &Layer{file: w.file, size: w.size}
	l.refs.Store(1)
	w.file = nil
	return l, nil
}

// Abandon frees an unsealed layer. It does nothing after Seal.
func (w *LayerWriter) Abandon() {
	if w.file != nil {
		w.file.Close()
		w.file = nil
	}
}
