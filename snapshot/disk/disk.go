// Package disk answers what a machine's disk holds: what it began with, shared
// and never written, and on top what the machine has written since, which is
// its own. Freezing a disk takes no time and copies nothing: what was on top
// becomes a layer that machines started from the captured state share with the
// one that goes on.
package disk

import (
	"errors"
	"fmt"
	"sync"

	"github.com/forkvm/forkvm/snapshot"
)

// pageSize is the unit in which is noted who has written what. It is the block
// of the file systems that guests use: as long as they write whole blocks,
// nothing is ever copied from below.
const pageSize = snapshot.PageSize

// ErrClosed is wrapped by what a disk answers after Close.
var ErrClosed = errors.New("disk is closed")

// Options are what a disk may be made with.
type Options struct {
	// Dir is the directory of the file for what is written, which has no name
	// there and is gone when nobody uses it. If empty it is anonymous memory.
	Dir string
}

// Disk is the disk of one machine. It is safe for concurrent use. Of requests
// for the same bytes at the same time some order is taken; others do not
// disturb each other.
//
// What is written lives no longer than the process, unless it becomes part of
// a snapshot in a store, which is synced. So Flush has nothing to do.
type Disk struct {
	size int64
	dir  string

	// mu is held for reading by every request, and for writing by what changes
	// where things are: then none is in flight.
	mu    sync.RWMutex
	below *level
	top   *top // nil as long as nothing was written
	down  bool
}

// New makes a disk that begins as base says, on which it takes a reference.
func New(base *snapshot.Table, o Options) *Disk {
	return &Disk{size: base.Size(), dir: o.Dir, below: wholeLevel(base)}
}

// Size is the size in bytes, a multiple of [snapshot.PageSize].
func (d *Disk) Size() int64 { return d.size }

// Close frees what the disk has. Requests fail from then on; tables that were
// taken of it stay. Further calls do nothing.
func (d *Disk) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return
	}
	d.down = true
	d.below.release()
	if d.top != nil {
		d.top.close()
		d.top = nil
	}
}

// Usage says how many bytes were written, and not discarded, since the disk was
// made or last frozen, as the file system counts them; and how many bytes of
// layers are below. Requests do not wait for it.
func (d *Disk) Usage() (own, below int64, err error) {
	level, own, err := d.ownParts()
	if err != nil {
		return 0, 0, err
	}
	defer level.release()
	table, err := level.resolve()
	if err != nil {
		return 0, 0, err
	}
	return own, table.Stored(), nil
}

// ownParts is how many bytes were written, and what is below, which the caller
// releases.
func (d *Disk) ownParts() (below *level, own int64, err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.check(0, 0); err != nil {
		return nil, 0, err
	}
	if d.top != nil {
		if own, err = d.top.allocated(); err != nil {
			return nil, 0, err
		}
	}
	return d.below.retain(), own, nil
}

func (d *Disk) check(off, n int64) error {
	if d.down {
		return fmt.Errorf("disk: %w", ErrClosed)
	}
	if off < 0 || n < 0 || off > d.size-n {
		return fmt.Errorf("disk: %d bytes at %d of %d", n, off, d.size)
	}
	return nil
}

// ReadAt fills the buffers, one after the other, with the bytes from off on.
func (d *Disk) ReadAt(bufs [][]byte, off int64) error {
	n := total(bufs)
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.check(off, n); err != nil || n == 0 {
		return err
	}
	v := newVector(bufs)
	defer v.free()
	return d.read(v, off, n)
}

// TryReadAt is ReadAt for who must not wait. It returns false if it would have
// to: for hardware, or for the disk to be frozen. Then the buffers may hold
// anything.
func (d *Disk) TryReadAt(bufs [][]byte, off int64) (done bool, err error) {
	if !d.mu.TryRLock() {
		return false, nil
	}
	defer d.mu.RUnlock()
	n := total(bufs)
	if d.check(off, n) != nil || !d.below.ready.Load() {
		return false, nil
	}
	v := newVector(bufs)
	defer v.free()
	v.prompt = true
	return d.read(v, off, n) == nil, nil
}

// read is ReadAt for who holds mu.
func (d *Disk) read(v *vector, off, n int64) error {
	end := off + n
	for off < end {
		owned, next := false, end
		if d.top != nil {
			var page int64
			owned, page = d.top.cover.run(off/pageSize, (end+pageSize-1)/pageSize)
			next = min(end, page*pageSize)
		}
		read := d.readBelow
		if owned {
			read = d.readTop
		}
		if err := read(v, off, next-off); err != nil {
			return err
		}
		off = next
	}
	return nil
}

func (d *Disk) readTop(v *vector, off, n int64) error {
	return v.read(d.top.fd(), d.top.memory, off, n)
}

