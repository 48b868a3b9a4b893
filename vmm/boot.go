package vmm

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/forkvm/forkvm/kvm"
)

// Errors of a kernel or initramfs that cannot be booted.
var (
	ErrKernel         = errors.New("not a bootable x86-64 ELF kernel")
	ErrKernelTooBig   = errors.New("kernel does not fit into memory")
	ErrInitrdTooBig   = errors.New("initramfs does not fit into memory")
	ErrCmdlineTooLong = errors.New("kernel command line too long")
)

// bootImage is where the pieces of a loaded kernel lie.
type bootImage struct {
	entry                  uint64 // guest-physical address of the 64-bit entry point
	kernelEnd              uint64
	initrdAddr, initrdSize uint64
}

// loadKernel puts the segments of an ELF kernel at their physical addresses.
// The file is not trusted: every length is checked against RAM.
func (m *memory) loadKernel(path string) (bootImage, error) {
	f, err := os.Open(path)
	if err != nil {
		return bootImage{}, fmt.Errorf("vmm: kernel: %w", err)
	}
	defer f.Close()
	img, err := m.loadELF(f)
	if err != nil {
		return bootImage{}, fmt.Errorf("vmm: kernel %s: %w", path, err)
	}
	return img, nil
}

func (m *memory) loadELF(r io.ReaderAt) (bootImage, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return bootImage{}, notKernel(r, err)
	}
	defer f.Close()
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 || f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return bootImage{}, fmt.Errorf("%w: it is %v %v %v", ErrKernel, f.Class, f.Machine, f.Type)
	}
	var img bootImage
	var loaded uint64
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD || p.Memsz == 0 {
			continue
		}
		// Segments that overlap could be many times what is there.
		if loaded += min(p.Memsz, m.lowSize()); loaded > m.lowSize() {
			return bootImage{}, fmt.Errorf("%w: segments of more than %d MiB in all", ErrKernelTooBig, m.lowSize()>>20)
		}
		if err := m.loadSegment(p); err != nil {
			return bootImage{}, err
		}
		img.kernelEnd = max(img.kernelEnd, p.Paddr+p.Memsz)
		// A vmlinux names a physical entry point; some linkers a virtual one.
		if f.Entry >= p.Paddr && f.Entry-p.Paddr < p.Memsz {
			img.entry = f.Entry
		} else if f.Entry >= p.Vaddr && f.Entry-p.Vaddr < p.Memsz {
			img.entry = f.Entry - p.Vaddr + p.Paddr
		}
	}
	if img.entry == 0 {
		return bootImage{}, fmt.Errorf("%w: its entry point %#x is in no segment", ErrKernel, f.Entry)
	}
	if img.entry >= 1<<30 {
		return bootImage{}, fmt.Errorf("%w: its entry point %#x is above 1 GiB", ErrKernel, img.entry)
	}
	return img, nil
}

func (m *memory) loadSegment(p *elf.Prog) error {
	switch {
	case p.Paddr < kernelMin:
		return fmt.Errorf("%w: segment at %#x lies below %#x", ErrKernel, p.Paddr, kernelMin)
	case p.Filesz > p.Memsz:
		return fmt.Errorf("%w: segment at %#x is larger in the file than in memory", ErrKernel, p.Paddr)
	case p.Memsz > m.lowSize() || p.Paddr > m.lowSize()-p.Memsz:
		return fmt.Errorf("%w: segment %#x+%#x, %d MiB of low memory", ErrKernelTooBig, p.Paddr, p.Memsz, m.lowSize()>>20)
	}
	if err := m.readFrom(p.Open(), p.Paddr, p.Filesz); err != nil {
		return fmt.Errorf("%w: truncated in the segment at %#x: %w", ErrKernel, p.Paddr, err)
	}
	return nil
}

// notKernel says what a file is that is no ELF file.
func notKernel(r io.ReaderAt, cause error) error {
	var magic [4]byte
	if _, err := r.ReadAt(magic[:], 0x202); err == nil && string(magic[:]) == "HdrS" {
		return fmt.Errorf("%w: it is a compressed bzImage; unpack it with package initrd or 'forkvm kernel'", ErrKernel)
	}
	return fmt.Errorf("%w: %w", ErrKernel, cause)
}

