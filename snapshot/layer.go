// Package snapshot answers what outlives a machine: immutable layers of bytes,
// the extent tables that say which layer backs which part of a machine's
// memory or disk, and the store that keeps both on a disk.
//
// The state of vCPUs and devices is opaque to this package.
package snapshot

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// PageSize is the granularity of layers and extents in bytes.
const PageSize = 4096

// Layer is an immutable sequence of pages that any number of machines map
// privately. Its bytes live in a memfd sealed against writing, growing and
// shrinking, so a mapping of it can neither change nor fault past its end; or
// in a file of a [Store], which verified it and never writes to it again.
//
// A Layer is counted: it is made with one reference, and the last Release
// closes its descriptor. Mappings made before stay valid. It is safe for
// concurrent use.
type Layer struct {
	file   *os.File
	size   int64
	memory bool // see InMemory
	refs   atomic.Int64
	kept   keptForms
	looked looked
}

// NewLayer makes a layer of a file that nobody will change any more, which it
// takes over. The size, in bytes, must be a multiple of [PageSize]; the file is
// at least as long.
func NewLayer(f *os.File, size int64) (*Layer, error) {
	if size <= 0 || size%PageSize != 0 {
		return nil, fmt.Errorf("snapshot: layer of %d bytes: not a positive multiple of %d", size, PageSize)
	}
	l := &Layer{file: f, size: size, memory: InMemory(f)}
	l.refs.Store(1)
	return l, nil
}

// InMemory tells whether a file is memory, so that no access to it waits for a
// disk, unless it was swapped out.
func InMemory(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC)
}

// InMemory tells whether the layer is memory, see the function.
func (l *Layer) InMemory() bool { return l.memory }

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
		l.looked.forget()
		l.file.Close()
	case n < 0:
		panic("snapshot: Release of a released layer")
	}
}
