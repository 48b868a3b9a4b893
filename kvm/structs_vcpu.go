package kvm

// Structures of a vCPU, with the layouts of asm/kvm.h. Blank fields are padding
// that the kernel ignores or wants to be zero.

// Regs is kvm_regs: the general registers.
type Regs struct {
	RAX, RBX, RCX, RDX uint64
	RSI, RDI, RSP, RBP uint64
	R8, R9, R10, R11   uint64
	R12, R13, R14, R15 uint64
	RIP, RFLAGS        uint64
}

// Segment is kvm_segment: a segment register with its hidden part.
type Segment struct {
	Base     uint64
	Limit    uint32 // bytes - 1, whatever G says
	Selector uint16
	Type     uint8
	Present  uint8
	DPL      uint8
	DB       uint8
	S        uint8
	L        uint8
	G        uint8
	AVL      uint8
	Unusable uint8
	_        uint8
}

// DTable is kvm_dtable: GDTR or IDTR.
type DTable struct {
	Base  uint64
	Limit uint16
	_     [3]uint16
}

// Sregs is kvm_sregs: segments, control registers, EFER and the APIC base. At
// most one bit of InterruptBitmap is set, that of an external interrupt that
// KVM accepted and has not injected yet.
type Sregs struct {
	CS, DS, ES, FS, GS, SS  Segment
	TR, LDT                 Segment
	GDT, IDT                DTable
	CR0, CR2, CR3, CR4, CR8 uint64
	EFER                    uint64
	APICBase                uint64
	InterruptBitmap         [4]uint64
}

// Sregs2PDPTRsValid as a flag of [Sregs2] says that PDPTRs is valid.
const Sregs2PDPTRsValid = 1

// Sregs2 is kvm_sregs2: Sregs with the PDPTRs of PAE paging and without the
// interrupt bitmap. See [CapSregs2].
type Sregs2 struct {
	CS, DS, ES, FS, GS, SS  Segment
	TR, LDT                 Segment
	GDT, IDT                DTable
	CR0, CR2, CR3, CR4, CR8 uint64
	EFER                    uint64
	APICBase                uint64
	Flags                   uint64
	PDPTRs                  [4]uint64
}

// FPU is kvm_fpu: x87 and SSE state.
type FPU struct {
	FPR        [8][16]byte
	FCW        uint16
	FSW        uint16
	FTWX       uint8 // abridged tag word, as FXSAVE has it
	_          uint8
	LastOpcode uint16
	LastIP     uint64
	LastDP     uint64
	XMM        [16][16]byte
	MXCSR      uint32
	_          uint32
}

// XSAVEState is kvm_xsave without its extension: an XSAVE area in standard
// format, laid out by CPUID leaf 0xD of the host.
type XSAVEState struct {
	Region [4096]byte
}

// XCR is kvm_xcr: an extended control register.
type XCR struct {
	XCR   uint32 // its number; 0 is XCR0
	_     uint32
	Value uint64
}

// XCRs is kvm_xcrs: the first NrXCRs of XCRs are valid.
type XCRs struct {
	NrXCRs uint32
	Flags  uint32
	XCRs   [16]XCR
	_      [16]uint64
}

// DebugRegs is kvm_debugregs.
type DebugRegs struct {
	DB    [4]uint64
	DR6   uint64
	DR7   uint64
	Flags uint64
	_     [9]uint64
}

// MSREntry is kvm_msr_entry: a model-specific register.
type MSREntry struct {
	Index uint32
	_     uint32
	Data  uint64
}

// Flags of [CPUIDEntry2].
const (
	CPUIDSignificantIndex = 1 << 0 // KVM_CPUID_FLAG_SIGNIFCANT_INDEX: the leaf depends on ECX
	CPUIDStatefulFunc     = 1 << 1 // KVM_CPUID_FLAG_STATEFUL_FUNC
	CPUIDStateReadNext    = 1 << 2 // KVM_CPUID_FLAG_STATE_READ_NEXT
)

// CPUIDEntry2 is kvm_cpuid_entry2: what CPUID answers to EAX=Function,
// ECX=Index.
type CPUIDEntry2 struct {
	Function uint32
	Index    uint32
	Flags    uint32
	EAX      uint32
	EBX      uint32
	ECX      uint32
	EDX      uint32
	_        [3]uint32
}

// MPState is kvm_mp_state: what a vCPU waits for.
type MPState struct {
	State uint32 // MPRunnable and so on
}

// States of [MPState].
const (
	MPRunnable      = 0 // KVM_MP_STATE_RUNNABLE
	MPUninitialized = 1 // KVM_MP_STATE_UNINITIALIZED: an AP that waits for INIT
	MPInitReceived  = 2 // KVM_MP_STATE_INIT_RECEIVED: an AP that waits for SIPI
	MPHalted        = 3 // KVM_MP_STATE_HALTED: in HLT, waits for an interrupt
	MPSIPIReceived  = 4 // KVM_MP_STATE_SIPI_RECEIVED
	MPAPResetHold   = 9 // KVM_MP_STATE_AP_RESET_HOLD
)

