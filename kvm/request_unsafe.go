package kvm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// request is an ioctl: its name for error texts and its number.
type request struct {
	name   string
	number uintptr
}

// failed makes the error of a request that the kernel refused.
func (r request) failed(errno unix.Errno) error {
	return fmt.Errorf("kvm: %s: %w", r.name, errno)
}

// The parts of an ioctl number, asm-generic/ioctl.h.
const (
	kvmIO     = 0xAE << 8
	sizeShift = 16
	dirWrite  = 1 << 30 // the kernel reads the argument
	dirRead   = 2 << 30 // the kernel writes the argument
)

func plain(name string, nr uintptr) request { return request{name, kvmIO | nr} }

func reads[T any](name string, nr uintptr) request { return sized[T](name, dirRead, nr) }

func writes[T any](name string, nr uintptr) request { return sized[T](name, dirWrite, nr) }

func both[T any](name string, nr uintptr) request { return sized[T](name, dirRead|dirWrite, nr) }

func sized[T any](name string, dir, nr uintptr) request {
	var t T
	return request{name, dir | unsafe.Sizeof(t)<<sizeShift | kvmIO | nr}
}

// arrayHeader is what the number of an ioctl on a variable array counts: the
// length and its padding, without the entries.
type arrayHeader struct{ _, _ uint32 }

// Requests to /dev/kvm. The direction in a name is the caller's in linux/kvm.h:
// where it contradicts what the call does (KVM_SET_IRQCHIP is _IOR), the number
// still has to be the header's.
var (
	reqGetAPIVersion          = plain("KVM_GET_API_VERSION", 0x00)
	reqCreateVM               = plain("KVM_CREATE_VM", 0x01)
	reqGetMSRIndexList        = both[uint32]("KVM_GET_MSR_INDEX_LIST", 0x02)
	reqCheckExtension         = plain("KVM_CHECK_EXTENSION", 0x03)
	reqGetVCPUMmapSize        = plain("KVM_GET_VCPU_MMAP_SIZE", 0x04)
	reqGetSupportedCPUID      = both[arrayHeader]("KVM_GET_SUPPORTED_CPUID", 0x05)
	reqGetMSRFeatureIndexList = both[uint32]("KVM_GET_MSR_FEATURE_INDEX_LIST", 0x0a)
)

// Requests to a VM.
var (
	reqCreateVCPU           = plain("KVM_CREATE_VCPU", 0x41)
	reqGetDirtyLog          = writes[dirtyLog]("KVM_GET_DIRTY_LOG", 0x42)
	reqSetUserMemoryRegion  = writes[UserspaceMemoryRegion]("KVM_SET_USER_MEMORY_REGION", 0x46)
	reqSetTSSAddr           = plain("KVM_SET_TSS_ADDR", 0x47)
	reqSetIdentityMapAddr   = writes[uint64]("KVM_SET_IDENTITY_MAP_ADDR", 0x48)
	reqSetUserMemoryRegion2 = writes[UserspaceMemoryRegion2]("KVM_SET_USER_MEMORY_REGION2", 0x49)
	reqCreateIRQChip        = plain("KVM_CREATE_IRQCHIP", 0x60)
	reqIRQLine              = writes[irqLevel]("KVM_IRQ_LINE", 0x61)
	reqGetIRQChip           = both[IRQChip]("KVM_GET_IRQCHIP", 0x62)
	reqSetIRQChip           = reads[IRQChip]("KVM_SET_IRQCHIP", 0x63)
	reqIRQLineStatus        = both[irqLevel]("KVM_IRQ_LINE_STATUS", 0x67)
	reqSetGSIRouting        = writes[arrayHeader]("KVM_SET_GSI_ROUTING", 0x6a)
	reqIRQFD                = writes[IRQFD]("KVM_IRQFD", 0x76)
	reqCreatePIT2           = writes[PITConfig]("KVM_CREATE_PIT2", 0x77)
	reqIOEventFD            = writes[IOEventFD]("KVM_IOEVENTFD", 0x79)
	reqSetClock             = writes[ClockData]("KVM_SET_CLOCK", 0x7b)
	reqGetClock             = reads[ClockData]("KVM_GET_CLOCK", 0x7c)
	reqGetPIT2              = reads[PITState2]("KVM_GET_PIT2", 0x9f)
	reqSetPIT2              = writes[PITState2]("KVM_SET_PIT2", 0xa0)
	reqSignalMSI            = writes[MSI]("KVM_SIGNAL_MSI", 0xa5)
	reqClearDirtyLog        = both[clearDirtyLog]("KVM_CLEAR_DIRTY_LOG", 0xc0)
	reqResetDirtyRings      = plain("KVM_RESET_DIRTY_RINGS", 0xc7)
)

