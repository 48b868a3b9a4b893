package vmm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/snapshot"
)

// Bounds of what a capture does. Mapping one more extent costs every child
// some microseconds, as copying a few pages does, and its process one mapping
// of a limited number; so short gaps between written pages are filled, and a
// table that has grown long is rewritten as one layer, though never while the
// machine stands still.
const (
	maxGap     = 4    // pages of a gap that is filled from older layers
	maxZeroGap = 512  // pages of a gap of zeros, which takes no memory
	maxRuns    = 1024 // extents of one capture
	maxExtents = 2048 // of a table before it is rewritten

	maxTableLayers = 256 // of a table before it is rewritten: each is an open file
	fewExtents     = 64  // of a table that was rewritten

	compactChunk = 1 << 20 // bytes copied before zeros are given back
)

// When to copy while the machine runs. Each round costs a few scans, and the
// guest a fault for each page it touches again; a page copied while the
// machine stands still costs less than a microsecond.
const (
	precopyFrom   = 2048 // pages worth a round
	precopyEnough = 512  // pages left for the pause
	precopyRounds = 6
)

// captured is a machine's memory at one instant.
type captured struct {
	table         *snapshot.Table
	dirty, copied int64 // pages written since the last capture; pages copied
}

// memoryCapture is a capture of a machine's memory under way. It has four
// parts: newCapture while the machine runs, freeze while it stands still,
// finish, when it may run again, and settle, when children may start. Only
// freeze is part of the pause.
//
// The new layer has every page at its offset in RAM. So one that was copied
// before the pause and written again is simply copied again.
type memoryCapture struct {
	m      *memory
	layer  *snapshot.LayerWriter // nil as long as there is nothing to copy
	copied []run
	last   []run           // those of them that were copied by freeze
	zeros  []run           // given back by the guest since the last capture
	done   *captured       // set early where freeze has to finish
	old    *snapshot.Table // what the last capture saw, to be freed

	finished bool
}

// newCapture begins a capture. If the machine runs meanwhile and has written
// much, most of that is copied already.
func (m *memory) newCapture(runs bool) (*memoryCapture, error) {
	m.settle()
	if err := m.trackWrites(); err != nil {
		return nil, err
	}
	c := &memoryCapture{m: m}
	written, err := m.written()
	if err != nil || len(written) == 0 {
		return c, err
	}
	if runs && m.tracked() {
		written, err = c.precopy(written)
	}
	if err == nil {
		err = c.reserve(written)
	}
	if err != nil {
		c.abandon()
		return nil, err
	}
	return c, nil
}

// precopy copies in rounds what the machine writes while it runs, until few
// pages are left or it writes as fast as they are copied. It returns those
// that are left.
func (c *memoryCapture) precopy(written []run) ([]run, error) {
	left := pagesIn(written)
	for round := 0; round < precopyRounds && left >= precopyFrom>>min(round, 2); round++ {
		taken, err := c.m.take(written)
		c.m.pending = union(c.m.pending, taken)
		if err != nil {
			return nil, err
		}
		if err := c.copy(taken); err != nil {
			return nil, err
		}
		if written, err = c.m.written(); err != nil {
			return nil, err
		}
		before := left
		if left = pagesIn(written); left <= precopyEnough || left > before*3/4 {
			break
		}
	}
	return written, nil
}

// reserve gets the memory that the pages will be copied into: together that
// takes longer than without, but less of it is in the pause.
func (c *memoryCapture) reserve(runs []run) error {
	if err := c.needLayer(); err != nil {
		return err
	}
	for _, r := range runs {
		if err := c.layer.Reserve(r.start, r.end-r.start); err != nil {
			return err
		}
	}
	return nil
}

func (c *memoryCapture) needLayer() (err error) {
	if c.layer == nil {
		c.layer, err = c.m.newLayer(int64(len(c.m.ram)))
	}
	return err
}

func (c *memoryCapture) copy(runs []run) error {
	if err := c.needLayer(); err != nil {
		return err
	}
	for _, r := range runs {
		if err := c.layer.WriteAt(c.m.ram[r.start:r.end], r.start); err != nil {
			return err
		}
	}
	c.copied = union(c.copied, runs)
	return nil
}

