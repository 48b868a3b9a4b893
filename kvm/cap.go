package kvm

// Cap is a KVM_CAP_* number: something a kernel may or may not be able to do.
// [System.CheckExtension] and [VM.CheckExtension] ask for it.
type Cap uint32

// Capabilities that concern x86, by the kernel's own names in Go case. What
// each means, and what number CheckExtension answers with, is in the kernel's
// Documentation/virt/kvm/api.rst.
const (
	CapIRQChip                  Cap = 0
	CapHLT                      Cap = 1
	CapMMUShadowCacheControl    Cap = 2
	CapUserMemory               Cap = 3
	CapSetTSSAddr               Cap = 4
	CapVAPIC                    Cap = 6
	CapExtCPUID                 Cap = 7
	CapClocksource              Cap = 8
	CapNrVCPUs                  Cap = 9
	CapNrMemslots               Cap = 10
	CapPIT                      Cap = 11
	CapNopIODelay               Cap = 12
	CapMPState                  Cap = 14
	CapCoalescedMMIO            Cap = 15
	CapSyncMMU                  Cap = 16
	CapDestroyMemoryRegionWorks Cap = 21
	CapUserNMI                  Cap = 22
	CapSetGuestDebug            Cap = 23
	CapReinjectControl          Cap = 24
	CapIRQRouting               Cap = 25
	CapIRQInjectStatus          Cap = 26
	CapJoinMemoryRegionsWorks   Cap = 30
	CapMCE                      Cap = 31
	CapIRQFD                    Cap = 32
	CapPIT2                     Cap = 33
	CapSetBootCPUID             Cap = 34
	CapPITState2                Cap = 35
	CapIOEventFD                Cap = 36
	CapSetIdentityMapAddr       Cap = 37
	CapAdjustClock              Cap = 39
	CapInternalErrorData        Cap = 40
	CapVCPUEvents               Cap = 41
	CapHyperV                   Cap = 44
	CapHyperVVAPIC              Cap = 45
	CapHyperVSpin               Cap = 46
	CapIntrShadow               Cap = 49
	CapDebugRegs                Cap = 50
	CapX86RobustSinglestep      Cap = 51
	CapEnableCap                Cap = 54
	CapXSAVE                    Cap = 55
	CapXCRs                     Cap = 56
	CapAsyncPF                  Cap = 59
	CapTSCControl               Cap = 60
	CapGetTSCKHz                Cap = 61
	CapMaxVCPUs                 Cap = 66
	CapTSCDeadlineTimer         Cap = 72
	CapSyncRegs                 Cap = 74
	CapKVMClockCtrl             Cap = 76
	CapSignalMSI                Cap = 77
	CapReadonlyMem              Cap = 81
	CapIRQFDResample            Cap = 82
	CapDeviceCtrl               Cap = 89
	CapExtEmulCPUID             Cap = 95
	CapHyperVTime               Cap = 96
	CapIOAPICPolarityIgnored    Cap = 97
	CapEnableCapVM              Cap = 98
	CapIOEventFDNoLength        Cap = 100
	CapVMAttributes             Cap = 101
	CapCheckExtensionVM         Cap = 105
	CapDisableQuirks            Cap = 116
	CapX86SMM                   Cap = 117
	CapMultiAddressSpace        Cap = 118
	CapGuestDebugHWBPs          Cap = 119
	CapGuestDebugHWWPs          Cap = 120
	CapSplitIRQChip             Cap = 121
	CapIOEventFDAnyLength       Cap = 122
	CapHyperVSynIC              Cap = 123
	CapVCPUAttributes           Cap = 127
	CapMaxVCPUID                Cap = 128
	CapX2APICAPI                Cap = 129
	CapMSIDevID                 Cap = 131
	CapImmediateExit            Cap = 136
	CapX86DisableExits          Cap = 143
	CapHyperVSynIC2             Cap = 148
	CapHyperVVPIndex            Cap = 149
	CapGetMSRFeatures           Cap = 153
	CapHyperVEventFD            Cap = 154
	CapHyperVTLBFlush           Cap = 155
	CapNestedState              Cap = 157
	CapMSRPlatformInfo          Cap = 159
	CapHyperVSendIPI            Cap = 161
	CapCoalescedPIO             Cap = 162
	CapHyperVEnlightenedVMCS    Cap = 163
	CapExceptionPayload         Cap = 164
	CapHyperVCPUID              Cap = 167
	CapManualDirtyLogProtect2   Cap = 168
	CapPMUEventFilter           Cap = 173
	CapHyperVDirectTLBFlush     Cap = 175
	CapHaltPoll                 Cap = 182
	CapAsyncPFInt               Cap = 183
	CapLastCPU                  Cap = 184
	CapSmallerMaxPhyAddr        Cap = 185
	CapStealTime                Cap = 187
	CapX86UserSpaceMSR          Cap = 188
	CapX86MSRFilter             Cap = 189
	CapEnforcePVFeatureCPUID    Cap = 190
	CapSysHyperVCPUID           Cap = 191
	CapDirtyLogRing             Cap = 192
	CapX86BusLockExit           Cap = 193
	CapSetGuestDebug2           Cap = 195
	CapVMCopyEncContextFrom     Cap = 197
	CapPTPKVM                   Cap = 198
	CapHyperVEnforceCPUID       Cap = 199
	CapSregs2                   Cap = 200
	CapExitHypercall            Cap = 201
	CapBinaryStatsFD            Cap = 203
	CapExitOnEmulationFailure   Cap = 204
	CapVMMoveEncContextFrom     Cap = 206
	CapVMGPABits                Cap = 207
	CapXSAVE2                   Cap = 208
	CapSysAttributes            Cap = 209
	CapPMUCapability            Cap = 212
	CapDisableQuirks2           Cap = 213
	CapVMTSCControl             Cap = 214
	CapSystemEventData          Cap = 215
	CapX86TripleFaultEvent      Cap = 218
	CapX86NotifyVMExit          Cap = 219
	CapVMDisableNXHugePages     Cap = 220
	CapDirtyLogRingAcqRel       Cap = 223
	CapDirtyLogRingWithBitmap   Cap = 225
	CapPMUEventMaskedEvents     Cap = 226
	CapUserMemory2              Cap = 231
	CapMemoryFaultInfo          Cap = 232
	CapMemoryAttributes         Cap = 233
	CapGuestMemfd               Cap = 234
	CapVMTypes                  Cap = 235
	CapPreFaultMemory           Cap = 236
	CapX86APICBusCyclesNS       Cap = 237
	CapX86GuestMode             Cap = 238
)

