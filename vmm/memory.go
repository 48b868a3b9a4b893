package vmm

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/snapshot"
)

const pageSize = snapshot.PageSize

// errNotRAM is what a device or loader gets for an address that no RAM backs.
var errNotRAM = errors.New("vmm: guest address is not RAM")

// memory is a machine's RAM: one range of host addresses to which the layers of
// an extent table are mapped, privately, and zeros between them. What the
// machine writes stays in private pages on top; captures copy those.
//
// Offsets into it are RAM offsets: equal to guest-physical addresses below
// the gap, 1 GiB less above.
//
// Fields are guarded by the machine's turn, but those after mu. Once memory is
// mapped, ram and table are replaced with mu as well, so that either will do to
// look at them.
type memory struct {
	ram    []byte
	mapped int64 // so much of it is mapped: all, once mapTable has succeeded

	birth *snapshot.Table // what a reset brings back
	table *snapshot.Table // what is mapped: birth, but see remap
	base  *snapshot.Table // what the last capture saw; birth if there was none

	looked  bool  // whether a tracker can be had was found out
	pending []run // taken from the tracker, but in no layer yet

	newLayer func(size int64) (*snapshot.LayerWriter, error) // replaced where some are made ahead
	settling chan struct{}                                   // closed when the last capture is settled; nil once that was seen

	untracked bool // for tests: as on an older kernel

	// mu is held while mappings are looked at or changed that the guest may
	// change by giving memory back.
	mu       sync.Mutex
	tracker  *writeTracker // nil where writes cannot be tracked
	released []run         // given back since the last capture
	holes    []run         // where zeros hide something of table
	mappings int64         // share of the budget of that name
}

// reserveMemory reserves addresses for size bytes of RAM. It must not be
// touched before a table is mapped into it.
func reserveMemory(size int64) (*memory, error) {
	m := &memory{newLayer: snapshot.NewLayerWriter}
	if err := mappings.resize(&m.mappings, 1); err != nil {
		return nil, err
	}
	addr, err := addresses.take(size)
	if err != nil {
		m.close()
		return nil, fmt.Errorf("vmm: reserve %d MiB of guest memory: %w", size>>20, err)
	}
	m.ram = bytesAt(addr, size)
	return m, nil
}

// mapTable maps a table of its size into reserved memory. It takes references
// on the table.
func (m *memory) mapTable(table *snapshot.Table) error {
	if table.Size() != int64(len(m.ram)) {
		return fmt.Errorf("vmm: %d bytes of memory for a machine of %d", table.Size(), len(m.ram))
	}
	if err := mappings.resize(&m.mappings, mappingsOf(table)); err != nil {
		return err
	}
	for _, e := range table.Extents() {
		if err := m.mapZerosTo(e.Start); err != nil {
			return err
		}
		if err := mapNewPrivate(m.ram[e.Start:e.End()], e.Layer.FD(), e.Offset); err != nil {
			return fmt.Errorf("vmm: map layer to guest memory at %#x: %w", e.Start, err)
		}
		m.mapped = e.End()
	}
	if err := m.mapZerosTo(table.Size()); err != nil {
		return err
	}
	if len(table.Extents()) > 0 {
		m.useSmallPages()
	}
	m.birth, m.table, m.base = table.Retain(), table.Retain(), table.Retain()
	return nil
}

// mapZerosTo maps what comes before end and is not mapped yet.
func (m *memory) mapZerosTo(end int64) error {
	if m.mapped == end {
		return nil
	}
	if err := mapNewZeros(m.ram[m.mapped:end]); err != nil {
		return fmt.Errorf("vmm: map zeros to guest memory at %#x: %w", m.mapped, err)
	}
	m.mapped = end
	return nil
}

// useSmallPages keeps the kernel from backing what is not a layer's with huge
// pages. They speed up a boot; but in a fork the first write to 2 MiB of zeros
// would clear all of them, and the next capture copy all of them.
func (m *memory) useSmallPages() {
	// A kernel without huge pages answers EINVAL, which is as good.
	_ = unix.Madvise(m.ram, unix.MADV_NOHUGEPAGE)
}