// freeze copies what is left. The machine stands still.
func (c *memoryCapture) freeze() error {
	written, err := c.m.written()
	if err != nil {
		return err
	}
	if err := c.takeReleased(); err != nil {
		return err
	}
	// Those that an earlier capture took and then failed to keep.
	written = union(written, lacking(c.m.pending, c.copied))
	if len(written) > 0 {
		if err := c.copy(written); err != nil {
			return err
		}
	}
	if c.m.tracker == nil {
		return c.finishStill()
	}
	c.last = written
	c.m.pending = union(c.m.pending, written)
	return nil
}

// finishStill is the rest of a capture without write tracking. The pages just
// copied would count as written for ever; so the machine is given the layer in
// place of them. Should there be no room for a mapping, they stay, hold the
// same bytes, and the next capture copies them once more.
func (c *memoryCapture) finishStill() error {
	done, runs, err := c.seal()
	if err != nil {
		return err
	}
	c.done = done
	c.m.remap(done.table, runs)
	return nil
}

// takeReleased takes over what the guest gave back, which is zeros now unless
// it was written since.
func (c *memoryCapture) takeReleased() error {
	c.m.mu.Lock()
	c.zeros, c.m.released = c.m.released, nil
	c.m.mu.Unlock()
	c.copied = lacking(c.copied, c.zeros)
	if c.layer == nil {
		return nil
	}
	for _, r := range c.zeros {
		if err := c.layer.Free(r.start, r.end-r.start); err != nil {
			return err
		}
	}
	return nil
}

// finish makes the layer and returns the table that describes all of memory
// as it was when it was frozen. The rest is done in the background.
func (c *memoryCapture) finish() (captured, error) {
	if c.done == nil {
		done, _, err := c.seal()
		if err != nil {
			return captured{}, err
		}
		c.done = done
	}
	settled := make(chan struct{})
	c.finished, c.m.settling = true, settled
	inBackgroundAtOnce(func() {
		defer close(settled)
		c.settle()
	})
	return *c.done, nil
}

// seal lays the copied pages over what the last capture saw. It also returns
// the runs that the new layer covers.
func (c *memoryCapture) seal() (*captured, []run, error) {
	table, runs, filled, err := c.lay()
	if err != nil {
		return nil, nil, err
	}
	m := c.m
	c.old, m.base = m.base, table.Retain()
	c.zeros = nil
	dirty := pagesIn(c.copied)
	return &captured{table, dirty, dirty + filled}, runs, nil
}

// settle frees what the capture needs no more, and has the next one find only
// what was written since the freeze. Neither children nor the machine itself
// have to wait for it: its pages are protected while it runs again, and those
// that are no longer what was copied stay pending. So do all if that fails.
func (c *memoryCapture) settle() {
	changed, err := c.changed()
	if err != nil {
		changed = union(c.m.pending, changed)
	}
	c.m.pending = changed
	c.free()
}

// changed protects the pages that freeze copied, and returns those that have
// been written again before: of these, and of those between that had to be
// protected along with them. If it fails, what it returns may have been.
func (c *memoryCapture) changed() ([]run, error) {
	taken, err := c.m.take(c.last)
	if err != nil {
		return taken, err
	}
	var changed []run
	for _, r := range c.last {
		for at := r.start; at < r.end; at += pageSize {
			if !c.layer.Holds(c.m.ram[at:at+pageSize], at) {
				changed = appendRun(changed, run{at, at + pageSize})
			}
		}
	}
	return union(lacking(taken, c.last), changed), nil
}

// settle waits until the last capture has nothing to do any more.
func (m *memory) settle() {
	if m.settling != nil {
		<-m.settling
		m.settling = nil
	}
}

// lay makes the layer. It also returns the runs that it covers, and how many of
// their pages are from older layers.
func (c *memoryCapture) lay() (table *snapshot.Table, runs []run, filled int64, err error) {
	base, err := c.m.base.Overlay(zeros(c.zeros))
	if err != nil || c.layer == nil {
		return base, nil, 0, err
	}
	defer base.Release()
	for _, r := range c.copied {
		if err := c.layer.FreeZeros(r.start, r.end-r.start); err != nil {
			return nil, nil, 0, err
		}
	}
	runs = coalesce(joinZeroGaps(c.copied, base), maxGap, maxRuns)
	for _, gap := range lacking(runs, c.copied) {
		n, err := c.layer.Fill(base, gap.start, gap.end-gap.start)
		if err != nil {
			return nil, nil, 0, err
		}
		filled += n / pageSize
	}
	layer, err := c.layer.Seal()
	if err != nil {
		return nil, nil, 0, err
	}
	defer layer.Release()
	table, err = base.Overlay(extentsOf(layer, runs))
	return table, runs, filled, err
}