// String is the kernel's name for the capability, such as KVM_CAP_IRQCHIP.
func (c Cap) String() string { return name("KVM_CAP_", capNames, c) }

var capNames = map[Cap]string{
	CapIRQChip:                  "IRQCHIP",
	CapHLT:                      "HLT",
	CapMMUShadowCacheControl:    "MMU_SHADOW_CACHE_CONTROL",
	CapUserMemory:               "USER_MEMORY",
	CapSetTSSAddr:               "SET_TSS_ADDR",
	CapVAPIC:                    "VAPIC",
	CapExtCPUID:                 "EXT_CPUID",
	CapClocksource:              "CLOCKSOURCE",
	CapNrVCPUs:                  "NR_VCPUS",
	CapNrMemslots:               "NR_MEMSLOTS",
	CapPIT:                      "PIT",
	CapNopIODelay:               "NOP_IO_DELAY",
	CapMPState:                  "MP_STATE",
	CapCoalescedMMIO:            "COALESCED_MMIO",
	CapSyncMMU:                  "SYNC_MMU",
	CapDestroyMemoryRegionWorks: "DESTROY_MEMORY_REGION_WORKS",
	CapUserNMI:                  "USER_NMI",
	CapSetGuestDebug:            "SET_GUEST_DEBUG",
	CapReinjectControl:          "REINJECT_CONTROL",
	CapIRQRouting:               "IRQ_ROUTING",
	CapIRQInjectStatus:          "IRQ_INJECT_STATUS",
	CapJoinMemoryRegionsWorks:   "JOIN_MEMORY_REGIONS_WORKS",
	CapMCE:                      "MCE",
	CapIRQFD:                    "IRQFD",
	CapPIT2:                     "PIT2",
	CapSetBootCPUID:             "SET_BOOT_CPU_ID",
	CapPITState2:                "PIT_STATE2",
	CapIOEventFD:                "IOEVENTFD",
	CapSetIdentityMapAddr:       "SET_IDENTITY_MAP_ADDR",
	CapAdjustClock:              "ADJUST_CLOCK",
	CapInternalErrorData:        "INTERNAL_ERROR_DATA",
	CapVCPUEvents:               "VCPU_EVENTS",
	CapHyperV:                   "HYPERV",
	CapHyperVVAPIC:              "HYPERV_VAPIC",
	CapHyperVSpin:               "HYPERV_SPIN",
	CapIntrShadow:               "INTR_SHADOW",
	CapDebugRegs:                "DEBUGREGS",
	CapX86RobustSinglestep:      "X86_ROBUST_SINGLESTEP",
	CapEnableCap:                "ENABLE_CAP",
	CapXSAVE:                    "XSAVE",
	CapXCRs:                     "XCRS",
	CapAsyncPF:                  "ASYNC_PF",
	CapTSCControl:               "TSC_CONTROL",
	CapGetTSCKHz:                "GET_TSC_KHZ",
	CapMaxVCPUs:                 "MAX_VCPUS",
	CapTSCDeadlineTimer:         "TSC_DEADLINE_TIMER",
	CapSyncRegs:                 "SYNC_REGS",
	CapKVMClockCtrl:             "KVMCLOCK_CTRL",
	CapSignalMSI:                "SIGNAL_MSI",
	CapReadonlyMem:              "READONLY_MEM",
	CapIRQFDResample:            "IRQFD_RESAMPLE",
	CapDeviceCtrl:               "DEVICE_CTRL",
	CapExtEmulCPUID:             "EXT_EMUL_CPUID",
	CapHyperVTime:               "HYPERV_TIME",
	CapIOAPICPolarityIgnored:    "IOAPIC_POLARITY_IGNORED",
	CapEnableCapVM:              "ENABLE_CAP_VM",
	CapIOEventFDNoLength:        "IOEVENTFD_NO_LENGTH",
	CapVMAttributes:             "VM_ATTRIBUTES",
	CapCheckExtensionVM:         "CHECK_EXTENSION_VM",
	CapDisableQuirks:            "DISABLE_QUIRKS",
	CapX86SMM:                   "X86_SMM",
	CapMultiAddressSpace:        "MULTI_ADDRESS_SPACE",
	CapGuestDebugHWBPs:          "GUEST_DEBUG_HW_BPS",
	CapGuestDebugHWWPs:          "GUEST_DEBUG_HW_WPS",
	CapSplitIRQChip:             "SPLIT_IRQCHIP",
	CapIOEventFDAnyLength:       "IOEVENTFD_ANY_LENGTH",
	CapHyperVSynIC:              "HYPERV_SYNIC",
	CapVCPUAttributes:           "VCPU_ATTRIBUTES",
	CapMaxVCPUID:                "MAX_VCPU_ID",
	CapX2APICAPI:                "X2APIC_API",
	CapMSIDevID:                 "MSI_DEVID",
	CapImmediateExit:            "IMMEDIATE_EXIT",
	CapX86DisableExits:          "X86_DISABLE_EXITS",
	CapHyperVSynIC2:             "HYPERV_SYNIC2",
	CapHyperVVPIndex:            "HYPERV_VP_INDEX",
	CapGetMSRFeatures:           "GET_MSR_FEATURES",
	CapHyperVEventFD:            "HYPERV_EVENTFD",
	CapHyperVTLBFlush:           "HYPERV_TLBFLUSH",
	CapNestedState:              "NESTED_STATE",
	CapMSRPlatformInfo:          "MSR_PLATFORM_INFO",
	CapHyperVSendIPI:            "HYPERV_SEND_IPI",
	CapCoalescedPIO:             "COALESCED_PIO",
	CapHyperVEnlightenedVMCS:    "HYPERV_ENLIGHTENED_VMCS",
	CapExceptionPayload:         "EXCEPTION_PAYLOAD",
	CapHyperVCPUID:              "HYPERV_CPUID",
	CapManualDirtyLogProtect2:   "MANUAL_DIRTY_LOG_PROTECT2",
	CapPMUEventFilter:           "PMU_EVENT_FILTER",
	CapHyperVDirectTLBFlush:     "HYPERV_DIRECT_TLBFLUSH",
	CapHaltPoll:                 "HALT_POLL",
	CapAsyncPFInt:               "ASYNC_PF_INT",
	CapLastCPU:                  "LAST_CPU",
	CapSmallerMaxPhyAddr:        "SMALLER_MAXPHYADDR",
	CapStealTime:                "STEAL_TIME",
	CapX86UserSpaceMSR:          "X86_USER_SPACE_MSR",
	CapX86MSRFilter:             "X86_MSR_FILTER",
	CapEnforcePVFeatureCPUID:    "ENFORCE_PV_FEATURE_CPUID",
	CapSysHyperVCPUID:           "SYS_HYPERV_CPUID",
	CapDirtyLogRing:             "DIRTY_LOG_RING",
	CapX86BusLockExit:           "X86_BUS_LOCK_EXIT",
	CapSetGuestDebug2:           "SET_GUEST_DEBUG2",
	CapVMCopyEncContextFrom:     "VM_COPY_ENC_CONTEXT_FROM",
	CapPTPKVM:                   "PTP_KVM",
	CapHyperVEnforceCPUID:       "HYPERV_ENFORCE_CPUID",
	CapSregs2:                   "SREGS2",
	CapExitHypercall:            "EXIT_HYPERCALL",
	CapBinaryStatsFD:            "BINARY_STATS_FD",
	CapExitOnEmulationFailure:   "EXIT_ON_EMULATION_FAILURE",
	CapVMMoveEncContextFrom:     "VM_MOVE_ENC_CONTEXT_FROM",
	CapVMGPABits:                "VM_GPA_BITS",
	CapXSAVE2:                   "XSAVE2",
	CapSysAttributes:            "SYS_ATTRIBUTES",
	CapPMUCapability:            "PMU_CAPABILITY",
	CapDisableQuirks2:           "DISABLE_QUIRKS2",
	CapVMTSCControl:             "VM_TSC_CONTROL",
	CapSystemEventData:          "SYSTEM_EVENT_DATA",
	CapX86TripleFaultEvent:      "X86_TRIPLE_FAULT_EVENT",
	CapX86NotifyVMExit:          "X86_NOTIFY_VMEXIT",
	CapVMDisableNXHugePages:     "VM_DISABLE_NX_HUGE_PAGES",
	CapDirtyLogRingAcqRel:       "DIRTY_LOG_RING_ACQ_REL",
	CapDirtyLogRingWithBitmap:   "DIRTY_LOG_RING_WITH_BITMAP",
	CapPMUEventMaskedEvents:     "PMU_EVENT_MASKED_EVENTS",
	CapUserMemory2:              "USER_MEMORY2",
	CapMemoryFaultInfo:          "MEMORY_FAULT_INFO",
	CapMemoryAttributes:         "MEMORY_ATTRIBUTES",
	CapGuestMemfd:               "GUEST_MEMFD",
	CapVMTypes:                  "VM_TYPES",
	CapPreFaultMemory:           "PRE_FAULT_MEMORY",
	CapX86APICBusCyclesNS:       "X86_APIC_BUS_CYCLES_NS",
	CapX86GuestMode:             "X86_GUEST_MODE",
}
