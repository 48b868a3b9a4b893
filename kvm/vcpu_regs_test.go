package kvm_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
)

// Model-specific registers.
const (
	msrTSC         = 0x10
	msrSysenterEIP = 0x176
	msrPAT         = 0x277
	msrTSCDeadline = 0x6e0
	msrSTAR        = 0xc0000081
	msrLSTAR       = 0xc0000082
	msrKVMClock    = 0x4b564d01 // MSR_KVM_SYSTEM_TIME_NEW

	// Those of Hyper-V that count by themselves.
	msrHyperVRuntime = 0x40000010
	msrHyperVTime    = 0x40000020
)

// ticks tells the MSRs that change by themselves.
func ticks(e kvm.MSREntry) bool {
	return e.Index == msrTSC || e.Index == msrHyperVRuntime || e.Index == msrHyperVTime
}

// newVCPU is a guest with interrupt controllers and the CPUID leaves that this
// machine supports.
func newVCPU(t *testing.T) (*kvm.System, *kvmtest.Guest) {
	t.Helper()
	s := kvmtest.OpenOrSkip(t)
	g := kvmtest.New(t, s, kvmtest.Config{IRQChip: true})
	leaves, err := s.SupportedCPUID()
	check(t, err)
	check(t, g.VCPU.SetCPUID2(leaves))
	return s, g
}

func TestRegs(t *testing.T) {
	_, g := newVCPU(t)
	want := kvm.Regs{
		RAX: 1, RBX: 2, RCX: 3, RDX: 4, RSI: 5, RDI: 6, RSP: 7, RBP: 8,
		R8: 9, R9: 10, R10: 11, R11: 12, R12: 13, R13: 14, R14: 15, R15: 1 << 63,
		RIP: 0x1234, RFLAGS: 2,
	}
	check(t, g.VCPU.SetRegs(&want))
	if got := regs(t, g.VCPU); got != want {
		t.Error(cmp.Diff(want, got))
	}
}

func TestSregs(t *testing.T) {
	_, g := newVCPU(t)
	want := sregs(t, g.VCPU)
	want.DS = kvm.Segment{Base: 0x5000, Limit: 0xffff, Selector: 0x500, Type: 3, Present: 1, S: 1}
	want.GDT = kvm.DTable{Base: 0x1000, Limit: 0x2f}
	want.IDT = kvm.DTable{Base: 0x2000, Limit: 0xfff}
	want.CR2 = 0xabcdef000
	want.CR8 = 3
	check(t, g.VCPU.SetSregs(&want))
	if got := sregs(t, g.VCPU); got != want {
		t.Error(cmp.Diff(want, got))
	}
	bad := want
	bad.CR4 = 1 << 63
	if err := g.VCPU.SetSregs(&bad); !errors.Is(err, unix.EINVAL) {
		t.Errorf("SetSregs with a reserved bit in CR4: %v", err)
	}
}

func TestSregs2(t *testing.T) {
	s, g := newVCPU(t)
	kvmtest.NeedCap(t, s, kvm.CapSregs2)
	want, err := g.VCPU.Sregs2()
	check(t, err)
	want.CR2 = 0x123456000
	want.FS.Base = 0x7000
	check(t, g.VCPU.SetSregs2(&want))
	got, err := g.VCPU.Sregs2()
	check(t, err)
	if got != want {
		t.Error(cmp.Diff(want, got))
	}
	if old := sregs(t, g.VCPU); old.CR2 != want.CR2 || old.FS != want.FS || old.CS != want.CS || old.EFER != want.EFER {
		t.Errorf("Sregs %+v differ from Sregs2 %+v", old, want)
	}
}

func TestFPU(t *testing.T) {
	_, g := newVCPU(t)
	want, err := g.VCPU.FPU()
	check(t, err)
	want.FCW = 0x37e
	want.XMM[15] = [16]byte{1, 2, 3, 15: 16}
	want.FPR[0] = [16]byte{9: 0x40}
	check(t, g.VCPU.SetFPU(&want))
	got, err := g.VCPU.FPU()
	check(t, err)
	if got != want {
		t.Error(cmp.Diff(want, got))
	}
}

// Where the legacy part of an XSAVE area has MXCSR and XMM0, and where its
// header begins with the components that are not in their initial state.
const (
	xsaveMXCSR = 24
	xsaveXMM0  = 160
	xsaveInUse = 512
)

