package kvm

import "unsafe"

// dirtyLog is kvm_dirty_log.
type dirtyLog struct {
	slot   uint32
	_      uint32
	bitmap unsafe.Pointer
}

// clearDirtyLog is kvm_clear_dirty_log.
type clearDirtyLog struct {
	slot      uint32
	numPages  uint32
	firstPage uint64
	bitmap    unsafe.Pointer
}

// deviceAttr is kvm_device_attr.
type deviceAttr struct {
	_     uint32 // flags: none exist
	group uint32
	attr  uint64
	addr  unsafe.Pointer
}

// The sizes below are those of linux/kvm.h and asm/kvm.h on x86-64. A wrong one
// makes an index other than 0, which does not compile.
var (
	_ = [1]int{}[unsafe.Sizeof(UserspaceMemoryRegion{})-32]
	_ = [1]int{}[unsafe.Sizeof(UserspaceMemoryRegion2{})-160]
	_ = [1]int{}[unsafe.Sizeof(EnableCap{})-104]
	_ = [1]int{}[unsafe.Sizeof(PITConfig{})-64]
	_ = [1]int{}[unsafe.Sizeof(PITChannelState{})-24]
	_ = [1]int{}[unsafe.Sizeof(PITState2{})-112]
	_ = [1]int{}[unsafe.Sizeof(IRQChip{})-520]
	_ = [1]int{}[unsafe.Sizeof(PICState{})-16]
	_ = [1]int{}[unsafe.Sizeof(IOAPICState{})-216]
	_ = [1]int{}[unsafe.Sizeof(ClockData{})-48]
	_ = [1]int{}[unsafe.Sizeof(MSI{})-32]
	_ = [1]int{}[unsafe.Sizeof(IRQRoutingEntry{})-48]
	_ = [1]int{}[unsafe.Sizeof(IRQFD{})-32]
	_ = [1]int{}[unsafe.Sizeof(IOEventFD{})-64]
	_ = [1]int{}[unsafe.Sizeof(irqLevel{})-8]
	_ = [1]int{}[unsafe.Sizeof(dirtyLog{})-16]
	_ = [1]int{}[unsafe.Sizeof(clearDirtyLog{})-24]
	_ = [1]int{}[unsafe.Sizeof(deviceAttr{})-24]
	_ = [1]int{}[unsafe.Sizeof(Regs{})-144]
	_ = [1]int{}[unsafe.Sizeof(Segment{})-24]
	_ = [1]int{}[unsafe.Sizeof(DTable{})-16]
	_ = [1]int{}[unsafe.Sizeof(Sregs{})-312]
	_ = [1]int{}[unsafe.Sizeof(Sregs2{})-320]
	_ = [1]int{}[unsafe.Sizeof(FPU{})-416]
	_ = [1]int{}[unsafe.Sizeof(XSAVEState{})-4096]
	_ = [1]int{}[unsafe.Sizeof(XCR{})-16]
	_ = [1]int{}[unsafe.Sizeof(XCRs{})-392]
	_ = [1]int{}[unsafe.Sizeof(DebugRegs{})-128]
	_ = [1]int{}[unsafe.Sizeof(LAPICState{})-1024]
	_ = [1]int{}[unsafe.Sizeof(MSREntry{})-16]
	_ = [1]int{}[unsafe.Sizeof(CPUIDEntry2{})-40]
	_ = [1]int{}[unsafe.Sizeof(MPState{})-4]
	_ = [1]int{}[unsafe.Sizeof(preFaultMemory{})-64]
	_ = [1]int{}[unsafe.Sizeof(VCPUEvents{})-64]
	_ = [1]int{}[unsafe.Sizeof(TranslationResult{})-24]
	_ = [1]int{}[unsafe.Sizeof(GuestDebug{})-72]
	_ = [1]int{}[unsafe.Sizeof(signalMask{})-12]
	_ = [1]int{}[unsafe.Sizeof(SyncRegs{})-520]
	_ = [1]int{}[unsafe.Sizeof(dirtyGFN{})-16]
	_ = [1]int{}[unsafe.Sizeof(runPage{})-2352]
	_ = [1]int{}[unsafe.Offsetof(runPage{}.exit)-32]
	_ = [1]int{}[unsafe.Offsetof(runPage{}.sync)-304]
)
