package vmm

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/snapshot"
)

const pageSize = snapshot.PageSize

// errNotRAM is what a device or loader gets for an address that no RAM backs.
var errNotRAM = errors.New("vmm: guest address is not RAM")

// memory is a machine's RAM: one range of host addresses, private to the
// process, described by an extent table. What the machine writes stays in
// private pages on top of the layers until a capture moves it into one.
//
// Offsets into it are RAM offsets: equal to guest-physical addresses below
// the gap, 1 GiB less above.
type memory struct {
	ram   []byte
	table *snapshot.Table // what is mapped; guarded by the machine's turn

	// compact describes the same bytes as table in fewer extents; nil if
	// there is no such. Guarded by the machine's turn.
	compact *snapshot.Table

	mappings int64 // share of the budget of that name
}

// mapMemory reserves a range and maps table into it. It takes a reference on
// the table.
func mapMemory(table *snapshot.Table) (*memory, error) {
	m := new(memory)
	if err := mappings.resize(&m.mappings, mappingsOf(table)); err != nil {
		return nil, err
	}
	ram, err := unix.Mmap(-1, 0, int(table.Size()), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		m.close()
		return nil, fmt.Errorf("vmm: reserve %d MiB of guest memory: %w", table.Size()>>20, err)
	}
	m.ram, m.table = ram, table.Retain()
	if len(table.Extents()) > 0 {
		m.useSmallPages()
	}
	for _, e := range table.Extents() {
		if err := m.overlay(e); err != nil {
			m.close()
			return nil, err
		}
	}
	return m, nil
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

func (m *memory) close() error {
	_ = mappings.resize(&m.mappings, 0)
	if m.ram == nil {
		return nil
	}
	err := unix.Munmap(m.ram)
	m.ram = nil
	m.forgetCompact()
	m.table.Release()
	return err
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
