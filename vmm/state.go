package vmm

import (
	"bytes"
	"fmt"

	"github.com/forkvm/forkvm/kvm"
)

// vcpuState is all of a vCPU that a guest could notice.
type vcpuState struct {
	MPState   kvm.MPState
	Regs      kvm.Regs
	Sregs     kvm.Sregs
	XSAVE     []byte // of the size that KVM_CAP_XSAVE2 names
	XCRs      kvm.XCRs
	DebugRegs kvm.DebugRegs
	LAPIC     kvm.LAPICState
	TSCKHz    uint32
	MSRs      []kvm.MSREntry // less the time-stamp counter and its deadline
	TSC       uint64         // when the machine stopped, at the instant of its clock
	Deadline  uint64         // MSR IA32_TSC_DEADLINE
	Events    kvm.VCPUEvents
}

// chipState is the state of the chips that the vCPUs share.
type chipState struct {
	Clock  kvm.ClockData
	PIT    kvm.PITState2
	Master kvm.IRQChip
	Slave  kvm.IRQChip
	IOAPIC kvm.IRQChip
}

// kvmState is everything that KVM knows of a machine, less its memory.
type kvmState struct {
	CPUID []kvm.CPUIDEntry2 // less what differs by vCPU
	VCPUs []vcpuState
	Chips chipState
}

// saveKVM reads the state of a shell whose vCPUs are parked and whose devices
// are quiet. It runs on the thread of lead, the first vCPU.
//
// The clocks come first, at once after the vCPUs stopped: time that the rest
// of a capture takes must not pass for the guest. Then each vCPU, on its own
// thread, then the chips: reading MP_STATE can change the LAPIC, and a device
// that went quiet may have raised a last interrupt.
func (s *shell) saveKVM(lead *vcpu, msrs *msrList) (*kvmState, error) {
	st := &kvmState{CPUID: s.cpuid, VCPUs: make([]vcpuState, len(s.vcpus))}
	now, err := s.readClocks(lead)
	if err != nil {
		return nil, err
	}
	// What KVM_GET_CLOCK says beside the time (host TSC, real time) would
	// make KVM_SET_CLOCK add the time that has passed since.
	st.Chips.Clock = kvm.ClockData{Clock: now.clock}
	for i := range st.VCPUs {
		st.VCPUs[i].TSC = now.tsc // one counter for all
	}
	if err := s.onAll(lead, func(c *vcpu) error { return saveVCPU(c, &st.VCPUs[c.id], s.xsaveSize, msrs) }); err != nil {
		return nil, err
	}
	return st, s.saveChips(&st.Chips)
}

func (s *shell) saveChips(st *chipState) (err error) {
	if st.PIT, err = s.vm.PIT2(); err != nil {
		return fmt.Errorf("vmm: KVM_GET_PIT2: %w", err)
	}
	for id, chip := range map[uint32]*kvm.IRQChip{
		kvm.PICMaster: &st.Master, kvm.PICSlave: &st.Slave, kvm.IOAPIC: &st.IOAPIC,
	} {
		if *chip, err = s.vm.IRQChip(id); err != nil {
			return fmt.Errorf("vmm: KVM_GET_IRQCHIP %d: %w", id, err)
		}
	}
	return nil
}

// saveVCPU reads one vCPU. MP_STATE comes first, for its getter may change the
// LAPIC; VCPU_EVENTS last, for the getters before may change what is pending.
func saveVCPU(v *vcpu, st *vcpuState, xsaveSize int, msrs *msrList) error {
	c := v.kvm
	st.TSCKHz = v.tscKHz
	steps := []struct {
		name string
		get  func() error
	}{
		{"MP_STATE", func() (err error) { st.MPState, err = c.MPState(); return }},
		{"REGS", func() (err error) { st.Regs, err = c.Regs(); return }},
		{"SREGS", func() (err error) { st.Sregs, err = c.Sregs(); return }},
		{"XSAVE2", func() (err error) { st.XSAVE, err = c.XSAVE2(xsaveSize); return }},
		{"XCRS", func() (err error) { st.XCRs, err = c.XCRs(); return }},
		{"DEBUGREGS", func() (err error) { st.DebugRegs, err = c.DebugRegs(); return }},
		{"LAPIC", func() (err error) { st.LAPIC, err = c.LAPIC(); return }},
		{"MSRS", func() error { return msrs.read(c, st) }},
		{"VCPU_EVENTS", func() (err error) { st.Events, err = c.VCPUEvents(); return }},
	}
	for _, s := range steps {
		if err := s.get(); err != nil {
			return fmt.Errorf("KVM_GET_%s: %w", s.name, err)
		}
	}
	return nil
}