func TestXSAVE(t *testing.T) {
	s, g := newVCPU(t)
	if n, err := s.CheckExtension(kvm.CapXSAVE2); err != nil || n > 4096 {
		kvmtest.Skip(t, "the XSAVE state of this machine is larger than KVM_GET_XSAVE has room for")
	}
	x, err := g.VCPU.XSAVE()
	check(t, err)
	copy(x.Region[xsaveXMM0:], "sixteen byte xmm")
	binary.LittleEndian.PutUint32(x.Region[xsaveMXCSR:], 0x1fa0)
	x.Region[xsaveInUse] |= 3
	check(t, g.VCPU.SetXSAVE(&x))
	got, err := g.VCPU.XSAVE()
	check(t, err)
	if got != x {
		t.Error("read back something else than was set")
	}
	f, err := g.VCPU.FPU()
	if err != nil || string(f.XMM[0][:]) != "sixteen byte xmm" {
		t.Errorf("XMM0 = %q, %v", f.XMM[0], err)
	}
}

func TestXSAVE2(t *testing.T) {
	_, g := newVCPU(t)
	kvmtest.NeedCap(t, g.VM, kvm.CapXSAVE2)
	size, err := g.VM.CheckExtension(kvm.CapXSAVE2)
	check(t, err)
	area, err := g.VCPU.XSAVE2(size)
	if err != nil || len(area) != size {
		t.Fatalf("XSAVE2(%d) = %d bytes, %v", size, len(area), err)
	}
	copy(area[xsaveXMM0+16:], "and another sixt")
	area[xsaveInUse] |= 3
	check(t, g.VCPU.SetXSAVE2(area))
	got, err := g.VCPU.XSAVE2(size)
	check(t, err)
	if !bytes.Equal(got, area) {
		t.Error("read back something else than was set")
	}
	if f, err := g.VCPU.FPU(); err != nil || string(f.XMM[1][:]) != "and another sixt" {
		t.Errorf("XMM1 = %q, %v", f.XMM[1], err)
	}

	// The kernel writes and reads size bytes whatever the buffer is.
	if _, err := g.VCPU.XSAVE2(size - 1); !errors.Is(err, unix.EINVAL) {
		t.Errorf("XSAVE2 into too small a buffer: %v", err)
	}
	if err := g.VCPU.SetXSAVE2(area[:size-1]); !errors.Is(err, unix.EINVAL) {
		t.Errorf("SetXSAVE2 of too small an area: %v", err)
	}
	if err := g.VCPU.SetXSAVE2(nil); !errors.Is(err, unix.EINVAL) {
		t.Errorf("SetXSAVE2 of nothing: %v", err)
	}
}

func TestXCRs(t *testing.T) {
	s, g := newVCPU(t)
	kvmtest.NeedCap(t, s, kvm.CapXCRs)
	want := kvm.XCRs{NrXCRs: 1}
	want.XCRs[0].Value = 3 // x87 and SSE
	check(t, g.VCPU.SetXCRs(&want))
	got, err := g.VCPU.XCRs()
	check(t, err)
	if got != want {
		t.Error(cmp.Diff(want, got))
	}
	want.XCRs[0].Value = 2 // SSE without x87
	if err := g.VCPU.SetXCRs(&want); !errors.Is(err, unix.EINVAL) {
		t.Errorf("SetXCRs of an impossible value: %v", err)
	}
}

func TestDebugRegs(t *testing.T) {
	_, g := newVCPU(t)
	want, err := g.VCPU.DebugRegs()
	check(t, err)
	want.DB = [4]uint64{0x1000, 0x2000, 0x3000, 0x4000}
	want.DR7 |= 1
	check(t, g.VCPU.SetDebugRegs(&want))
	got, err := g.VCPU.DebugRegs()
	check(t, err)
	if got != want {
		t.Error(cmp.Diff(want, got))
	}
	want.Flags = 1
	if err := g.VCPU.SetDebugRegs(&want); !errors.Is(err, unix.EINVAL) {
		t.Errorf("SetDebugRegs with a flag: %v", err)
	}
}

func TestLAPIC(t *testing.T) {
	_, g := newVCPU(t)
	want, err := g.VCPU.LAPIC()
	check(t, err)
	const spurious, lvtTimer, divide = 0xf0, 0x320, 0x3e0
	want.SetRegister(spurious, 0x1ff)
	want.SetRegister(lvtTimer, 1<<16|0xec)
	want.SetRegister(divide, 3)
	check(t, g.VCPU.SetLAPIC(&want))
	got, err := g.VCPU.LAPIC()
	check(t, err)
	if got != want {
		t.Error(cmp.Diff(want, got))
	}
	if v := got.Register(lvtTimer); v != 1<<16|0xec {
		t.Errorf("LVT timer = %#x", v)
	}
}

