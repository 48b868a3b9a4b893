// Package microguest makes a guest of a few dozen instructions that runs on
// every KVM, those that interpret a guest's kernel code included: it goes to
// privilege level 3 at once and stays there.
//
// It writes a number of pages, tells the host by a port write, and begins
// anew, for ever. In a fork of it, which it knows by the generation id that
// its host gave it, it writes some pages more after that, tells the host again,
// and halts or goes on with pages that none of its ancestors has written.
package microguest

import (
	"encoding/binary"
	"fmt"
)

// Where things lie in the guest's physical memory, which it maps one to one.
const (
	PageSize = 4096

	// Base is where the image begins and Entry where the guest is entered, in
	// 64-bit mode at privilege level 0 with memory below 1 GiB mapped.
	Base  = 0x100000
	Entry = Base

	// GenerationAddr is where the guest reads 8 bytes of its generation id.
	GenerationAddr = 0xff000

	// PageTables is where the first level of the page tables lies.
	PageTables = Base + 2*PageSize

	// Data is where the pages that the guest writes begin.
	Data = 0x200000

	// Port is written to, one byte, when pages were written. No device of a
	// machine answers there.
	Port = 0x500

	gdtrAddr   = Base + 1*PageSize // operand of LGDT
	paramsAddr = gdtrAddr + 0x40
	gdtAddr    = gdtrAddr + 0x80
	pml4Addr   = PageTables
	pdptAddr   = Base + 3*PageSize
	pdAddr     = Base + 4*PageSize
	stackTop   = Base + 6*PageSize
	imageSize  = 6 * PageSize

	// Offsets of the parameters.
	onceParam, pagesParam, spinParam, childParam, haltParam = 0, 8, 16, 24, 32

	mapped = 1 << 30 // bytes that the page tables map
)

// Params say what the guest does.
type Params struct {
	// Once is how many pages are written before the first round.
	Once int64
	// Pages are written in each round.
	Pages int64
	// Spin is how many times a loop of two instructions runs between rounds.
	Spin int64
	// ChildPages are written by a fork, besides, after its first exit.
	ChildPages int64
	// Halt has a fork halt after its second exit.
	Halt bool
}

// End is the end of the memory that the guest and its descendants use, down to
// so many generations.
func (p Params) End(depth int) int64 {
	return Data + (p.Once+int64(depth)*(p.Pages+p.ChildPages))*PageSize
}

func (p Params) validate() error {
	const most = (mapped - Data) / PageSize
	total := int64(0)
	for _, n := range []int64{p.Once, p.Pages, p.ChildPages} {
		if n < 0 || n > most-total {
			return fmt.Errorf("microguest: %d, %d and %d pages, at most %d in all", p.Once, p.Pages, p.ChildPages, most)
		}
		total += n
	}
	if p.Spin < 0 {
		return fmt.Errorf("microguest: a loop of %d", p.Spin)
	}
	return nil
}

// Selectors of the guest's descriptor table.
const (
	kernelCS = 0x08
	userDS   = 0x18 | 3
	userCS   = 0x20 | 3
)

// descriptors are flat 64-bit segments: null, kernel's code and data, user's
// data and code. Their accessed bits are set, so that no CPU writes to them.
var descriptors = [...]uint64{
	0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0x00cff3000000ffff, 0x00affb000000ffff,
}

// Image is what lies at Base: code, descriptors, parameters and page tables.
func Image(p Params) ([]byte, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	b := make([]byte, imageSize)
	copy(b, code())

	le.PutUint16(b[gdtrAddr-Base:], uint16(len(descriptors)*8-1))
	le.PutUint64(b[gdtrAddr-Base+2:], gdtAddr)
	for i, d := range descriptors {
		le.PutUint64(b[gdtAddr-Base+8*i:], d)
	}
	params := b[paramsAddr-Base:]
	le.PutUint64(params[onceParam:], uint64(p.Once))
	le.PutUint64(params[pagesParam:], uint64(p.Pages))
	le.PutUint64(params[spinParam:], uint64(p.Spin))
	le.PutUint64(params[childParam:], uint64(p.ChildPages))
	if p.Halt {
		params[haltParam] = 1
	}

	// Present, writable, for privilege level 3; accessed and dirty already, so
	// that no CPU writes to the tables.
	const table, page = 0x27, 0xe7
	le.PutUint64(b[pml4Addr-Base:], pdptAddr|table)
	le.PutUint64(b[pdptAddr-Base:], pdAddr|table)
	for i := range uint64(mapped >> 21) {
		le.PutUint64(b[pdAddr-Base+8*i:], i<<21|page)
	}
	return b, nil
}
