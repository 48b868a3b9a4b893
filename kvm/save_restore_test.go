package kvm_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
)

// machineState is everything that the kernel keeps of a VM with one vCPU.
type machineState struct {
	MPState  kvm.MPState
	Regs     kvm.Regs
	Sregs    kvm.Sregs
	XSAVE    []byte
	XCRs     kvm.XCRs
	Debug    kvm.DebugRegs
	LAPIC    kvm.LAPICState
	CPUID    []kvm.CPUIDEntry2
	MSRs     []kvm.MSREntry
	Events   kvm.VCPUEvents
	PIT      kvm.PITState2
	Clock    kvm.ClockData
	IRQChips [3]kvm.IRQChip
}

// save reads a machine's state: MP state first, since asking for it may change
// the rest, events last.
func save(t *testing.T, s *kvm.System, g *kvmtest.Guest) (m machineState) {
	t.Helper()
	var err error
	c := g.VCPU
	m.MPState, err = c.MPState()
	check(t, err)
	m.Regs, m.Sregs = regs(t, c), sregs(t, c)
	size, err := g.VM.CheckExtension(kvm.CapXSAVE2)
	check(t, err)
	m.XSAVE, err = c.XSAVE2(size)
	check(t, err)
	m.XCRs, err = c.XCRs()
	check(t, err)
	m.Debug, err = c.DebugRegs()
	check(t, err)
	m.LAPIC, err = c.LAPIC()
	check(t, err)
	m.CPUID, err = c.CPUID2()
	check(t, err)
	m.MSRs = allMSRs(t, s, c)
	m.Events, err = c.VCPUEvents()
	check(t, err)
	m.PIT, err = g.VM.PIT2()
	check(t, err)
	m.Clock, err = g.VM.Clock()
	check(t, err)
	for i := range m.IRQChips {
		m.IRQChips[i], err = g.VM.IRQChip(uint32(i))
		check(t, err)
	}
	return m
}

// allMSRs reads the MSRs that belong to a guest's state, without those that
// this vCPU's CPUID takes away.
func allMSRs(t *testing.T, s *kvm.System, c *kvm.VCPU) (all []kvm.MSREntry) {
	t.Helper()
	list, err := s.MSRIndexList()
	check(t, err)
	for chunk := range slices.Chunk(list, 128) {
		var entries []kvm.MSREntry
		for _, index := range chunk {
			entries = append(entries, kvm.MSREntry{Index: index})
		}
		for {
			n, err := c.MSRs(entries)
			if err == nil {
				break
			}
			if !errors.Is(err, kvm.ErrMSRRefused) {
				t.Fatal(err)
			}
			entries = slices.Delete(entries, n, n+1)
		}
		all = append(all, entries...)
	}
	return all
}

// restore writes a state into a fresh machine. CPUID comes first because the
// rest is checked against it, Sregs before the LAPIC whose base it has, the
// LAPIC before the MSRs whose deadline needs its timer mode, events last
// because SetRegs drops exceptions.
func restore(t *testing.T, g *kvmtest.Guest, m *machineState) {
	t.Helper()
	c := g.VCPU
	check(t, c.SetCPUID2(m.CPUID))
	check(t, c.SetMPState(m.MPState))
	check(t, c.SetRegs(&m.Regs))
	check(t, c.SetSregs(&m.Sregs))
	check(t, c.SetXSAVE2(m.XSAVE))
	check(t, c.SetXCRs(&m.XCRs))
	check(t, c.SetDebugRegs(&m.Debug))
	check(t, c.SetLAPIC(&m.LAPIC))
	setMSRs(t, c, m.MSRs)
	check(t, c.SetVCPUEvents(&m.Events))
	check(t, g.VM.SetPIT2(&m.PIT))
	check(t, g.VM.SetClock(&kvm.ClockData{Clock: m.Clock.Clock}))
	for _, chip := range m.IRQChips {
		check(t, g.VM.SetIRQChip(chip))
	}
}

// setMSRs sets MSRs, the deadline last because it is compared with the TSC when
// it is set. An MSR that can be read but not written back is passed over if it
// has the value already.
func setMSRs(t *testing.T, c *kvm.VCPU, all []kvm.MSREntry) {
	t.Helper()
	msrs := slices.Clone(all)
	slices.SortStableFunc(msrs, func(a, b kvm.MSREntry) int {
		last := func(e kvm.MSREntry) int {
			if e.Index == msrTSCDeadline {
				return 1
			}
			return 0
		}
		return last(a) - last(b)
	})
	for len(msrs) > 0 {
		n, err := c.SetMSRs(msrs[:min(len(msrs), 128)])
		msrs = msrs[n:]
		if err == nil {
			continue
		}
		now := []kvm.MSREntry{{Index: msrs[0].Index}}
		if _, err := c.MSRs(now); err != nil || now[0] != msrs[0] {
			t.Fatalf("MSR %#x is %#x and cannot become %#x: %v", now[0].Index, now[0].Data, msrs[0].Data, err)
		}
		msrs = msrs[1:]
	}
}