// restoreKVM writes st to a shell of as many vCPUs, all parked. It runs on the
// thread of lead, the first of them. The order of the steps, and the failure that each rule prevents:
//
//   - CPUID (done when the shell was made) before XSAVE and MSRs: KVM sizes
//     the one and gates the others by it.
//   - SREGS before LAPIC: APIC_BASE in it selects the layout of the LAPIC.
//   - SREGS before XCRS: CR4.OSXSAVE must be on.
//   - REGS before VCPU_EVENTS: setting REGS clears pending exceptions.
//   - TSC_KHZ before the TSC, which it scales.
//   - CLOCK before the TSC, which is set to agree with it: a guest that finds
//     its two clocks apart takes the TSC for broken.
//   - TSC before its deadline: the deadline is compared when it is written.
//   - LAPIC before MSRs: a deadline is dropped while the LAPIC's timer is in
//     another mode.
//   - one TSC offset for all vCPUs, or the guest loses its master clock.
//   - all LAPICs before the IOAPIC, which may deliver to them at once.
//   - the interrupt controllers before the PIT, which counts from the call on:
//     KVM drops a tick at a controller that is masked, and raises no other
//     until the guest acknowledges that one.
//   - CLOCK before any vCPU runs, or the guest gets stale parameters.
func (s *shell) restoreKVM(lead *vcpu, st *kvmState) error {
	if len(st.VCPUs) != len(s.vcpus) {
		return fmt.Errorf("vmm: state of %d vCPUs for a machine of %d", len(st.VCPUs), len(s.vcpus))
	}
	if err := s.onAll(lead, func(c *vcpu) error { return c.matchTSCKHz(st.VCPUs[c.id].TSCKHz) }); err != nil {
		return err
	}
	offset, err := s.restoreClocks(lead, st)
	if err != nil {
		return err
	}
	if err := s.onAll(lead, func(c *vcpu) error { return s.restoreVCPU(c, &st.VCPUs[c.id], offset) }); err != nil {
		return err
	}
	return s.restoreChips(&st.Chips)
}

// matchTSCKHz scales the counter if the state comes from a host of another
// frequency. 250 ppm is what NTP corrects.
func (c *vcpu) matchTSCKHz(want uint32) error {
	have := c.tscKHz
	diff := max(have, want) - min(have, want)
	if uint64(diff)*1e6 <= uint64(want)*250 {
		return nil
	}
	if err := c.kvm.SetTSCKHz(want); err != nil {
		return fmt.Errorf("KVM_SET_TSC_KHZ: %w", err)
	}
	c.tscKHz = want
	return nil
}

// restoreVCPU writes the parts of a vCPU's state that it does not have anyway:
// some are nearly always as in a fresh vCPU, and each takes a call that costs
// some microseconds on a nested KVM.
func (s *shell) restoreVCPU(v *vcpu, st *vcpuState, tscOffset uint64) error {
	if len(st.XSAVE) != s.xsaveSize {
		return fmt.Errorf("XSAVE area of %d bytes, this host has %d", len(st.XSAVE), s.xsaveSize)
	}
	c, fresh, unused := v.kvm, v.fresh, v.fresh != nil
	if !unused {
		fresh = new(vcpuState)
	}
	v.fresh = nil
	for _, step := range []struct {
		name string
		skip bool
		set  func() error
	}{
		{"MP_STATE", unused && fresh.MPState == st.MPState, func() error { return c.SetMPState(st.MPState) }},
		{"REGS", unused && fresh.Regs == st.Regs, func() error { return c.SetRegs(&st.Regs) }},
		{"SREGS", unused && fresh.Sregs == st.Sregs, func() error { return c.SetSregs(&st.Sregs) }},
		{"XSAVE", unused && bytes.Equal(fresh.XSAVE, st.XSAVE), func() error { return c.SetXSAVE2(st.XSAVE) }},
		{"XCRS", unused && fresh.XCRs == st.XCRs, func() error { return c.SetXCRs(&st.XCRs) }},
		{"DEBUGREGS", unused && fresh.DebugRegs == st.DebugRegs, func() error { return c.SetDebugRegs(&st.DebugRegs) }},
		{"LAPIC", unused && fresh.LAPIC == st.LAPIC, func() error { return c.SetLAPIC(&st.LAPIC) }},
		{"TSC_OFFSET", s.tscFixed, func() error { return c.SetTSCOffset(tscOffset) }},
		{"MSRS", false, func() error { return writeMSRs(c, changedMSRs(fresh.MSRs, st.MSRs)) }},
		{"TSC_DEADLINE", st.Deadline == 0, func() error { return writeDeadline(c, st) }},
		{"VCPU_EVENTS", unused && fresh.Events == st.Events, func() error { return c.SetVCPUEvents(&st.Events) }},
	} {
		if step.skip {
			continue
		}
		if err := step.set(); err != nil {
			return fmt.Errorf("KVM_SET_%s: %w", step.name, err)
		}
	}
	return nil
}

func (s *shell) restoreChips(st *chipState) error {
	for _, chip := range []kvm.IRQChip{st.Master, st.Slave, st.IOAPIC} {
		if err := s.vm.SetIRQChip(chip); err != nil {
			return fmt.Errorf("vmm: KVM_SET_IRQCHIP: %w", err)
		}
	}
	if err := s.vm.SetPIT2(&st.PIT); err != nil {
		return fmt.Errorf("vmm: KVM_SET_PIT2: %w", err)
	}
	return nil
}