// Requests to a vCPU, and those that more than one kind of descriptor takes.
var (
	reqRun            = plain("KVM_RUN", 0x80)
	reqGetRegs        = reads[Regs]("KVM_GET_REGS", 0x81)
	reqSetRegs        = writes[Regs]("KVM_SET_REGS", 0x82)
	reqGetSregs       = reads[Sregs]("KVM_GET_SREGS", 0x83)
	reqSetSregs       = writes[Sregs]("KVM_SET_SREGS", 0x84)
	reqTranslate      = both[TranslationResult]("KVM_TRANSLATE", 0x85)
	reqInterrupt      = writes[uint32]("KVM_INTERRUPT", 0x86)
	reqGetMSRs        = both[arrayHeader]("KVM_GET_MSRS", 0x88)
	reqSetMSRs        = writes[arrayHeader]("KVM_SET_MSRS", 0x89)
	reqSetSignalMask  = writes[uint32]("KVM_SET_SIGNAL_MASK", 0x8b)
	reqGetFPU         = reads[FPU]("KVM_GET_FPU", 0x8c)
	reqSetFPU         = writes[FPU]("KVM_SET_FPU", 0x8d)
	reqGetLAPIC       = reads[LAPICState]("KVM_GET_LAPIC", 0x8e)
	reqSetLAPIC       = writes[LAPICState]("KVM_SET_LAPIC", 0x8f)
	reqSetCPUID2      = writes[arrayHeader]("KVM_SET_CPUID2", 0x90)
	reqGetCPUID2      = both[arrayHeader]("KVM_GET_CPUID2", 0x91)
	reqGetMPState     = reads[MPState]("KVM_GET_MP_STATE", 0x98)
	reqSetMPState     = writes[MPState]("KVM_SET_MP_STATE", 0x99)
	reqNMI            = plain("KVM_NMI", 0x9a)
	reqSetGuestDebug  = writes[GuestDebug]("KVM_SET_GUEST_DEBUG", 0x9b)
	reqGetVCPUEvents  = reads[VCPUEvents]("KVM_GET_VCPU_EVENTS", 0x9f)
	reqSetVCPUEvents  = writes[VCPUEvents]("KVM_SET_VCPU_EVENTS", 0xa0)
	reqGetDebugRegs   = reads[DebugRegs]("KVM_GET_DEBUGREGS", 0xa1)
	reqSetDebugRegs   = writes[DebugRegs]("KVM_SET_DEBUGREGS", 0xa2)
	reqSetTSCKHz      = plain("KVM_SET_TSC_KHZ", 0xa2)
	reqGetTSCKHz      = plain("KVM_GET_TSC_KHZ", 0xa3)
	reqEnableCap      = writes[EnableCap]("KVM_ENABLE_CAP", 0xa3)
	reqGetXSAVE       = reads[XSAVEState]("KVM_GET_XSAVE", 0xa4)
	reqSetXSAVE       = writes[XSAVEState]("KVM_SET_XSAVE", 0xa5)
	reqGetXCRs        = reads[XCRs]("KVM_GET_XCRS", 0xa6)
	reqSetXCRs        = writes[XCRs]("KVM_SET_XCRS", 0xa7)
	reqKVMClockCtrl   = plain("KVM_KVMCLOCK_CTRL", 0xad)
	reqPreFaultMemory = both[preFaultMemory]("KVM_PRE_FAULT_MEMORY", 0xd5)
	reqGetSregs2      = reads[Sregs2]("KVM_GET_SREGS2", 0xcc)
	reqSetSregs2      = writes[Sregs2]("KVM_SET_SREGS2", 0xcd)
	reqGetStatsFD     = plain("KVM_GET_STATS_FD", 0xce)
	reqGetXSAVE2      = reads[XSAVEState]("KVM_GET_XSAVE2", 0xcf)
	reqSetDeviceAttr  = writes[deviceAttr]("KVM_SET_DEVICE_ATTR", 0xe1)
	reqGetDeviceAttr  = writes[deviceAttr]("KVM_GET_DEVICE_ATTR", 0xe2)
	reqHasDeviceAttr  = writes[deviceAttr]("KVM_HAS_DEVICE_ATTR", 0xe3)
)