// still takes out of a state what goes on by itself.
func still(m machineState) machineState {
	m.Clock = kvm.ClockData{}
	for i := range m.PIT.Channels {
		m.PIT.Channels[i].CountLoadTime = 0
	}
	m.MSRs = slices.DeleteFunc(slices.Clone(m.MSRs), ticks)
	return m
}

// countToFive is a guest that reports at port 0x81 and in memory how far it
// has counted in a register, then enables interrupts and halts.
var countToFive = []byte{
	0x43,                   // inc bx
	0x89, 0x1e, 0x00, 0x20, // mov [0x2000], bx
	0x89, 0xd8, // mov ax, bx
	0xe7, 0x81, // out 0x81, ax
	0x83, 0xfb, 0x05, // cmp bx, 5
	0x75, 0xf2, // jne to the inc
	0xfb,       // sti
	0xf4,       // hlt
	0xeb, 0xfd, // jmp to the hlt
}

func expectCount(t *testing.T, g *kvmtest.Guest, want byte) {
	t.Helper()
	g.Run(t, kvm.ExitIO)
	if e := g.VCPU.IO(); !e.Out || e.Port != 0x81 || len(e.Data) != 2 || e.Data[0] != want {
		t.Fatalf("IO() = %+v, want a count of %d", e, want)
	}
	if g.Memory[0x2000] != want {
		t.Fatalf("memory has %d, want %d", g.Memory[0x2000], want)
	}
}

// decoded passes a state through JSON, as one that is stored would be.
func decoded(t *testing.T, m machineState) (d machineState) {
	t.Helper()
	b, err := json.Marshal(m)
	check(t, err)
	check(t, json.Unmarshal(b, &d))
	if diff := cmp.Diff(m, d); diff != "" {
		t.Errorf("JSON changed the state (- before, + after):\n%s", diff)
	}
	return d
}

var xmm7 = [16]byte{7, 7, 7}

func setXMM7(t *testing.T, g *kvmtest.Guest) {
	t.Helper()
	size, err := g.VM.CheckExtension(kvm.CapXSAVE2)
	check(t, err)
	area, err := g.VCPU.XSAVE2(size)
	check(t, err)
	copy(area[xsaveXMM0+16*7:], xmm7[:])
	area[xsaveInUse] |= 2 // SSE
	check(t, g.VCPU.SetXSAVE2(area))
}

// TestSaveRestore moves a guest into a second VM in the middle of its work,
// with an interrupt pending, and lets both go on.
func TestSaveRestore(t *testing.T) {
	source := interruptible(t, 0x24)
	s := kvmtest.OpenOrSkip(t)
	kvmtest.NeedCap(t, s, kvm.CapXSAVE2, kvm.CapXCRs)
	leaves, err := s.SupportedCPUID()
	check(t, err)
	check(t, source.VCPU.SetCPUID2(leaves))
	source.RealMode(t, countToFive)
	setXMM7(t, source)
	if _, err := source.VCPU.SetMSRs([]kvm.MSREntry{{Index: msrLSTAR, Data: 0x123456}}); err != nil {
		t.Fatal(err)
	}
	for i := byte(1); i <= 3; i++ {
		expectCount(t, source, i)
	}
	check(t, source.VM.IRQLine(4, 1))

	// The port write is only complete, and RIP behind it, after another Run.
	source.VCPU.SetImmediateExit(true)
	if err := source.VCPU.Run(); err != unix.EINTR {
		t.Fatal(err)
	}
	source.VCPU.SetImmediateExit(false)

	saved := decoded(t, save(t, s, source))
	child := kvmtest.New(t, s, kvmtest.Config{IRQChip: true})
	copy(child.Memory, source.Memory)
	restore(t, child, &saved)
	if d := cmp.Diff(still(saved), still(save(t, s, child))); d != "" {
		t.Errorf("restored state differs (- saved, + restored):\n%s", d)
	}
	if d := cmp.Diff(still(saved), still(save(t, s, source))); d != "" {
		t.Errorf("saving changed the source (- before, + after):\n%s", d)
	}

	for _, g := range []*kvmtest.Guest{child, source} {
		expectCount(t, g, 4)
		expectCount(t, g, 5)
		expectVector(t, g, 0x24)
		if f, err := g.VCPU.FPU(); err != nil || f.XMM[7] != xmm7 {
			t.Errorf("XMM7 = %v, %v", f.XMM[7], err)
		}
	}
}
