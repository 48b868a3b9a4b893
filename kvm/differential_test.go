package kvm_test

import (
	"encoding/binary"
	"slices"
	"testing"

	gokvm "github.com/bobuhiro11/gokvm/kvm"
	"github.com/google/go-cmp/cmp"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
)

// The tests in this file read one vCPU's state through another KVM package as
// well, whose author typed the kernel's structures on his own, and compare.

// escape keeps what theirs hands to the kernel on the heap: gokvm passes
// addresses through a function call as numbers, and a stack could move.
var escape any

func heap[T any]() *T {
	p := new(T)
	escape = p
	return p
}

// ours reads a structure of theirs as one of ours, by its bytes.
func ours[T any](t *testing.T, theirs any) (v T) {
	t.Helper()
	b, err := binary.Append(nil, binary.LittleEndian, theirs)
	check(t, err)
	if len(b) != binary.Size(v) {
		t.Fatalf("their %T is %d bytes, our %T %d", theirs, len(b), v, binary.Size(v))
	}
	_, err = binary.Decode(b, binary.LittleEndian, &v)
	check(t, err)
	return v
}

func compare[T any](t *testing.T, mine T, theirs any) {
	t.Helper()
	if d := cmp.Diff(ours[T](t, theirs), mine); d != "" {
		t.Errorf("%T (- theirs, + ours):\n%s", mine, d)
	}
}

// wellUsed is a guest whose state is not what it was made with.
func wellUsed(t *testing.T) (*kvm.System, *kvmtest.Guest) {
	t.Helper()
	s, g := newVCPU(t)
	g.RealMode(t, countToFive)
	expectCount(t, g, 1)
	expectCount(t, g, 2)
	r := regs(t, g.VCPU)
	r.R8, r.R15, r.RSI = 0x1111222233334444, 0xfedcba9876543210, 0x55
	check(t, g.VCPU.SetRegs(&r))
	sr := sregs(t, g.VCPU)
	sr.CR2, sr.GS.Base, sr.GDT.Limit = 0x12345000, 0x7000, 0x77
	check(t, g.VCPU.SetSregs(&sr))
	d, err := g.VCPU.DebugRegs()
	check(t, err)
	d.DB[3] = 0x4444
	check(t, g.VCPU.SetDebugRegs(&d))
	l, err := g.VCPU.LAPIC()
	check(t, err)
	l.SetRegister(0xf0, 0x1ab)
	check(t, g.VCPU.SetLAPIC(&l))
	e, err := g.VCPU.VCPUEvents()
	check(t, err)
	e.NMI.Masked, e.Interrupt.Injected, e.Interrupt.Nr = 1, 1, 0x61
	check(t, g.VCPU.SetVCPUEvents(&e))
	p, err := g.VM.PIT2()
	check(t, err)
	p.Channels[1].Count = 0x4321
	check(t, g.VM.SetPIT2(&p))
	check(t, g.VM.IRQLine(9, 1))
	return s, g
}

func TestDifferentialSystem(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	fd := uintptr(s.FD())
	for c := range kvm.Cap(240) {
		mine, err := s.CheckExtension(c)
		check(t, err)
		theirs, err := gokvm.CheckExtension(fd, gokvm.Capability(c))
		check(t, err)
		if mine != int(theirs) {
			t.Errorf("%v: theirs %d, ours %d", c, theirs, mine)
		}
	}
	size, err := s.VCPUMmapSize()
	check(t, err)
	if theirs, err := gokvm.GetVCPUMMmapSize(fd); err != nil || int(theirs) != size {
		t.Errorf("mmap size: theirs %d, %v, ours %d", theirs, err, size)
	}

	list := heap[gokvm.MSRList]()
	list.NMSRs = 1000
	check(t, gokvm.GetMSRIndexList(fd, list))
	mine, err := s.MSRIndexList()
	check(t, err)
	if d := cmp.Diff(list.Indicies[:list.NMSRs], mine); d != "" {
		t.Errorf("MSR list (- theirs, + ours):\n%s", d)
	}
	list.NMSRs = 1000
	check(t, gokvm.GetMSRFeatureIndexList(fd, list))
	mine, err = s.MSRFeatureIndexList()
	check(t, err)
	if d := cmp.Diff(list.Indicies[:list.NMSRs], mine); d != "" {
		t.Errorf("feature MSR list (- theirs, + ours):\n%s", d)
	}

	leaves, err := s.SupportedCPUID()
	check(t, err)
	cpuid := gokvm.CPUID{Nent: 256, Entries: make([]gokvm.CPUIDEntry2, 256)}
	check(t, gokvm.GetSupportedCPUID(fd, &cpuid))
	compareCPUID(t, leaves, cpuid)
}

// compareCPUID compares leaves, but for the numbers of the CPU that this thread
// was on.
func compareCPUID(t *testing.T, mine []kvm.CPUIDEntry2, theirs gokvm.CPUID) {
	t.Helper()
	var converted []kvm.CPUIDEntry2
	for _, e := range theirs.Entries[:min(int(theirs.Nent), len(theirs.Entries))] {
		converted = append(converted, ours[kvm.CPUIDEntry2](t, e))
	}
	for _, leaves := range [][]kvm.CPUIDEntry2{mine, converted} {
		for i := range leaves {
			switch e := &leaves[i]; e.Function {
			case 1:
				e.EBX &= 0x00ffffff
			case 0xb, 0x1f, 0x80000026:
				e.EDX = 0
			case 0x8000001e:
				e.EAX, e.EBX, e.ECX = 0, 0, 0
			}
		}
	}
	if d := cmp.Diff(converted, mine); d != "" {
		t.Errorf("CPUID (- theirs, + ours):\n%s", d)
	}
}

