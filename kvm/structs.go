package kvm

// Structures of a VM, with the layouts of linux/kvm.h. Blank fields are padding
// that the kernel ignores or wants to be zero.

// Flags of a memory region.
const (
	MemLogDirtyPages = 1 << 0 // KVM_MEM_LOG_DIRTY_PAGES: keep a log of written pages
	MemReadonly      = 1 << 1 // KVM_MEM_READONLY: guest writes leave as MMIO
	MemGuestMemfd    = 1 << 2 // KVM_MEM_GUEST_MEMFD: region 2 only
)

// UserspaceMemoryRegion is kvm_userspace_memory_region: a slot of guest-physical
// memory backed by this process's memory at UserspaceAddr. A MemorySize of zero
// deletes the slot. Sizes and addresses are bytes, multiples of the page size.
type UserspaceMemoryRegion struct {
	Slot          uint32
	Flags         uint32
	GuestPhysAddr uint64
	MemorySize    uint64
	UserspaceAddr uint64
}

// UserspaceMemoryRegion2 is kvm_userspace_memory_region2 (Linux 6.8, see
// [CapUserMemory2]): a region whose private pages may come of a guest_memfd.
type UserspaceMemoryRegion2 struct {
	Slot             uint32
	Flags            uint32
	GuestPhysAddr    uint64
	MemorySize       uint64
	UserspaceAddr    uint64
	GuestMemfdOffset uint64
	GuestMemfd       uint32
	_                uint32
	_                [14]uint64
}

// EnableCap is kvm_enable_cap: a capability to switch on and its arguments.
type EnableCap struct {
	Cap   Cap
	Flags uint32
	Args  [4]uint64
	_     [64]byte
}

// PITSpeakerDummy as a flag of [PITConfig] makes KVM answer for the speaker's
// port 0x61 too.
const PITSpeakerDummy = 1

// PITConfig is kvm_pit_config.
type PITConfig struct {
	Flags uint32
	_     [15]uint32
}

// PITChannelState is kvm_pit_channel_state, one of the three counters of an
// 8254.
type PITChannelState struct {
	Count         uint32 // 1..65536
	LatchedCount  uint16
	CountLatched  uint8
	StatusLatched uint8
	Status        uint8
	ReadState     uint8
	WriteState    uint8
	WriteLatch    uint8
	RWMode        uint8
	Mode          uint8
	BCD           uint8
	Gate          uint8
	CountLoadTime int64 // ns, of the host's monotonic clock
}

// Flags of [PITState2].
const (
	PITHPETLegacy    = 1 << 0 // KVM_PIT_FLAGS_HPET_LEGACY
	PITSpeakerDataOn = 1 << 1 // KVM_PIT_FLAGS_SPEAKER_DATA_ON
)

// PITState2 is kvm_pit_state2.
type PITState2 struct {
	Channels [3]PITChannelState
	Flags    uint32
	_        [9]uint32
}

// The interrupt controllers of KVM_CREATE_IRQCHIP, as ids of [IRQChip] and as
// arguments of [IRQChipRoute].
const (
	PICMaster = 0 // KVM_IRQCHIP_PIC_MASTER
	PICSlave  = 1 // KVM_IRQCHIP_PIC_SLAVE
	IOAPIC    = 2 // KVM_IRQCHIP_IOAPIC
)

// IRQChip is kvm_irqchip: the state of one of the interrupt controllers.
// [IRQChip.PIC] and [IRQChip.IOAPIC] decode it.
type IRQChip struct {
	ID   uint32 // PICMaster, PICSlave or IOAPIC
	_    uint32
	Chip [512]byte
}

// Flags of [ClockData].
const (
	ClockTSCStable = 1 << 1 // KVM_CLOCK_TSC_STABLE: all vCPUs see one clock
	ClockRealtime  = 1 << 2 // KVM_CLOCK_REALTIME: Realtime is valid
	ClockHostTSC   = 1 << 3 // KVM_CLOCK_HOST_TSC: HostTSC is valid
)

// ClockData is kvm_clock_data: kvm-clock as the guest sees it. Set with
// ClockRealtime, the clock advances by the time since Realtime.
type ClockData struct {
	Clock    uint64 // ns since the VM was made
	Flags    uint32
	_        uint32
	Realtime uint64 // ns, the host's CLOCK_REALTIME at the same instant
	HostTSC  uint64 // ticks of the host's TSC at the same instant
	_        [4]uint32
}

// MSI is kvm_msi: a message-signalled interrupt.
type MSI struct {
	AddressLo uint32
	AddressHi uint32
	Data      uint32
	Flags     uint32
	DevID     uint32
	_         [12]byte
}

// Types of [IRQRoutingEntry].
const (
	IRQRoutingIRQChip = 1 // KVM_IRQ_ROUTING_IRQCHIP
	IRQRoutingMSI     = 2 // KVM_IRQ_ROUTING_MSI
)

// IRQRoutingEntry is kvm_irq_routing_entry: where the interrupt GSI goes. Args
// is the kernel's union; [IRQChipRoute] and [MSIRoute] fill it.
type IRQRoutingEntry struct {
	GSI   uint32
	Type  uint32
	Flags uint32
	_     uint32
	Args  [8]uint32
}

// IRQChipRoute routes gsi to a pin of an interrupt controller.
func IRQChipRoute(gsi, chip, pin uint32) IRQRoutingEntry {
	return IRQRoutingEntry{GSI: gsi, Type: IRQRoutingIRQChip, Args: [8]uint32{chip, pin}}
}

// MSIRoute routes gsi to a message.
func MSIRoute(gsi uint32, m MSI) IRQRoutingEntry {
	return IRQRoutingEntry{
		GSI:   gsi,
		Type:  IRQRoutingMSI,
		Flags: m.Flags,
		Args:  [8]uint32{m.AddressLo, m.AddressHi, m.Data, m.DevID},
	}
}

// Flags of [IRQFD].
const (
	IRQFDDeassign = 1 << 0 // KVM_IRQFD_FLAG_DEASSIGN
	IRQFDResample = 1 << 1 // KVM_IRQFD_FLAG_RESAMPLE: level-triggered, with ResampleFD
)

// IRQFD is kvm_irqfd: an eventfd that triggers a GSI.
type IRQFD struct {
	FD         uint32
	GSI        uint32
	Flags      uint32
	ResampleFD uint32
	_          [16]byte
}

// Flags of [IOEventFD].
const (
	IOEventFDDatamatch = 1 << 0 // KVM_IOEVENTFD_FLAG_DATAMATCH: only writes of Datamatch
	IOEventFDPIO       = 1 << 1 // KVM_IOEVENTFD_FLAG_PIO: Addr is a port
	IOEventFDDeassign  = 1 << 2 // KVM_IOEVENTFD_FLAG_DEASSIGN
)

// IOEventFD is kvm_ioeventfd: an eventfd that a guest's write to Addr signals.
type IOEventFD struct {
	Datamatch uint64
	Addr      uint64
	Len       uint32 // 1, 2, 4 or 8; 0 for any
	FD        int32
	Flags     uint32
	_         [36]byte
}

// Arguments for [CapManualDirtyLogProtect2].
const (
	DirtyLogManualProtectEnable = 1 << 0 // KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE
	DirtyLogInitiallySet        = 1 << 1 // KVM_DIRTY_LOG_INITIALLY_SET
)

// irqLevel is kvm_irq_level. The first field is the GSI on the way in, the
// status on the way out of KVM_IRQ_LINE_STATUS.
type irqLevel struct {
	irq   uint32
	level uint32
}