func TestLAPICWithoutIRQChip(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{})
	if _, err := g.VCPU.LAPIC(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("LAPIC without one: %v", err)
	}
}

func TestMSRs(t *testing.T) {
	_, g := newVCPU(t)
	set := []kvm.MSREntry{
		{Index: msrSysenterEIP, Data: 0x81000000}, // an AMD CPU has 32 bits of it
		{Index: msrSTAR, Data: 0x0023001000000000},
		{Index: msrLSTAR, Data: 0xffffffff82000000},
	}
	if n, err := g.VCPU.SetMSRs(set); n != len(set) || err != nil {
		t.Fatalf("SetMSRs() = %d, %v", n, err)
	}
	got := []kvm.MSREntry{{Index: msrSysenterEIP}, {Index: msrSTAR}, {Index: msrLSTAR}}
	if n, err := g.VCPU.MSRs(got); n != len(got) || err != nil {
		t.Fatalf("MSRs() = %d, %v", n, err)
	}
	if !slices.Equal(got, set) {
		t.Error(cmp.Diff(set, got))
	}
	if n, err := g.VCPU.MSRs(nil); n != 0 || err != nil {
		t.Errorf("MSRs of none = %d, %v", n, err)
	}
}

func TestMSRsShort(t *testing.T) {
	_, g := newVCPU(t)
	const unknown = 0xdead
	entries := []kvm.MSREntry{{Index: msrSTAR}, {Index: unknown}, {Index: msrLSTAR, Data: 7}}
	n, err := g.VCPU.MSRs(entries)
	if n != 1 || !errors.Is(err, kvm.ErrMSRRefused) {
		t.Errorf("MSRs with an unknown one = %d, %v", n, err)
	}
	if entries[2].Data != 7 {
		t.Errorf("an entry behind the refused one was changed: %+v", entries[2])
	}
	entries[0].Data = 0x1122334455667788
	n, err = g.VCPU.SetMSRs(entries)
	if n != 1 || !errors.Is(err, kvm.ErrMSRRefused) {
		t.Errorf("SetMSRs with an unknown one = %d, %v", n, err)
	}
	entries = entries[:1]
	entries[0].Data = 0
	if _, err := g.VCPU.MSRs(entries); err != nil || entries[0].Data != 0x1122334455667788 {
		t.Errorf("the entry before the refused one was not set: %+v, %v", entries[0], err)
	}
	if n, err := g.VCPU.MSRs(make([]kvm.MSREntry, 256)); n != 0 || !errors.Is(err, unix.E2BIG) {
		t.Errorf("MSRs of too many = %d, %v", n, err)
	}
}

func TestCPUID2(t *testing.T) {
	_, g := newVCPU(t)
	want, err := g.VCPU.CPUID2()
	check(t, err)
	i := slices.IndexFunc(want, func(e kvm.CPUIDEntry2) bool { return e.Function == 0x80000002 })
	if i < 0 {
		t.Fatalf("no brand string in %d leaves", len(want))
	}
	want[i].EAX = 0x6b726f66 // "fork"
	check(t, g.VCPU.SetCPUID2(want))
	got, err := g.VCPU.CPUID2()
	check(t, err)
	if !slices.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	if err := g.VCPU.SetCPUID2(make([]kvm.CPUIDEntry2, 1000)); !errors.Is(err, unix.E2BIG) {
		t.Errorf("SetCPUID2 of too many: %v", err)
	}
}

func TestMPState(t *testing.T) {
	_, g := newVCPU(t)
	if m, err := g.VCPU.MPState(); err != nil || m.State != kvm.MPRunnable {
		t.Errorf("the first vCPU is in state %+v, %v", m, err)
	}
	ap, err := g.VM.CreateVCPU(1)
	check(t, err)
	defer ap.Close()
	if m, err := ap.MPState(); err != nil || m.State != kvm.MPUninitialized {
		t.Errorf("the second vCPU is in state %+v, %v", m, err)
	}
	check(t, ap.SetMPState(kvm.MPState{State: kvm.MPHalted}))
	if m, err := ap.MPState(); err != nil || m.State != kvm.MPHalted {
		t.Errorf("state %+v, %v, want halted", m, err)
	}
	if err := ap.SetMPState(kvm.MPState{State: 77}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("SetMPState(77): %v", err)
	}
}