// ExceptionEvent is the exception part of [VCPUEvents].
type ExceptionEvent struct {
	Injected     uint8
	Nr           uint8
	HasErrorCode uint8
	Pending      uint8
	ErrorCode    uint32
}

// InterruptEvent is the interrupt part of [VCPUEvents].
type InterruptEvent struct {
	Injected uint8
	Nr       uint8
	Soft     uint8
	Shadow   uint8 // ShadowMovSS, ShadowSTI
}

// Interrupt shadows of [InterruptEvent].
const (
	ShadowMovSS = 1 << 0 // KVM_X86_SHADOW_INT_MOV_SS
	ShadowSTI   = 1 << 1 // KVM_X86_SHADOW_INT_STI
)

// NMIEvent is the NMI part of [VCPUEvents].
type NMIEvent struct {
	Injected uint8
	Pending  uint8
	Masked   uint8
	_        uint8
}

// SMIEvent is the SMI part of [VCPUEvents].
type SMIEvent struct {
	SMM          uint8
	Pending      uint8
	SMMInsideNMI uint8
	LatchedInit  uint8
}

// Flags of [VCPUEvents]: which fields are valid.
const (
	VCPUEventValidNMIPending  = 1 << 0 // KVM_VCPUEVENT_VALID_NMI_PENDING
	VCPUEventValidSIPIVector  = 1 << 1 // KVM_VCPUEVENT_VALID_SIPI_VECTOR
	VCPUEventValidShadow      = 1 << 2 // KVM_VCPUEVENT_VALID_SHADOW
	VCPUEventValidSMM         = 1 << 3 // KVM_VCPUEVENT_VALID_SMM
	VCPUEventValidPayload     = 1 << 4 // KVM_VCPUEVENT_VALID_PAYLOAD
	VCPUEventValidTripleFault = 1 << 5 // KVM_VCPUEVENT_VALID_TRIPLE_FAULT
)

// VCPUEvents is kvm_vcpu_events: exceptions, interrupts and NMIs between their
// arrival and their delivery.
type VCPUEvents struct {
	Exception           ExceptionEvent
	Interrupt           InterruptEvent
	NMI                 NMIEvent
	SIPIVector          uint32
	Flags               uint32
	SMI                 SMIEvent
	TripleFaultPending  uint8
	_                   [26]uint8
	ExceptionHasPayload uint8
	ExceptionPayload    uint64
}

// TranslationResult is kvm_translation: where a linear address leads by the
// vCPU's page tables.
type TranslationResult struct {
	LinearAddress   uint64
	PhysicalAddress uint64
	Valid           uint8 // 0: not mapped
	Writeable       uint8
	Usermode        uint8
	_               [5]uint8
}

// Control bits of [GuestDebug].
const (
	GuestDebugEnable     = 1 << 0  // KVM_GUESTDBG_ENABLE
	GuestDebugSingleStep = 1 << 1  // KVM_GUESTDBG_SINGLESTEP
	GuestDebugUseSWBP    = 1 << 16 // KVM_GUESTDBG_USE_SW_BP: INT3 leaves the guest
	GuestDebugUseHWBP    = 1 << 17 // KVM_GUESTDBG_USE_HW_BP: DebugReg is used
	GuestDebugInjectDB   = 1 << 18 // KVM_GUESTDBG_INJECT_DB
	GuestDebugInjectBP   = 1 << 19 // KVM_GUESTDBG_INJECT_BP
	GuestDebugBlockIRQ   = 1 << 20 // KVM_GUESTDBG_BLOCKIRQ
)

// GuestDebug is kvm_guest_debug.
type GuestDebug struct {
	Control  uint32
	_        uint32
	DebugReg [8]uint64 // DR0..DR7
}

// Groups and attributes of device attributes on x86.
const (
	VCPUTSCCtrl       = 0 // KVM_VCPU_TSC_CTRL, a group of a vCPU
	VCPUTSCOffset     = 0 // KVM_VCPU_TSC_OFFSET, an attribute of VCPUTSCCtrl
	X86XCompGuestSupp = 0 // KVM_X86_XCOMP_GUEST_SUPP, of the system, group 0
)

// Register classes of [SyncRegs], for [VCPU.SetSyncRegsMasks].
const (
	SyncX86Regs   = 1 << 0 // KVM_SYNC_X86_REGS
	SyncX86Sregs  = 1 << 1 // KVM_SYNC_X86_SREGS
	SyncX86Events = 1 << 2 // KVM_SYNC_X86_EVENTS
)

// SyncRegs is kvm_sync_regs: registers that travel in the shared page with
// KVM_RUN instead of by ioctls.
type SyncRegs struct {
	Regs   Regs
	Sregs  Sregs
	Events VCPUEvents
}

// signalMask is kvm_signal_mask with the kernel's 64 signals.
type signalMask struct {
	len    uint32
	sigset [8]byte
}
