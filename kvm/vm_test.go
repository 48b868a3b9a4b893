package kvm_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
)

func TestMemoryRegion(t *testing.T) {
	code := []byte{
		0xc6, 0x06, 0x00, 0x50, 0x11, // mov byte [0x5000], 0x11
		0xf4, // hlt
	}
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: code})
	g.Run(t, kvm.ExitHLT)
	if g.Memory[0x5000] != 0x11 {
		t.Errorf("the guest's write is not seen: %#x", g.Memory[0x5000])
	}

	// Shrunk to 16 KiB, which takes deleting it first: then it is MMIO.
	r := g.Region(0)
	r.MemorySize = 0
	check(t, g.VM.SetUserMemoryRegion(r))
	r.MemorySize = 0x4000
	check(t, g.VM.SetUserMemoryRegion(r))
	g.Memory[0x5000] = 0
	g.RealMode(t, code)
	g.Run(t, kvm.ExitMMIO)
	if e := g.VCPU.MMIO(); e.Addr != 0x5000 || !e.Write || len(e.Data) != 1 || e.Data[0] != 0x11 {
		t.Errorf("MMIO() = %+v", e)
	}
}

func TestMemoryRegionReadonly(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	kvmtest.NeedCap(t, s, kvm.CapReadonlyMem)
	g := kvmtest.New(t, s, kvmtest.Config{Flags: kvm.MemReadonly, Code: []byte{
		0xa0, 0x00, 0x50, // mov al, [0x5000]
		0xa2, 0x01, 0x50, // mov [0x5001], al
		0xf4, // hlt
	}})
	g.Memory[0x5000] = 0x22
	g.Run(t, kvm.ExitMMIO)
	if e := g.VCPU.MMIO(); e.Addr != 0x5001 || !e.Write || len(e.Data) != 1 || e.Data[0] != 0x22 {
		t.Errorf("MMIO() = %+v", e)
	}
	if g.Memory[0x5001] != 0 {
		t.Error("read-only memory was written")
	}
}

func TestMemoryRegion2(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	kvmtest.NeedCap(t, s, kvm.CapUserMemory2)
	g := kvmtest.New(t, s, kvmtest.Config{Code: []byte{
		0xc6, 0x06, 0x00, 0x90, 0x33, // mov byte [0x9000], 0x33
		0xf4, // hlt
	}})
	check(t, g.VM.SetUserMemoryRegion2(kvm.UserspaceMemoryRegion2{
		Slot:          1,
		GuestPhysAddr: 0x8000,
		MemorySize:    0x2000,
		UserspaceAddr: kvmtest.Address(g.Memory[0x4000:]), // the same pages again
	}))
	g.Run(t, kvm.ExitHLT)
	if g.Memory[0x5000] != 0x33 {
		t.Errorf("the second slot's memory was not written: %#x", g.Memory[0x5000])
	}
}

func TestVMAddresses(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	vm, err := s.CreateVM()
	check(t, err)
	defer vm.Close()
	check(t, vm.SetTSSAddr(0xfffbd000))
	check(t, vm.SetIdentityMapAddr(0xfffbc000))
	c, err := vm.CreateVCPU(0)
	check(t, err)
	defer c.Close()
	if err := vm.SetIdentityMapAddr(0xfffbc000); !errors.Is(err, unix.EINVAL) {
		t.Errorf("SetIdentityMapAddr after a vCPU: %v", err)
	}
}

func TestVMEnableCap(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	kvmtest.NeedCap(t, s, kvm.CapSplitIRQChip)
	vm, err := s.CreateVM()
	check(t, err)
	defer vm.Close()
	check(t, vm.EnableCap(kvm.EnableCap{Cap: kvm.CapSplitIRQChip, Args: [4]uint64{24}}))
	if err := vm.CreateIRQChip(); !errors.Is(err, unix.EEXIST) {
		t.Errorf("CreateIRQChip beside the split one: %v", err)
	}
	c, err := vm.CreateVCPU(0)
	check(t, err)
	defer c.Close()
	if _, err := c.LAPIC(); err != nil {
		t.Errorf("no local APIC with a split irqchip: %v", err)
	}
	if err := vm.EnableCap(kvm.EnableCap{Cap: kvm.CapUserMemory}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("EnableCap of one that cannot be enabled: %v", err)
	}
}

