package vmm

// Guest-physical layout. RAM runs from zero to the MMIO gap below 4 GiB and,
// where there is more of it, continues at 4 GiB.
const (
	gapStart = 3 << 30
	gapEnd   = 4 << 30

	// Low memory, as the Linux x86 boot protocol leaves it to a boot loader.
	gdtAddr       = 0x500
	zeroPageAddr  = 0x7000
	bootStackAddr = 0x8ff0
	pageTableAddr = 0x9000 // PML4, PDPT, PD: one page each
	cmdlineAddr   = 0x20000
	cmdlineMax    = 0x800 // COMMAND_LINE_SIZE of x86, with the final NUL

	// From here to 1 MiB is RAM for us and reserved in the e820 map.
	ebdaStart   = 0x9fc00
	acpiAddr    = 0xe0000
	vmgenidAddr = 0xff000
	biosEnd     = 0x100000

	kernelMin = 0x100000 // nothing of a kernel may lie lower

	mmioBase = 0xd0000000 // virtio-mmio devices, one page each
	mmioSize = 0x1000

	ioapicAddr      = 0xfec00000
	identityMapAddr = 0xfffbc000 // one page that VMX real mode needs
	tssAddr         = 0xfffbd000 // three pages that VMX real mode needs

	serialPort = 0x3f8
	serialGSI  = 4
	i8042Port  = 0x60
	rtcPort    = 0x70
	powerPort  = 0x600

	firstGSI = 5 // of the virtio devices, VMGenID and the disks
)
