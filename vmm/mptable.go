package vmm

import "encoding/binary"

// The MP table lies in the last KiB of low memory, where kernels look for it
// early and which the e820 map reserves.
const (
	mpPointerAddr = ebdaStart
	mpTableAddr   = ebdaStart + 16

	localAPICAddr = 0xfee00000
)

// Types of entries and interrupts of "MultiProcessor Specification" version
// 1.4, chapter 4.
const (
	mpProcessor, mpBus, mpIOAPIC, mpInterrupt, mpLocalInterrupt = 0, 1, 2, 3, 4

	mpNMI, mpExtINT = 1, 3
)

// mpTable describes processors and the interrupts of the ISA bus to a kernel
// that was told to do without ACPI. Others gain too: a kernel looks for the
// table first, and while it finds none maps 64 KiB of memory over and over, 16
// bytes further each time, which is 70,000 mappings and TLB flushes.
//
// pointer is the structure that kernels look for, table what it points to.
func mpTable(vcpus int) (pointer, table []byte) {
	le := binary.LittleEndian
	ioapicID := byte(vcpus) // the first that no processor has
	var entries []byte
	count := 0
	add := func(b ...byte) { entries, count = append(entries, b...), count+1 }
	for id := range vcpus {
		flags := byte(1) // usable
		if id == 0 {
			flags |= 2 // the boot processor
		}
		add(append([]byte{mpProcessor, byte(id), 0x14, flags}, make([]byte, 16)...)...)
	}
	add(mpBus, 0, 'I', 'S', 'A', ' ', ' ', ' ')
	add(le.AppendUint32([]byte{mpIOAPIC, ioapicID, 0x11, 1}, ioapicAddr)...)
	for irq := range byte(16) {
		pin := irq
		switch irq {
		case 0:
			pin = 2 // the timer
		case 2:
			continue // the second 8259 takes its place
		}
		add(mpInterrupt, 0, 0, 0, 0, irq, ioapicID, pin)
	}
	add(mpLocalInterrupt, mpExtINT, 0, 0, 0, 0, 0xff, 0) // LINT0 of all processors
	add(mpLocalInterrupt, mpNMI, 0, 0, 0, 0, 0xff, 1)    // LINT1

	const header = 44
	table = append(table, "PCMP"...)
	table = le.AppendUint16(table, uint16(header+len(entries)))
	table = append(table, 4, 0) // version 1.4, checksum
	table = append(table, "FORKVM  FORKVM      "...)
	table = le.AppendUint32(table, 0) // no table of the manufacturer's
	table = le.AppendUint16(table, 0)
	table = le.AppendUint16(table, uint16(count))
	table = le.AppendUint32(table, localAPICAddr)
	table = le.AppendUint32(table, 0) // no extended table
	table = append(table, entries...)
	table[7] = -byteSum(table)

	pointer = le.AppendUint32([]byte("_MP_"), mpTableAddr)
	pointer = append(pointer, 1, 4, 0, 0, 0, 0, 0, 0) // one paragraph, version 1.4, checksum
	pointer[10] = -byteSum(pointer)
	return pointer, table
}

func byteSum(p []byte) (s byte) {
	for _, b := range p {
		s += b
	}
	return s
}

// writeMPTable puts the MP table into memory.
func (m *memory) writeMPTable(vcpus int) error {
	pointer, table := mpTable(vcpus)
	return m.write(mpPointerAddr, append(pointer, table...))
}
