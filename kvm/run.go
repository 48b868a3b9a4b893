package kvm

import "encoding/binary"

// The methods in this file read and write the page that the kernel shares with
// the VMM (kvm_run). They are for the thread that runs the vCPU, between two
// calls of Run. What an exit tells is valid after Run returned nil and
// ExitReason is the one named.

// ExitReason is kvm_run.exit_reason: why Run returned.
func (c *VCPU) ExitReason() ExitReason { return ExitReason(c.run.exitReason) }

// ReadyForInterruptInjection is the field of that name: Interrupt would be
// taken now.
func (c *VCPU) ReadyForInterruptInjection() bool {
	return c.run.readyForInterruptInjection != 0
}

// IFFlag is kvm_run.if_flag: the guest's interrupts are enabled.
func (c *VCPU) IFFlag() bool { return c.run.ifFlag != 0 }

// RunFlags is kvm_run.flags, such as [RunX86SMM].
func (c *VCPU) RunFlags() uint16 { return c.run.flags }

// CR8 is kvm_run.cr8, the task priority. Without interrupt controllers in the
// kernel, Run also takes it from there.
func (c *VCPU) CR8() uint64 { return c.run.cr8 }

// SetCR8 sets kvm_run.cr8.
func (c *VCPU) SetCR8(v uint64) { c.run.cr8 = v }

// APICBase is kvm_run.apic_base.
func (c *VCPU) APICBase() uint64 { return c.run.apicBase }

// RequestInterruptWindow sets kvm_run.request_interrupt_window: Run returns
// with [ExitIRQWindowOpen] as soon as the guest would take an interrupt.
func (c *VCPU) RequestInterruptWindow(on bool) {
	c.run.setRequest(requestInterruptWindow, on)
}

// SyncRegs is where registers travel with Run, by the classes that
// SetSyncRegsMasks chose. It points into the shared page: copy what is to be
// kept. See [CapSyncRegs].
func (c *VCPU) SyncRegs() *SyncRegs { return &c.run.sync }

// SetSyncRegsMasks sets kvm_valid_regs, the classes that every Run writes into
// SyncRegs when it returns, and kvm_dirty_regs, those that the next Run loads
// from it. Classes are SyncX86Regs and so on. The kernel clears dirty when it
// has loaded them.
func (c *VCPU) SetSyncRegsMasks(valid, dirty uint64) {
	c.run.validRegs = valid
	c.run.dirtyRegs = dirty
}

// IOExit is what an [ExitIO] tells: Count accesses of Size bytes each to Port.
type IOExit struct {
	Out   bool // the guest writes
	Port  uint16
	Size  int // 1, 2 or 4
	Count int // more than 1 for a string instruction
	// Data is Size*Count bytes in the shared page. The guest's data if Out;
	// otherwise the next Run hands the guest what is stored here.
	Data []byte
}

// IO decodes an [ExitIO]. Data is empty should the kernel's description not lie
// within the shared memory.
func (c *VCPU) IO() IOExit {
	p := c.run.exit[:]
	e := IOExit{
		Out:   p[0] == 1,
		Size:  int(p[1]),
		Port:  binary.LittleEndian.Uint16(p[2:]),
		Count: int(binary.LittleEndian.Uint32(p[4:])),
	}
	offset, n := binary.LittleEndian.Uint64(p[8:]), uint64(e.Size)*uint64(e.Count)
	if size := uint64(len(c.page)); offset <= size && n <= size-offset {
		e.Data = c.page[offset : offset+n : offset+n]
	}
	return e
}

// MMIOExit is what an [ExitMMIO] tells: an access to guest-physical memory that
// no slot backs, or a write to a read-only slot.
type MMIOExit struct {
	Addr  uint64
	Write bool
	// Data is 1 to 8 bytes in the shared page. The guest's data if Write;
	// otherwise the next Run hands the guest what is stored here.
	Data []byte
}

// MMIO decodes an [ExitMMIO]. Data is empty should the kernel tell a length
// beyond 8.
func (c *VCPU) MMIO() MMIOExit {
	p := c.run.exit[:]
	e := MMIOExit{
		Addr:  binary.LittleEndian.Uint64(p[0:]),
		Write: p[20] != 0,
	}
	if n := binary.LittleEndian.Uint32(p[16:]); n <= 8 {
		e.Data = p[8 : 8+n : 8+n]
	}
	return e
}