func (d *Disk) readBelow(v *vector, off, n int64) error {
	table, err := d.below.resolve()
	if err != nil {
		return err
	}
	for n > 0 {
		layer, at, k := table.Locate(off)
		k = min(k, n)
		if layer == nil {
			v.clear(k)
		} else if err := v.read(layer.FD(), layer.InMemory(), at, k); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}

// WriteAt writes the buffers, one after the other, to the bytes from off on. If
// it fails, those may be old or new, and none other has changed.
func (d *Disk) WriteAt(bufs [][]byte, off int64) error {
	n := total(bufs)
	if n == 0 {
		return nil
	}
	v := newVector(bufs)
	defer v.free()
	done, err := d.writeOwn(v, off, n)
	if done || err != nil {
		return err
	}
	return d.writeShared(v, off, n)
}

// TryWriteAt is WriteAt for who must not wait. It returns false if it would have
// to. Then the bytes may be old or new.
func (d *Disk) TryWriteAt(bufs [][]byte, off int64) (done bool, err error) {
	if !d.mu.TryRLock() {
		return false, nil
	}
	defer d.mu.RUnlock()
	n := total(bufs)
	if d.check(off, n) != nil || d.top == nil || !d.top.memory || d.top.lacksEdge(off) || d.top.lacksEdge(off+n) {
		return false, nil
	}
	v := newVector(bufs)
	defer v.free()
	return d.top.write(v, off, n) == nil, nil
}

// writeOwn writes what lies in pages that are whole or on top already. It
// tells whether that is all.
func (d *Disk) writeOwn(v *vector, off, n int64) (done bool, err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.check(off, n); err != nil {
		return false, err
	}
	if d.top == nil || d.top.lacksEdge(off) || d.top.lacksEdge(off+n) {
		return false, nil
	}
	return true, d.top.write(v, off, n)
}

// writeShared writes after it has copied the rest of the pages at both ends
// from below, while nobody else writes.
func (d *Disk) writeShared(v *vector, off, n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.needTop(off, n); err != nil {
		return err
	}
	for _, edge := range []int64{off, off + n} {
		if !d.top.lacksEdge(edge) {
			continue
		}
		base, err := d.below.resolve()
		if err != nil {
			return err
		}
		if err := d.top.fill(base, edge/pageSize, edge/pageSize+1); err != nil {
			return err
		}
	}
	return d.top.write(v, off, n)
}

// needTop sees to it that there is one. The caller holds mu for writing.
func (d *Disk) needTop(off, n int64) (err error) {
	if err := d.check(off, n); err != nil {
		return err
	}
	if d.top == nil {
		d.top, err = newTop(d.dir, d.size)
	}
	return err
}

// Flush returns when what was written before is as safe as it will be.
func (d *Disk) Flush() error { return nil }

// Volatile says that Flush has nothing to do.
func (d *Disk) Volatile() {}

// WriteZeroes makes n bytes from off on zeros. They take no space, whether or
// not unmap asks for that.
func (d *Disk) WriteZeroes(off, n int64, unmap bool) error { return d.Discard(off, n) }

// Discard makes n bytes from off on zeros that take no space.
func (d *Disk) Discard(off, n int64) error {
	d.mu.RLock()
	err := d.check(off, n)
	d.mu.RUnlock()
	if err != nil {
		return err
	}
	first, end := (off+pageSize-1)/pageSize, (off+n)/pageSize
	if first >= end { // parts of one page, or two
		return d.writeZeros(off, off+n)
	}
	if err := d.writeZeros(off, first*pageSize); err != nil {
		return err
	}
	if err := d.writeZeros(end*pageSize, off+n); err != nil {
		return err
	}
	return d.discardPages(first, end)
}

// writeZeros writes zeros from off to before end, less than two pages.
func (d *Disk) writeZeros(off, end int64) error {
	return d.WriteAt([][]byte{zeros[:end-off]}, off)
}

var zeros [2 * pageSize]byte

func (d *Disk) discardPages(first, end int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.needTop(first*pageSize, (end-first)*pageSize); err != nil {
		return err
	}
	base, err := d.below.resolve()
	if err != nil {
		return err
	}
	for first < end {
		owned, next := d.top.cover.run(first, end)
		// What is zeros below and was never written need not be noted.
		if !owned && !base.Maps(first*pageSize, (next-first)*pageSize) {
			first = next
			continue
		}
		if err := d.top.zero(first, next); err != nil {
			return err
		}
		first = next
	}
	return nil
}

// Frozen is a disk as it was at one instant.
type Frozen struct{ level *level }

// Freeze keeps the disk as it is. It waits for requests that are in flight and
// otherwise takes no time, however much was written. The disk goes on. It fails
// only if the disk is closed. Whoever gets a Frozen closes it.
func (d *Disk) Freeze() (*Frozen, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return nil, fmt.Errorf("disk: %w", ErrClosed)
	}
	if d.top != nil {
		d.below = newLevel(&level{below: d.below, top: d.top})
		d.top = nil
	}
	return &Frozen{d.below.retain()}, nil
}

// Table describes the bytes. The caller releases it. The first call after
// something was written takes time in proportion to the number of pieces that
// that has; requests of the disk wait for it.
func (f *Frozen) Table() (*snapshot.Table, error) {
	t, err := f.level.resolve()
	if err != nil {
		return nil, err
	}
	return t.Retain(), nil
}

// Close frees it. Tables that were taken of it stay. It must be called once.
func (f *Frozen) Close() { f.level.release() }