// loadInitramfs puts the archive at the top of low memory, below 2 GiB as
// older kernels want it.
func (m *memory) loadInitramfs(img *bootImage, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	size := uint64(len(data))
	top := min(m.lowSize(), 1<<31)
	if size > top || (top-size)&^(pageSize-1) < img.kernelEnd {
		return fmt.Errorf("vmm: %w: %d MiB, kernel ends at %d MiB of %d MiB",
			ErrInitrdTooBig, size>>20, img.kernelEnd>>20, top>>20)
	}
	img.initrdAddr, img.initrdSize = (top-size)&^(pageSize-1), size
	return m.write(img.initrdAddr, data)
}

// baseCmdline is what every guest of this machine needs.
//
//   - reboot=k: restart through the i8042, which ends the machine.
//   - panic=-1: a panic restarts at once, so the machine can report it.
//   - 8250.nr_uarts=1: no probing of ports that are not there.
//   - pci=off: there is no PCI bus to probe.
//   - random.trust_cpu=on: boot does not wait for entropy.
//   - no_timer_check: the PIT works; testing it takes several ticks.
//   - noreplace-smp: a machine of one vCPU keeps its lock prefixes. Patching
//     thousands of them out, one by one through a mapping made for each, takes
//     longer than anything else in the kernel's start.
//   - page_reporting_order=5: free pages are given back in blocks of 128 KiB.
//     Blocks of 2 or 4 MiB, the kernel's own choice, are rarely free as a whole,
//     and none is given back while fewer than 32 of them are.
//   - percpu_pagelist_high_fraction=128: a processor keeps at most 1/128 of
//     memory for itself when it is freed, not 1/8, which would never come back.
const baseCmdline = "console=ttyS0 quiet reboot=k panic=-1 8250.nr_uarts=1 " +
	"pci=off random.trust_cpu=on no_timer_check noreplace-smp cryptomgr.notests rcupdate.rcu_expedited=1 " +
	"page_reporting.page_reporting_order=5 sysctl.vm.percpu_pagelist_high_fraction=128"

// cmdline builds the whole kernel command line.
func (c Config) cmdline() (string, error) {
	parts := []string{baseCmdline, "forkvm.hostname=" + c.Hostname}
	if strings.Contains(c.Cmdline, "acpi=off") {
		// Without ACPI this is how a kernel learns of virtio-mmio devices.
		for i := range numVirtio + len(c.Disks) {
			parts = append(parts, fmt.Sprintf("virtio_mmio.device=4K@%#x:%d", virtioAddr(i), virtioGSI(i)))
		}
	}
	if len(c.Root) > 0 {
		parts = append(parts, "forkvm.root="+strings.Join(c.Root, ","))
	}
	if c.Cmdline != "" {
		parts = append(parts, c.Cmdline)
	}
	s := strings.Join(parts, " ")
	if len(s) >= cmdlineMax {
		return "", fmt.Errorf("vmm: %w: %d bytes, at most %d", ErrCmdlineTooLong, len(s), cmdlineMax-1)
	}
	return s, nil
}

// writeBootParams fills the zero page, struct boot_params of
// Documentation/arch/x86/zero-page.rst, and what it points to.
func (m *memory) writeBootParams(img bootImage, cmdline string, rsdp uint64) error {
	if err := m.write(cmdlineAddr, append([]byte(cmdline), 0)); err != nil {
		return err
	}
	page := make([]byte, pageSize)
	le := binary.LittleEndian
	le.PutUint64(page[0x070:], rsdp) // acpi_rsdp_addr
	// The setup header, Documentation/arch/x86/boot.rst.
	le.PutUint16(page[0x1fe:], 0xaa55) // boot_flag
	copy(page[0x202:], "HdrS")         // header
	le.PutUint16(page[0x206:], 0x20c)  // version 2.12
	page[0x210] = 0xff                 // type_of_loader: undefined
	page[0x211] = 1                    // loadflags: LOADED_HIGH
	le.PutUint32(page[0x218:], uint32(img.initrdAddr))
	le.PutUint32(page[0x21c:], uint32(img.initrdSize))
	le.PutUint32(page[0x228:], cmdlineAddr)
	le.PutUint32(page[0x230:], 0x1000000) // kernel_alignment
	le.PutUint32(page[0x238:], uint32(len(cmdline)))

	entries := e820(uint64(len(m.ram)))
	page[0x1e8] = byte(len(entries))
	for i, e := range entries {
		at := page[0x2d0+20*i:]
		le.PutUint64(at[0:], e.addr)
		le.PutUint64(at[8:], e.size)
		le.PutUint32(at[16:], e.kind)
	}
	return m.write(zeroPageAddr, page)
}