// HardwareExitReason is what an [ExitUnknown] tells: the CPU's exit code, which
// this kernel does not know.
func (c *VCPU) HardwareExitReason() uint64 {
	return binary.LittleEndian.Uint64(c.run.exit[:])
}

// FailEntryExit is what an [ExitFailEntry] tells: the CPU refused to enter the
// guest, whose state is invalid.
type FailEntryExit struct {
	HardwareReason uint64
	CPU            uint32 // the host's
}

// FailEntry decodes an [ExitFailEntry].
func (c *VCPU) FailEntry() FailEntryExit {
	p := c.run.exit[:]
	return FailEntryExit{
		HardwareReason: binary.LittleEndian.Uint64(p[0:]),
		CPU:            binary.LittleEndian.Uint32(p[8:]),
	}
}

// InternalErrorExit is what an [ExitInternalError] tells: KVM does not know how
// to go on.
type InternalErrorExit struct {
	Suberror InternalError
	Data     []uint64 // at most 16, of a meaning that depends on Suberror
	Insn     []byte   // the instruction that could not be emulated, if known
}

// InternalError decodes an [ExitInternalError].
func (c *VCPU) InternalError() InternalErrorExit {
	p := c.run.exit[:]
	e := InternalErrorExit{Suberror: InternalError(binary.LittleEndian.Uint32(p[0:]))}
	e.Data = words(p[8:], binary.LittleEndian.Uint32(p[4:]))
	const flagInsnBytes = 1 // KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES
	if e.Suberror == InternalErrorEmulation && len(e.Data) >= 3 && e.Data[0]&flagInsnBytes != 0 {
		insn := p[16:32]
		e.Insn = append(e.Insn, insn[1:][:min(insn[0], 15)]...)
	}
	return e
}

// SystemEventExit is what an [ExitSystemEvent] tells.
type SystemEventExit struct {
	Type SystemEvent
	Data []uint64 // at most 16
}

// SystemEvent decodes an [ExitSystemEvent].
func (c *VCPU) SystemEvent() SystemEventExit {
	p := c.run.exit[:]
	return SystemEventExit{
		Type: SystemEvent(binary.LittleEndian.Uint32(p[0:])),
		Data: words(p[8:], binary.LittleEndian.Uint32(p[4:])),
	}
}

// words copies n, but at most 16, numbers out of p.
func words(p []byte, n uint32) []uint64 {
	data := make([]uint64, min(n, 16))
	for i := range data {
		data[i] = binary.LittleEndian.Uint64(p[8*i:])
	}
	return data
}

// DebugExit is what an [ExitDebug] tells.
type DebugExit struct {
	Exception uint32 // 1 for #DB, 3 for #BP
	PC        uint64
	DR6, DR7  uint64
}

// Debug decodes an [ExitDebug].
func (c *VCPU) Debug() DebugExit {
	p := c.run.exit[:]
	return DebugExit{
		Exception: binary.LittleEndian.Uint32(p[0:]),
		PC:        binary.LittleEndian.Uint64(p[8:]),
		DR6:       binary.LittleEndian.Uint64(p[16:]),
		DR7:       binary.LittleEndian.Uint64(p[24:]),
	}
}

// IOAPICEOI is what an [ExitIOAPICEOI] tells, with [CapSplitIRQChip]: the
// vector of a level-triggered interrupt that the guest has handled.
func (c *VCPU) IOAPICEOI() uint8 { return c.run.exit[0] }

// MemoryFaultExit is what an [ExitMemoryFault] tells: guest-physical memory
// that KVM cannot reach through the process's own mapping.
type MemoryFaultExit struct {
	Flags uint64
	GPA   uint64
	Size  uint64 // bytes
}

// MemoryFault decodes an [ExitMemoryFault]. Unlike the others it comes with an
// error of Run, unix.EFAULT or unix.EHWPOISON. See [CapMemoryFaultInfo].
func (c *VCPU) MemoryFault() MemoryFaultExit {
	p := c.run.exit[:]
	return MemoryFaultExit{
		Flags: binary.LittleEndian.Uint64(p[0:]),
		GPA:   binary.LittleEndian.Uint64(p[8:]),
		Size:  binary.LittleEndian.Uint64(p[16:]),
	}
}