// overlay maps one extent over its range, dropping the private pages there.
func (m *memory) overlay(e snapshot.Extent) error {
	if err := mapPrivate(m.ram[e.Start:e.End()], e.Layer.FD(), e.Offset); err != nil {
		return fmt.Errorf("vmm: map layer over guest memory at %#x: %w", e.Start, err)
	}
	return nil
}

// remap shows the new layer of table in place of the private pages that were
// copied into it, at runs. It may stop half way; what it has not mapped holds
// the same bytes.
func (m *memory) remap(table *snapshot.Table, runs []run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mappings.resize(&m.mappings, mappingsOf(table)) != nil {
		return
	}
	m.table.Release()
	m.table, m.holes = table.Retain(), nil // it has zeros there, or layers from now on
	for _, e := range table.Extents() {
		if len(lacking([]run{{e.Start, e.End()}}, runs)) == 0 && m.overlay(e) != nil {
			return
		}
	}
}

// adoptCompact has the next capture build on table, which describes the same
// bytes as the last one's in fewer extents.
func (m *memory) adoptCompact(table *snapshot.Table) {
	m.base.Release()
	m.base = table.Retain()
}

func (m *memory) close() error {
	m.settle()
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = mappings.resize(&m.mappings, 0)
	for _, t := range []*snapshot.Table{m.birth, m.table, m.base} {
		if t != nil {
			t.Release()
		}
	}
	m.birth, m.table, m.base = nil, nil, nil
	var errs []error
	if m.ram != nil {
		errs = append(errs, m.unmap())
	}
	if m.tracker != nil {
		errs = append(errs, m.tracker.close())
		m.tracker = nil
	}
	return errors.Join(errs...)
}

// unmap unmaps what mapTable has mapped, and nothing else, and gives the
// addresses back.
func (m *memory) unmap() error {
	ram := m.ram
	m.ram = nil
	if m.mapped > 0 {
		if err := unmap(ram[:m.mapped]); err != nil {
			return fmt.Errorf("vmm: unmap guest memory: %w", err)
		}
	}
	addresses.give(hostAddr(ram), int64(len(ram)))
	return nil
}

// region is a contiguous piece of RAM in guest-physical space.
type region struct {
	gpa, size uint64
	offset    uint64
}

// regions are the one or two pieces around the gap.
func regions(size uint64) []region {
	if size <= gapStart {
		return []region{{gpa: 0, size: size}}
	}
	return []region{
		{gpa: 0, size: gapStart},
		{gpa: gapEnd, size: size - gapStart, offset: gapStart},
	}
}

// Slice implements devices.Memory.
func (m *memory) Slice(gpa, n uint64) ([]byte, error) {
	for _, r := range regions(uint64(len(m.ram))) {
		if gpa >= r.gpa && gpa-r.gpa <= r.size && n <= r.size-(gpa-r.gpa) {
			at := r.offset + gpa - r.gpa
			return m.ram[at : at+n : at+n], nil
		}
	}
	return nil, fmt.Errorf("%w: %#x+%#x", errNotRAM, gpa, n)
}

// write copies p to guest-physical address gpa.
func (m *memory) write(gpa uint64, p []byte) error {
	dst, err := m.Slice(gpa, uint64(len(p)))
	if err != nil {
		return err
	}
	copy(dst, p)
	return nil
}

// readFrom fills n bytes at gpa from r.
func (m *memory) readFrom(r io.Reader, gpa, n uint64) error {
	dst, err := m.Slice(gpa, n)
	if err != nil {
		return err
	}
	_, err = io.ReadFull(r, dst)
	return err
}

// lowSize is how much RAM lies below the gap.
func (m *memory) lowSize() uint64 { return min(uint64(len(m.ram)), gapStart) }