func TestClock(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{})
	const hour = uint64(time.Hour)
	begin := time.Now()
	check(t, g.VM.SetClock(&kvm.ClockData{Clock: hour}))
	c, err := g.VM.Clock()
	check(t, err)
	passed := uint64(time.Since(begin)) + uint64(time.Millisecond) // two clocks of the host, rounded
	if c.Clock < hour || c.Clock > hour+passed {
		t.Errorf("clock is at %v, want %v and at most %v more",
			time.Duration(c.Clock), time.Hour, time.Duration(passed))
	}
	if c.Flags&kvm.ClockRealtime != 0 {
		if d := time.Since(time.Unix(0, int64(c.Realtime))).Abs(); d > time.Minute {
			t.Errorf("Realtime is %v from now", d)
		}
		// Set with it, the clock has gone on since.
		c.Realtime -= hour
		check(t, g.VM.SetClock(&c))
		later, err := g.VM.Clock()
		if err != nil || later.Clock < c.Clock+hour {
			t.Errorf("clock is at %v, %v", time.Duration(later.Clock), err)
		}
	}
}

func TestVMTSCKHz(t *testing.T) {
	vm, err := kvmtest.OpenOrSkip(t).CreateVM()
	check(t, err)
	defer vm.Close()
	khz, err := vm.TSCKHz()
	if err != nil || khz == 0 {
		t.Fatalf("TSCKHz() = %d, %v", khz, err)
	}
	check(t, vm.SetTSCKHz(khz+1000))
	if got, err := vm.TSCKHz(); got != khz+1000 || err != nil {
		t.Errorf("TSCKHz() = %d, %v, want %d", got, err, khz+1000)
	}
}

// writePages is a guest that writes a byte of pages 2, 5 and 6 of slot 0.
var writePages = []byte{
	0xc6, 0x06, 0x00, 0x20, 0x01, // mov byte [0x2000], 1
	0xc6, 0x06, 0xff, 0x5f, 0x01, // mov byte [0x5fff], 1
	0xc6, 0x06, 0x00, 0x60, 0x01, // mov byte [0x6000], 1
	0xf4, // hlt
}

const writtenPages = 1<<2 | 1<<5 | 1<<6

// expectPages wants exactly the pages that writePages writes or, where the
// guest touches its memory for the first time, at least these: KVM may then map
// a page writable that is only read, and has to take it for written.
func expectPages(t *testing.T, got uint64, firstTouch bool) {
	t.Helper()
	if firstTouch {
		got &= writtenPages
	}
	if got != writtenPages {
		t.Errorf("dirty pages %#x, want %#x", got, writtenPages)
	}
}

func TestDirtyLog(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Flags: kvm.MemLogDirtyPages})
	bitmap := make([]uint64, 2)
	for round := range 3 {
		g.RealMode(t, writePages)
		g.Run(t, kvm.ExitHLT)
		bitmap[0], bitmap[1] = 0, 1<<63
		check(t, g.VM.DirtyLog(0, bitmap))
		expectPages(t, bitmap[0], round == 0)
		if bitmap[1] != 1<<63 {
			t.Error("bits behind the slot's pages were changed")
		}
	}
	check(t, g.VM.DirtyLog(0, bitmap))
	if bitmap[0] != 0 {
		t.Errorf("dirty pages %#x though nothing ran", bitmap[0])
	}
	if err := g.VM.DirtyLog(0, nil); !errors.Is(err, unix.EINVAL) {
		t.Errorf("DirtyLog with a bitmap too small: %v", err)
	}
	if err := g.VM.DirtyLog(1, bitmap); !errors.Is(err, unix.ENOENT) {
		t.Errorf("DirtyLog of a slot that is not there: %v", err)
	}
}