func TestDifferentialVCPU(t *testing.T) {
	_, g := wellUsed(t)
	c, fd := g.VCPU, uintptr(g.VCPU.FD())

	mp, err := c.MPState()
	check(t, err)
	theirMP := heap[gokvm.MPState]()
	check(t, gokvm.GetMPState(fd, theirMP))
	compare(t, mp, theirMP)

	theirRegs, err := gokvm.GetRegs(fd)
	check(t, err)
	compare(t, regs(t, c), theirRegs)

	theirSregs, err := gokvm.GetSregs(fd)
	check(t, err)
	compare(t, sregs(t, c), theirSregs)

	debug, err := c.DebugRegs()
	check(t, err)
	theirDebug := heap[gokvm.DebugRegs]()
	check(t, gokvm.GetDebugRegs(fd, theirDebug))
	compare(t, debug, theirDebug)

	lapic, err := c.LAPIC()
	check(t, err)
	theirLAPIC := heap[gokvm.LAPICState]()
	check(t, gokvm.GetLocalAPIC(fd, theirLAPIC))
	compare(t, lapic, theirLAPIC)

	events, err := c.VCPUEvents()
	check(t, err)
	theirEvents := heap[gokvm.VCPUEvents]()
	check(t, gokvm.GetVCPUEvents(fd, theirEvents))
	compare(t, events, theirEvents)

	tr, err := c.Translate(0x1234)
	check(t, err)
	theirTr := heap[gokvm.Translation]()
	theirTr.LinearAddress = 0x1234
	check(t, gokvm.Translate(fd, theirTr))
	compare(t, tr, theirTr)

	khz, err := c.TSCKHz()
	check(t, err)
	if theirs, err := gokvm.GetTSCKHz(fd); err != nil || theirs != uint64(khz) {
		t.Errorf("TSC: theirs %d kHz, %v, ours %d", theirs, err, khz)
	}

	leaves, err := c.CPUID2()
	check(t, err)
	cpuid := gokvm.CPUID{Nent: 256, Entries: make([]gokvm.CPUIDEntry2, 256)}
	check(t, gokvm.GetCPUID2(fd, &cpuid))
	compareCPUID(t, leaves, cpuid)
}

func TestDifferentialCaps(t *testing.T) {
	s, g := wellUsed(t)
	fd := uintptr(g.VCPU.FD())
	kvmtest.NeedCap(t, s, kvm.CapXCRs, kvm.CapSregs2)

	xcrs, err := g.VCPU.XCRs()
	check(t, err)
	theirXCRs := heap[gokvm.XCRS]()
	check(t, gokvm.GetXCRS(fd, theirXCRs))
	compare(t, xcrs, theirXCRs)

	sregs2, err := g.VCPU.Sregs2()
	check(t, err)
	theirSregs2 := heap[gokvm.SRegs2]()
	check(t, gokvm.GetSRegs2(fd, theirSregs2))
	compare(t, sregs2, theirSregs2)
}

func TestDifferentialMSRs(t *testing.T) {
	s, g := wellUsed(t)
	msrs := allMSRs(t, s, g.VCPU)
	msrs = slices.DeleteFunc(msrs, ticks)
	theirs := gokvm.MSRS{NMSRs: uint32(len(msrs))}
	for _, e := range msrs {
		theirs.Entries = append(theirs.Entries, gokvm.MSREntry{Index: e.Index})
	}
	check(t, gokvm.GetMSRs(uintptr(g.VCPU.FD()), &theirs))
	for i, e := range theirs.Entries {
		compare(t, msrs[i], e)
	}
	if len(msrs) < 20 {
		t.Errorf("only %d MSRs were compared", len(msrs))
	}
}

func TestDifferentialVM(t *testing.T) {
	_, g := wellUsed(t)
	fd := uintptr(g.VM.FD())

	pit, err := g.VM.PIT2()
	check(t, err)
	theirPIT := heap[gokvm.PITState2]()
	check(t, gokvm.GetPIT2(fd, theirPIT))
	compare(t, pit, theirPIT)

	for id := range uint32(3) {
		chip, err := g.VM.IRQChip(id)
		check(t, err)
		theirChip := heap[gokvm.IRQChip]()
		theirChip.ChipID = id
		check(t, gokvm.GetIRQChip(fd, theirChip))
		compare(t, chip, theirChip)
	}

	before, err := g.VM.Clock()
	check(t, err)
	theirClock := heap[gokvm.ClockData]()
	check(t, gokvm.GetClock(fd, theirClock))
	after, err := g.VM.Clock()
	check(t, err)
	between := ours[kvm.ClockData](t, theirClock)
	if before.Flags != between.Flags || between.Clock < before.Clock || between.Clock > after.Clock ||
		between.Realtime < before.Realtime || between.Realtime > after.Realtime ||
		between.HostTSC < before.HostTSC || between.HostTSC > after.HostTSC {
		t.Errorf("clock: theirs %+v is not between %+v and %+v of ours", between, before, after)
	}
}
