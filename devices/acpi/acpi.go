// Package acpi describes a machine to its guest in ACPI tables of the
// hardware-reduced kind: no fixed hardware, no system control interrupt, only
// a table of processors and interrupt controllers (MADT) and a small program
// (DSDT) that names the devices. It also holds the two devices that exist only
// in those tables: the sleep registers ([PowerDevice]) and the generation
// identifier ([WriteGenerationID]).
//
// Section numbers in comments are those of "Advanced Configuration and Power
// Interface (ACPI) Specification", release 6.3.
package acpi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Addresses that the tables take for granted.
const (
	LocalAPICAddress = 0xfee00000
	IOAPICAddress    = 0xfec00000
	IOAPICPins       = 24 // global system interrupts 0 to 23

	// ResetPort and ResetValue reset the machine: the command port of the
	// keyboard controller, whatever else there is of one.
	ResetPort  = 0x64
	ResetValue = 0xfe

	// MaxVCPUs is how many local APICs have an 8-bit identifier of their own.
	MaxVCPUs = 254
)

// ErrConfig is wrapped by the errors of [Build].
var ErrConfig = errors.New("invalid configuration")

// Config is what the tables tell.
type Config struct {
	// VCPUs is the number of processors. Their APIC identifiers are 0, 1, …
	VCPUs int
	// VirtioMMIO are the virtio devices behind the memory-mapped transport.
	VirtioMMIO []VirtioMMIO
	// COM1 is the serial port; nil if there is none.
	COM1 *COM1
	// RTC says that there is a clock at ports 0x70 and 0x71 with the century
	// at 0x32. It gets no interrupt.
	RTC bool
	// VMGenID is the generation identifier; nil if there is none.
	VMGenID *VMGenID
	// PowerPort is the first of the two I/O ports at which a [PowerDevice]
	// answers; 0 if the guest cannot switch itself off.
	PowerPort uint16
}

// VirtioMMIO is one virtio-mmio device. Its interrupt is edge-triggered and
// active high.
type VirtioMMIO struct {
	Base uint64 // guest-physical, Base+Size at most 4 GiB
	Size uint32 // bytes
	GSI  uint32
}

// COM1 is a 16550A with eight registers. Its interrupt is edge-triggered and
// active high.
type COM1 struct {
	Port uint16
	GSI  uint32
}

// VMGenID is a generation identifier: 16 bytes in guest memory and an
// edge-triggered, active high interrupt that says they changed.
type VMGenID struct {
	Addr uint64 // guest-physical, a multiple of 8
	GSI  uint32
}

// tableAlign is how tables are aligned; section 5.2.5.3 asks it of the RSDP
// where firmware has it searched for.
const tableAlign = 16

// Build returns the tables as one run of bytes to be stored at the
// guest-physical address base, a multiple of 16, and the address of the root
// system description pointer in it. The errors wrap [ErrConfig].
func Build(base uint64, cfg Config) (tables []byte, rsdp uint64, err error) {
	if err := cfg.check(); err != nil {
		return nil, 0, fmt.Errorf("acpi: build: %w: %w", ErrConfig, err)
	}
	if base%tableAlign != 0 || base > math.MaxUint64-maxTables {
		return nil, 0, fmt.Errorf("acpi: build: %w: tables at %#x", ErrConfig, base)
	}
	l := layout{base: base, bytes: make([]byte, align(rsdpSize))} // the RSDP is filled in last
	dsdt := l.add(dsdtTable(cfg))
	fadt := l.add(fadtTable(cfg, dsdt))
	madt := l.add(madtTable(cfg))
	xsdt := l.add(xsdtTable(fadt, madt))
	copy(l.bytes, rsdpTable(xsdt))
	return l.bytes, base, nil
}

// maxTables bounds the size of what Build returns; the number of processors
// and of interrupts is bounded.
const maxTables = 64 << 10

// layout places tables one after the other.
type layout struct {
	base  uint64
	bytes []byte
}

// add appends a table and returns its address.
func (l *layout) add(table []byte) uint64 {
	addr := l.base + uint64(len(l.bytes))
	l.bytes = append(l.bytes, table...)
	l.bytes = append(l.bytes, make([]byte, align(len(table))-len(table))...)
	return addr
}

func align(n int) int { return (n + tableAlign - 1) &^ (tableAlign - 1) }

// little is the byte order of everything in ACPI.
var little = binary.LittleEndian