type e820Entry struct {
	addr, size uint64
	kind       uint32
}

func e820(ram uint64) []e820Entry {
	const usable, reserved, acpi = 1, 2, 3
	low := min(ram, gapStart)
	entries := []e820Entry{
		{0, ebdaStart, usable},
		{ebdaStart, 0xa0000 - ebdaStart, reserved},
		{acpiAddr, vmgenidAddr - acpiAddr, acpi},
		{vmgenidAddr, biosEnd - vmgenidAddr, reserved},
		{biosEnd, low - biosEnd, usable},
	}
	if ram > gapStart {
		entries = append(entries, e820Entry{gapEnd, ram - gapStart, usable})
	}
	return entries
}

// Control register and segment bits, AMD64 Architecture Programmer's Manual
// volume 2, chapters 3 and 4.
const (
	cr0PE, cr0ET, cr0NE, cr0PG = 1 << 0, 1 << 4, 1 << 5, 1 << 31
	cr4PAE                     = 1 << 5
	eferLME, eferLMA           = 1 << 8, 1 << 10
	pagePresent, pageWrite     = 1 << 0, 1 << 1
	pageHuge                   = 1 << 7

	bootCS, bootDS = 0x10, 0x18 // selectors that the boot protocol asks for
)

// writeLongMode writes the descriptor and page tables that the 64-bit boot
// protocol asks for: flat segments, the first GiB mapped one to one.
func (m *memory) writeLongMode() error {
	gdt := make([]byte, 0, 5*8)
	for _, d := range []uint64{0, 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0} {
		gdt = binary.LittleEndian.AppendUint64(gdt, d)
	}
	if err := m.write(gdtAddr, gdt); err != nil {
		return err
	}
	tables := make([]byte, 3*pageSize)
	le := binary.LittleEndian
	le.PutUint64(tables[0:], pageTableAddr+pageSize|pagePresent|pageWrite)
	le.PutUint64(tables[pageSize:], pageTableAddr+2*pageSize|pagePresent|pageWrite)
	for i := range uint64(512) {
		le.PutUint64(tables[2*pageSize+8*i:], i<<21|pagePresent|pageWrite|pageHuge)
	}
	return m.write(pageTableAddr, tables)
}

// setBootRegisters puts the first vCPU into 64-bit mode at the kernel's entry
// point with RSI at the zero page, as section "64-bit Boot Protocol" says.
func setBootRegisters(c *kvm.VCPU, entry uint64) error {
	s, err := c.Sregs()
	if err != nil {
		return err
	}
	data := kvm.Segment{Limit: 0xffffffff, Selector: bootDS, Type: 3, Present: 1, DB: 1, S: 1, G: 1}
	s.CS = kvm.Segment{Limit: 0xffffffff, Selector: bootCS, Type: 11, Present: 1, S: 1, L: 1, G: 1}
	s.DS, s.ES, s.FS, s.GS, s.SS = data, data, data, data, data
	s.GDT = kvm.DTable{Base: gdtAddr, Limit: 5*8 - 1}
	s.CR0 = cr0PE | cr0ET | cr0NE | cr0PG
	s.CR3 = pageTableAddr
	s.CR4 = cr4PAE
	s.EFER = eferLME | eferLMA
	if err := c.SetSregs(&s); err != nil {
		return err
	}
	return c.SetRegs(&kvm.Regs{RIP: entry, RSI: zeroPageAddr, RSP: bootStackAddr, RFLAGS: 2})
}