// abandon frees what a failed capture has. What it took counts for the next.
// After finish it does nothing.
func (c *memoryCapture) abandon() {
	if c.finished {
		return
	}
	c.m.mu.Lock()
	c.m.released = union(c.m.released, c.zeros)
	c.m.mu.Unlock()
	c.zeros = nil
	if c.done != nil {
		c.done.table.Release()
		c.done = nil
	}
	c.free()
}

func (c *memoryCapture) free() {
	if c.layer != nil {
		c.layer.Close()
		c.layer = nil
	}
	if c.old != nil {
		c.old.Release()
		c.old = nil
	}
}

// trackWrites prepares the first capture. Where writes cannot be tracked,
// remap does without.
func (m *memory) trackWrites() (err error) {
	if m.looked {
		return nil
	}
	m.useSmallPages()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.untracked {
		m.tracker, err = newWriteTracker(m.ram, len(m.table.Extents()) > 0)
		for _, never := range []error{unix.ENOSYS, unix.EPERM, unix.EACCES, unix.EINVAL} {
			if errors.Is(err, never) {
				err = nil
			}
		}
	}
	m.looked = err == nil
	return err
}

// tracked tells whether writes are tracked. The guest may end that, see punch.
func (m *memory) tracked() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tracker != nil
}

// written are the private pages that no capture has seen as they are now.
func (m *memory) written() ([]run, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tracker != nil {
		return m.tracker.written()
	}
	return privatePages(m.ram)
}

// take takes written pages from the tracker, see there; none if it is no longer there, for
// then all that are private count for the next capture.
func (m *memory) take(within []run) ([]run, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tracker == nil {
		return nil, nil
	}
	return m.tracker.take(within)
}

// joinZeroGaps joins runs between which base has nothing but zeros, as the
// new layer has there without being written.
func joinZeroGaps(runs []run, base *snapshot.Table) []run {
	var out []run
	extents := base.Extents()
	for _, r := range runs {
		n := len(out)
		if n == 0 || r.start-out[n-1].end > maxZeroGap*pageSize {
			out = append(out, r)
			continue
		}
		for len(extents) > 0 && extents[0].End() <= out[n-1].end {
			extents = extents[1:]
		}
		if len(extents) > 0 && extents[0].Start < r.start {
			out = append(out, r)
			continue
		}
		out[n-1].end = r.end
	}
	return out
}

func extentsOf(layer *snapshot.Layer, runs []run) []snapshot.Extent {
	extents := make([]snapshot.Extent, len(runs))
	for i, r := range runs {
		extents[i] = snapshot.Extent{Start: r.start, Length: r.end - r.start, Layer: layer, Offset: r.start}
	}
	return extents
}

func zeros(runs []run) []snapshot.Extent { return extentsOf(nil, runs) }

// compactTable describes the same bytes as table in a layer of their own and
// at most limit extents.
func compactTable(table *snapshot.Table, limit int) (*snapshot.Table, error) {
	all := runsOf(table)
	zero := snapshot.NewTable(table.Size())
	defer zero.Release()
	if len(all) == 0 {
		return zero.Retain(), nil
	}
	w, err := snapshot.NewLayerWriter(table.Size())
	if err != nil {
		return nil, err
	}
	defer w.Close()
	for _, r := range all {
		for at := r.start; at < r.end; at += compactChunk {
			n := min(compactChunk, r.end-at)
			if _, err := w.Fill(table, at, n); err != nil {
				return nil, err
			}
			if err := w.FreeZeros(at, n); err != nil {
				return nil, err
			}
		}
	}
	layer, err := w.Seal()
	if err != nil {
		return nil, err
	}
	defer layer.Release()
	compact, err := zero.Overlay(extentsOf(layer, coalesce(joinZeroGaps(all, zero), maxGap, limit)))
	if err != nil {
		return nil, fmt.Errorf("vmm: %w", err)
	}
	return compact, nil
}
