// Package microguest makes a guest of a few dozen instructions that runs on
// every KVM, those that interpret a guest's kernel code included: it goes to
// privilege level 3 at once and stays there.
//
// It writes a number of pages, tells the host by a port write, and begins
// anew, for ever. In a fork of it, which it knows by the generation id that
// its host gave it, it tells the host at once, writes some pages more, tells the
// host twice, and halts or goes on with pages that none of its ancestors has
// written.
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

	// ForkWritten is after how many port writes a fork has written its
	// ChildPages, and RoundWritten after how many it has done a round if it
	// did not halt: it may have had one to do when it was forked.
	ForkWritten  = 3
	RoundWritten = 5

	// The second page: descriptor tables, parameters and task state.
	gdtrAddr   = Base + PageSize // operand of LGDT
	idtrAddr   = gdtrAddr + 0x10 // operand of LIDT
	paramsAddr = gdtrAddr + 0x40
	gdtAddr    = gdtrAddr + 0x80
	idtAddr    = gdtrAddr + 0x100
	tssAddr    = gdtrAddr + 0x400
	tssSize    = tssFixed + Port/8 + 2 // with the bitmap of ports, up to Port
	tssFixed   = 104

	pdptAddr  = PageTables + 1*PageSize
	pdAddr    = PageTables + 2*PageSize
	imageSize = 6 * PageSize

	// The stack is used when a fork halts. It lies apart from what is only read,
	// or Linux would map it along with that: such a page costs a fork a second
	// fault when it is written, and all other machines of the process a look.
	stackTop = Base + 64*PageSize

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
	// Halt has a fork halt when it has written them.
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
	kernelCS     = 0x08
	userDS       = 0x18 | 3
	userCS       = 0x20 | 3
	taskSelector = 0x28
)

// Image is what lies at Base: code, descriptors, parameters and page tables.
func Image(p Params) ([]byte, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	b := make([]byte, imageSize)
	program, fault := code()
	copy(b, program)
	writeDescriptors(b, fault)

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
	le.PutUint64(b[PageTables-Base:], pdptAddr|table)
	le.PutUint64(b[pdptAddr-Base:], pdAddr|table)
	for i := range uint64(mapped >> 21) {
		le.PutUint64(b[pdAddr-Base+8*i:], i<<21|page)
	}
	return b, nil
}

// writeDescriptors writes flat 64-bit segments, a task state, which says where
// the stack of a fault handler is and, with zeros, that the guest may use ports,
// and the handler of the one fault there is: HLT at privilege level 3.
//
// Setting IOPL to 3 would do for the ports, had kvm-pvm not been seen to lose it.
func writeDescriptors(b []byte, fault uint64) {
	const generalProtection = 13 // its vector, and the last of the table
	le := binary.LittleEndian
	pointer := func(at uint64, table uint64, size int) {
		le.PutUint16(b[at-Base:], uint16(size-1))
		le.PutUint64(b[at-Base+2:], table)
	}
	gdt := []uint64{
		// Null, kernel's code and data, user's data and code. Their accessed
		// bits are set, so that no CPU writes to them.
		0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0x00cff3000000ffff, 0x00affb000000ffff,
		// A free 64-bit TSS, in two words.
		tssSize - 1 | tssAddr&0xffffff<<16 | 0x89<<40 | tssAddr>>24<<56, 0,
	}
	for i, d := range gdt {
		le.PutUint64(b[gdtAddr-Base+8*i:], d)
	}
	pointer(gdtrAddr, gdtAddr, 8*len(gdt))
	// An interrupt gate.
	gate := fault&0xffff | kernelCS<<16 | 0x8e<<40 | fault>>16<<48
	le.PutUint64(b[idtAddr-Base+16*generalProtection:], gate)
	pointer(idtrAddr, idtAddr, 16*(generalProtection+1))
	le.PutUint64(b[tssAddr-Base+4:], stackTop)   // RSP0
	le.PutUint16(b[tssAddr-Base+102:], tssFixed) // where the bitmap begins
}
