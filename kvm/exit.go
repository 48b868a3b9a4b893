package kvm

import "strconv"

// ExitReason is a KVM_EXIT_* number: why the guest left.
type ExitReason uint32

// Exit reasons that can occur on x86.
const (
	ExitUnknown       ExitReason = 0  // see HardwareExitReason
	ExitException     ExitReason = 1  // not used by current kernels
	ExitIO            ExitReason = 2  // port IO, see IO
	ExitHypercall     ExitReason = 3  // a hypercall asked for by CapExitHypercall
	ExitDebug         ExitReason = 4  // see SetGuestDebug and Debug
	ExitHLT           ExitReason = 5  // HLT without interrupt controllers in the kernel
	ExitMMIO          ExitReason = 6  // see MMIO
	ExitIRQWindowOpen ExitReason = 7  // see RequestInterruptWindow
	ExitShutdown      ExitReason = 8  // triple fault, or another end of the guest
	ExitFailEntry     ExitReason = 9  // see FailEntry
	ExitIntr          ExitReason = 10 // with unix.EINTR, see Run
	ExitSetTPR        ExitReason = 11 // the guest lowered CR8
	ExitTPRAccess     ExitReason = 12
	ExitNMI           ExitReason = 16
	ExitInternalError ExitReason = 17 // see InternalError
	ExitSystemEvent   ExitReason = 24 // see SystemEvent
	ExitIOAPICEOI     ExitReason = 26 // see IOAPICEOI
	ExitHyperV        ExitReason = 27
	ExitX86RDMSR      ExitReason = 29
	ExitX86WRMSR      ExitReason = 30
	ExitDirtyRingFull ExitReason = 31 // see DirtyRing
	ExitAPResetHold   ExitReason = 32
	ExitX86BusLock    ExitReason = 33
	ExitXen           ExitReason = 34
	ExitNotify        ExitReason = 37
	ExitMemoryFault   ExitReason = 39 // with unix.EFAULT, see MemoryFault
)

var exitNames = map[ExitReason]string{
	ExitUnknown:       "UNKNOWN",
	ExitException:     "EXCEPTION",
	ExitIO:            "IO",
	ExitHypercall:     "HYPERCALL",
	ExitDebug:         "DEBUG",
	ExitHLT:           "HLT",
	ExitMMIO:          "MMIO",
	ExitIRQWindowOpen: "IRQ_WINDOW_OPEN",
	ExitShutdown:      "SHUTDOWN",
	ExitFailEntry:     "FAIL_ENTRY",
	ExitIntr:          "INTR",
	ExitSetTPR:        "SET_TPR",
	ExitTPRAccess:     "TPR_ACCESS",
	ExitNMI:           "NMI",
	ExitInternalError: "INTERNAL_ERROR",
	ExitSystemEvent:   "SYSTEM_EVENT",
	ExitIOAPICEOI:     "IOAPIC_EOI",
	ExitHyperV:        "HYPERV",
	ExitX86RDMSR:      "X86_RDMSR",
	ExitX86WRMSR:      "X86_WRMSR",
	ExitDirtyRingFull: "DIRTY_RING_FULL",
	ExitAPResetHold:   "AP_RESET_HOLD",
	ExitX86BusLock:    "X86_BUS_LOCK",
	ExitXen:           "XEN",
	ExitNotify:        "NOTIFY",
	ExitMemoryFault:   "MEMORY_FAULT",
}

// String is the kernel's name for the reason, such as KVM_EXIT_MMIO.
func (r ExitReason) String() string { return name("KVM_EXIT_", exitNames, r) }

// InternalError is a KVM_INTERNAL_ERROR_* number.
type InternalError uint32

// Internal errors.
const (
	InternalErrorEmulation            InternalError = 1
	InternalErrorSimulEx              InternalError = 2
	InternalErrorDeliveryEv           InternalError = 3
	InternalErrorUnexpectedExitReason InternalError = 4
)

var internalErrorNames = map[InternalError]string{
	InternalErrorEmulation:            "EMULATION",
	InternalErrorSimulEx:              "SIMUL_EX",
	InternalErrorDeliveryEv:           "DELIVERY_EV",
	InternalErrorUnexpectedExitReason: "UNEXPECTED_EXIT_REASON",
}

// String is the kernel's name for the error.
func (e InternalError) String() string {
	return name("KVM_INTERNAL_ERROR_", internalErrorNames, e)
}

// SystemEvent is a KVM_SYSTEM_EVENT_* number.
type SystemEvent uint32

// System events.
const (
	SystemEventShutdown SystemEvent = 1
	SystemEventReset    SystemEvent = 2
	SystemEventCrash    SystemEvent = 3
	SystemEventWakeup   SystemEvent = 4
	SystemEventSuspend  SystemEvent = 5
	SystemEventSEVTerm  SystemEvent = 6
)

var systemEventNames = map[SystemEvent]string{
	SystemEventShutdown: "SHUTDOWN",
	SystemEventReset:    "RESET",
	SystemEventCrash:    "CRASH",
	SystemEventWakeup:   "WAKEUP",
	SystemEventSuspend:  "SUSPEND",
	SystemEventSEVTerm:  "SEV_TERM",
}

// String is the kernel's name for the event.
func (e SystemEvent) String() string {
	return name("KVM_SYSTEM_EVENT_", systemEventNames, e)
}

// Bits of [VCPU.RunFlags].
const (
	RunX86SMM       = 1 << 0 // KVM_RUN_X86_SMM: the guest is in system-management mode
	RunX86BusLock   = 1 << 1 // KVM_RUN_X86_BUS_LOCK
	RunX86GuestMode = 1 << 2 // KVM_RUN_X86_GUEST_MODE: the guest runs a guest of its own
)

// name is the kernel's name for a number of one of its enumerations, which may
// have grown since.
func name[N ~uint32](prefix string, names map[N]string, n N) string {
	if s, ok := names[n]; ok {
		return prefix + s
	}
	return prefix + strconv.FormatUint(uint64(n), 10)
}