func TestClearDirtyLog(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	kvmtest.NeedCap(t, s, kvm.CapManualDirtyLogProtect2)
	g := kvmtest.New(t, s, kvmtest.Config{
		Flags: kvm.MemLogDirtyPages,
		Prepare: func(vm *kvm.VM) {
			check(t, vm.EnableCap(kvm.EnableCap{
				Cap:  kvm.CapManualDirtyLogProtect2,
				Args: [4]uint64{kvm.DirtyLogManualProtectEnable},
			}))
		},
	})
	bitmap := make([]uint64, 1)
	for round := range 3 {
		g.RealMode(t, writePages)
		g.Run(t, kvm.ExitHLT)
		for range 2 { // reading does not clear
			check(t, g.VM.DirtyLog(0, bitmap))
			expectPages(t, bitmap[0], round == 0)
		}
		check(t, g.VM.ClearDirtyLog(0, 0, 8, []uint64{bitmap[0] &^ (1 << 5)}))
		check(t, g.VM.DirtyLog(0, bitmap))
		if bitmap[0] != 1<<5 {
			t.Errorf("dirty pages %#x, want the one that was not cleared", bitmap[0])
		}
	}
	if err := g.VM.ClearDirtyLog(0, 0, 65, bitmap); !errors.Is(err, unix.EINVAL) {
		t.Errorf("ClearDirtyLog with a bitmap too small: %v", err)
	}
}

func TestDirtyRing(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	kvmtest.NeedCap(t, s, kvm.CapDirtyLogRing)
	const size = 64 << 10
	g := kvmtest.New(t, s, kvmtest.Config{
		Prepare: func(vm *kvm.VM) {
			check(t, vm.EnableCap(kvm.EnableCap{Cap: kvm.CapDirtyLogRing, Args: [4]uint64{size}}))
		},
	})
	ring, err := g.VCPU.MapDirtyRing(size)
	check(t, err)
	defer ring.Close()
	check(t, g.VM.SetUserMemoryRegion(g.Region(kvm.MemLogDirtyPages)))

	for round := range 3 {
		g.RealMode(t, writePages)
		g.Run(t, kvm.ExitHLT)
		var pages uint64
		n := ring.Harvest(func(d kvm.DirtyGFN) {
			if d.Slot != 0 || d.Offset > 7 {
				t.Errorf("dirty page %+v", d)
			}
			pages |= 1 << d.Offset
		})
		expectPages(t, pages, round == 0)
		if again := ring.Harvest(func(kvm.DirtyGFN) {}); again != 0 {
			t.Errorf("round %d: %d dirty pages a second time", round, again)
		}
		if reset, err := g.VM.ResetDirtyRings(); reset != n || err != nil {
			t.Errorf("round %d: ResetDirtyRings() = %d, %v; harvested %d", round, reset, err, n)
		}
	}
	for range 2 {
		check(t, ring.Close())
	}
	if n := ring.Harvest(func(kvm.DirtyGFN) {}); n != 0 {
		t.Errorf("%d dirty pages after Close", n)
	}
	if _, err := g.VCPU.MapDirtyRing(0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("MapDirtyRing of nothing: %v", err)
	}
}

func TestStatsFD(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	kvmtest.NeedCap(t, s, kvm.CapBinaryStatsFD)
	g := kvmtest.New(t, s, kvmtest.Config{Code: []byte{0xf4}})
	g.Run(t, kvm.ExitHLT)
	for _, tt := range []struct {
		open func() (int, error)
		stat string
	}{
		{g.VM.StatsFD, "remote_tlb_flush"},
		{g.VCPU.StatsFD, "exits"},
	} {
		fd, err := tt.open()
		check(t, err)
		defer unix.Close(fd)
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor flags %#x, %v", flags, err)
		}
		if names := statNames(t, fd); !slices.Contains(names, tt.stat) {
			t.Errorf("no %s among %q", tt.stat, names)
		}
	}
}

// statNames reads the names of the binary statistics behind fd.
func statNames(t *testing.T, fd int) (names []string) {
	t.Helper()
	read := func(n, at int) []byte {
		b := make([]byte, n)
		if got, err := unix.Pread(fd, b, int64(at)); got != n || err != nil {
			t.Fatalf("read %d bytes of statistics at %d: %d, %v", n, at, got, err)
		}
		return b
	}
	header := read(24, 0)
	nameSize := int(binary.LittleEndian.Uint32(header[4:]))
	count := int(binary.LittleEndian.Uint32(header[8:]))
	descriptors := int(binary.LittleEndian.Uint32(header[16:]))
	for i := range count {
		d := read(16+nameSize, descriptors+i*(16+nameSize))
		name, _, _ := strings.Cut(string(d[16:]), "\x00")
		names = append(names, name)
	}
	return names
}
