package acpi

// Resource descriptors, section 6.4.

// resources is a resource template: descriptors and an end tag, whose zero
// checksum counts as right (section 6.4.2.9).
func resources(descriptors ...[]byte) []byte {
	return buffer(append(concat(descriptors...), 0x79, 0))
}

// memory32 is a 32-bit fixed memory range, readable and writable, section
// 6.4.3.4.
func memory32(base, size uint32) []byte {
	d := []byte{0x86, 9, 0, 1}
	d = little.AppendUint32(d, base)
	return little.AppendUint32(d, size)
}

// ports is a range of I/O ports decoded with 16 bits, section 6.4.2.5.
func ports(first uint16, n uint8) []byte {
	d := []byte{0x47, 1}
	d = little.AppendUint16(d, first) // lowest and
	d = little.AppendUint16(d, first) // highest base
	return append(d, 1, n)
}

// interrupt is an extended interrupt, section 6.4.3.6: consumed, edge-
// triggered, active high, exclusive. Unlike the older IRQ descriptor it can
// name any interrupt and is never second-guessed by an override.
func interrupt(gsi uint32) []byte {
	const consumer, edge = 1 << 0, 1 << 1
	return little.AppendUint32([]byte{0x89, 6, 0, consumer | edge, 1}, gsi)
}
