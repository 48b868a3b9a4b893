package kvm

import "encoding/binary"

// LAPICState is kvm_lapic_state: the registers of a local APIC as its MMIO
// window has them, each 32 bits at a multiple of 16 bytes.
type LAPICState struct {
	Regs [1024]byte
}

// Register is the register at offset, such as 0x350 for LVT LINT0.
func (l *LAPICState) Register(offset int) uint32 {
	return binary.LittleEndian.Uint32(l.Regs[offset:])
}

// SetRegister changes the register at offset.
func (l *LAPICState) SetRegister(offset int, value uint32) {
	binary.LittleEndian.PutUint32(l.Regs[offset:], value)
}

// PICState is kvm_pic_state: an 8259.
type PICState struct {
	LastIRR                uint8
	IRR                    uint8
	IMR                    uint8
	ISR                    uint8
	PriorityAdd            uint8
	IRQBase                uint8
	ReadRegSelect          uint8
	Poll                   uint8
	SpecialMask            uint8
	InitState              uint8
	AutoEOI                uint8
	RotateOnAutoEOI        uint8
	SpecialFullyNestedMode uint8
	Init4                  uint8
	ELCR                   uint8
	ELCRMask               uint8
}

// IOAPICState is kvm_ioapic_state: an 82093AA with 24 pins. RedirTbl holds the
// redirection entries as the guest writes them.
type IOAPICState struct {
	BaseAddress uint64
	IORegSel    uint32
	ID          uint32
	IRR         uint32
	_           uint32
	RedirTbl    [24]uint64
}

// PIC decodes the state of PICMaster or PICSlave.
func (c *IRQChip) PIC() PICState {
	return decodeChip[PICState](c)
}

// IOAPIC decodes the state of the IOAPIC.
func (c *IRQChip) IOAPIC() IOAPICState {
	return decodeChip[IOAPICState](c)
}

// decodeChip reads one member of kvm_irqchip's union.
func decodeChip[T any](c *IRQChip) (state T) {
	if _, err := binary.Decode(c.Chip[:], binary.LittleEndian, &state); err != nil {
		panic(err) // only of a type that is not fixed-size or larger than the union
	}
	return state
}