func TestVCPUEvents(t *testing.T) {
	_, g := newVCPU(t)
	want, err := g.VCPU.VCPUEvents()
	check(t, err)
	want.Interrupt.Injected, want.Interrupt.Nr = 1, 0x31
	want.NMI.Pending = 1
	want.Flags |= kvm.VCPUEventValidNMIPending
	check(t, g.VCPU.SetVCPUEvents(&want))
	got, err := g.VCPU.VCPUEvents()
	check(t, err)
	if got != want {
		t.Error(cmp.Diff(want, got))
	}
	// SetRegs forgets an exception that is not delivered yet, which is why
	// events are restored after it.
	want.Interrupt.Injected = 0
	want.Exception.Injected, want.Exception.Nr = 1, 6
	check(t, g.VCPU.SetVCPUEvents(&want))
	r := regs(t, g.VCPU)
	check(t, g.VCPU.SetRegs(&r))
	got, err = g.VCPU.VCPUEvents()
	if err != nil || got.Exception.Pending != 0 {
		t.Errorf("exception %+v after SetRegs, %v", got.Exception, err)
	}
	want.Flags = 1 << 30
	if err := g.VCPU.SetVCPUEvents(&want); !errors.Is(err, unix.EINVAL) {
		t.Errorf("SetVCPUEvents with an unknown flag: %v", err)
	}
}

func TestTSCKHz(t *testing.T) {
	_, g := newVCPU(t)
	khz, err := g.VCPU.TSCKHz()
	if err != nil || khz == 0 {
		t.Fatalf("TSCKHz() = %d, %v", khz, err)
	}
	check(t, g.VCPU.SetTSCKHz(khz))
	if got, err := g.VCPU.TSCKHz(); got != khz || err != nil {
		t.Errorf("TSCKHz() = %d, %v, want %d", got, err, khz)
	}
}

func TestTSCOffset(t *testing.T) {
	s, g := newVCPU(t)
	kvmtest.NeedCap(t, s, kvm.CapVCPUAttributes)
	if err := g.VCPU.HasDeviceAttr(kvm.VCPUTSCCtrl, kvm.VCPUTSCOffset); err != nil {
		t.Fatal(err)
	}
	before, err := g.VCPU.TSCOffset()
	check(t, err)
	if before == 0 { // a guest's TSC begins at 0, so the host's is subtracted
		kvmtest.Skip(t, "this KVM does not offset the TSC")
	}
	tsc := func() uint64 {
		e := []kvm.MSREntry{{Index: msrTSC}}
		_, err := g.VCPU.MSRs(e)
		check(t, err)
		return e[0].Data
	}
	now := tsc()
	const ahead = 1 << 50
	check(t, g.VCPU.SetTSCOffset(before+ahead))
	if got, err := g.VCPU.TSCOffset(); got != before+ahead || err != nil {
		t.Errorf("TSCOffset() = %#x, %v, want %#x", got, err, before+ahead)
	}
	if d := tsc() - now; d < ahead || d > ahead+1<<40 {
		t.Errorf("the guest's TSC moved by %#x, want %#x and a little", d, ahead)
	}
	if err := g.VCPU.HasDeviceAttr(99, 0); !errors.Is(err, unix.ENXIO) {
		t.Errorf("HasDeviceAttr of an unknown group: %v", err)
	}
}

func TestPreFaultMemory(t *testing.T) {
	sys, g := newVCPU(t)
	has, err := sys.CheckExtension(kvm.CapPreFaultMemory)
	check(t, err)
	n, err := g.VCPU.PreFaultMemory(0, 4096)
	switch {
	case has == 0:
		if err == nil {
			t.Error("memory was mapped by a KVM that does not offer it")
		}
	case err != nil && !errors.Is(err, unix.EOPNOTSUPP) || err == nil && n != 4096:
		t.Errorf("PreFaultMemory() = %d, %v", n, err)
	}
}

func TestKVMClockCtrl(t *testing.T) {
	_, g := newVCPU(t)
	if err := g.VCPU.KVMClockCtrl(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("KVMClockCtrl of a guest without kvm-clock: %v", err)
	}
	const clock, stopped = 0x4000, 1 << 1 // PVCLOCK_GUEST_STOPPED
	_, err := g.VCPU.SetMSRs([]kvm.MSREntry{{Index: msrKVMClock, Data: clock | 1}})
	check(t, err)
	g.RealMode(t, []byte{0xe6, 0x80, 0xe6, 0x80}) // out 0x80, al; twice
	g.Run(t, kvm.ExitIO)
	if flags := g.Memory[clock+29]; flags&stopped != 0 {
		t.Errorf("flags of the guest's clock are %#x already", flags)
	}
	check(t, g.VCPU.KVMClockCtrl())
	g.Run(t, kvm.ExitIO)
	if flags := g.Memory[clock+29]; flags&stopped == 0 {
		t.Errorf("flags of the guest's clock are %#x, want %#x set", flags, stopped)
	}
}
