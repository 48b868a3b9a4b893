package acpi

// Who made the tables, section 5.2.6.
const (
	oemID        = "FORKVM"
	oemTableID   = "FORKVMMC"
	oemRevision  = 1
	creatorID    = "FKVM"
	creatorRev   = 1
	headerSize   = 36
	rsdpSize     = 36
	rsdpV1Size   = 20
	fadtSize     = 276
	fadtRevision = 6
	fadtMinor    = 3
)

// newTable returns a table of size bytes with its header (section 5.2.6) but
// without its checksum.
func newTable(signature string, revision uint8, size int) []byte {
	t := make([]byte, size)
	copy(t[0:], signature)
	t[8] = revision
	copy(t[10:], oemID)
	copy(t[16:], oemTableID)
	little.PutUint32(t[24:], oemRevision)
	copy(t[28:], creatorID)
	little.PutUint32(t[32:], creatorRev)
	return t
}

// seal fills in length and checksum: all bytes add up to zero.
func seal(t []byte) []byte {
	little.PutUint32(t[4:], uint32(len(t)))
	t[9] = 0
	t[9] = -sum(t)
	return t
}

func sum(p []byte) (s uint8) {
	for _, v := range p {
		s += v
	}
	return s
}

// rsdpTable is the root system description pointer, revision 2, section
// 5.2.5.3. Its first 20 bytes have a checksum of their own.
func rsdpTable(xsdt uint64) []byte {
	t := make([]byte, rsdpSize)
	copy(t[0:], "RSD PTR ")
	copy(t[9:], oemID)
	t[15] = 2
	little.PutUint32(t[20:], rsdpSize)
	little.PutUint64(t[24:], xsdt)
	t[8] = -sum(t[:rsdpV1Size])
	t[32] = -sum(t)
	return t
}

// xsdtTable lists the other tables, section 5.2.8.
func xsdtTable(tables ...uint64) []byte {
	t := newTable("XSDT", 1, headerSize)
	for _, addr := range tables {
		t = little.AppendUint64(t, addr)
	}
	return seal(t)
}

// FADT fields, section 5.2.9.
const (
	fadtCentury       = 108
	fadtBootArch      = 109
	fadtFlags         = 112
	fadtResetReg      = 116
	fadtResetValue    = 128
	fadtMinorVersion  = 131
	fadtXDSDT         = 140
	fadtSleepControl  = 244
	fadtSleepStatus   = 256
	fadtHypervisor    = 268
	hypervisorID      = "FORKVM"
	bootLegacyDevices = 1 << 0 // there is an ISA bus; bit 1, 8042, stays clear
	bootNoVGA         = 1 << 2
	bootNoRTC         = 1 << 5

	flagWBINVD       = 1 << 0
	flagC1           = 1 << 2 // processors can halt
	flagPowerButton  = 1 << 4 // no fixed power button
	flagSleepButton  = 1 << 5 // no fixed sleep button
	flagFixedRTC     = 1 << 6 // no fixed RTC wake status
	flagResetReg     = 1 << 10
	flagHeadless     = 1 << 12
	flagHWReduced    = 1 << 20
	fadtFlagsForever = flagWBINVD | flagC1 | flagPowerButton | flagSleepButton | flagFixedRTC |
		flagResetReg | flagHeadless | flagHWReduced
)

// fadtTable is the fixed ACPI description table. In the hardware-reduced model
// nearly all of it is zero (section 4.1.1), the SCI and FACS included.
func fadtTable(cfg Config, dsdt uint64) []byte {
	t := newTable("FACP", fadtRevision, fadtSize)
	boot := uint16(bootLegacyDevices | bootNoVGA)
	if cfg.RTC {
		t[fadtCentury] = rtcCentury
	} else {
		boot |= bootNoRTC
	}
	little.PutUint16(t[fadtBootArch:], boot)
	little.PutUint32(t[fadtFlags:], fadtFlagsForever)
	copy(t[fadtResetReg:], ioRegister(ResetPort))
	t[fadtResetValue] = ResetValue
	t[fadtMinorVersion] = fadtMinor
	little.PutUint64(t[fadtXDSDT:], dsdt)
	if cfg.PowerPort != 0 {
		copy(t[fadtSleepControl:], ioRegister(cfg.PowerPort+powerControl))
		copy(t[fadtSleepStatus:], ioRegister(cfg.PowerPort+powerStatus))
	}
	copy(t[fadtHypervisor:], hypervisorID)
	return seal(t)
}

// ioRegister is the generic address (section 5.2.3.2) of an 8-bit I/O port.
func ioRegister(port uint16) []byte {
	const systemIO, bits, byteAccess = 1, 8, 1
	a := []byte{systemIO, bits, 0, byteAccess}
	return little.AppendUint64(a, uint64(port))
}

// madtTable is the multiple APIC description table, section 5.2.12.
//
// It has no interrupt source overrides. They tell where the interrupts of the
// 8259s and the PIT went, and a hardware-reduced guest has neither: Linux
// leaves both alone. An override of IRQ 0 would even do harm, because Linux
// takes an override of the FADT's SCI, which is 0 here, for that of the SCI.
// For the same reason the PCAT_COMPAT flag is clear.
func madtTable(cfg Config) []byte {
	const (
		localAPIC, localAPICSize = 0, 8
		ioAPIC, ioAPICSize       = 1, 12
		enabled                  = 1
	)
	t := newTable("APIC", 5, headerSize)
	t = little.AppendUint32(t, LocalAPICAddress)
	t = little.AppendUint32(t, 0) // flags
	for i := range cfg.VCPUs {
		t = append(t, localAPIC, localAPICSize, uint8(i), uint8(i))
		t = little.AppendUint32(t, enabled)
	}
	t = append(t, ioAPIC, ioAPICSize, 0, 0) // identifier 0, as KVM's has at reset
	t = little.AppendUint32(t, IOAPICAddress)
	t = little.AppendUint32(t, 0) // its first global system interrupt
	return seal(t)
}
