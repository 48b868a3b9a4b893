package bare

import (
	"fmt"
	"slices"

	"github.com/forkvm/forkvm/kvm"
)

// state is all that KVM knows of a machine of one vCPU, less its memory. It is
// what vmm saves.
type state struct {
	mp     kvm.MPState
	regs   kvm.Regs
	sregs  kvm.Sregs
	xsave  []byte
	xcrs   kvm.XCRs
	debug  kvm.DebugRegs
	lapic  kvm.LAPICState
	khz    uint32
	msrs   []kvm.MSREntry
	tsc    uint64
	offset uint64
	events kvm.VCPUEvents

	clock kvm.ClockData
	pit   kvm.PITState2
	chips [3]kvm.IRQChip
}

const msrTSC = 0x10

// step is one call and its name.
type step struct {
	name string
	do   func() error
}

func runSteps(steps ...step) error {
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("bare: %s: %w", s.name, err)
		}
	}
	return nil
}

// save reads the state: the clocks first, which must not go on, MP_STATE
// before the LAPIC, which it may change, VCPU_EVENTS last.
func (h *Host) save(m *machine) (*state, error) {
	st := &state{msrs: slices.Clone(h.msrs)}
	v, c := m.vm, m.vcpu
	tsc := []kvm.MSREntry{{Index: msrTSC}}
	err := runSteps(
		step{"KVM_GET_CLOCK", func() (err error) { st.clock, err = v.Clock(); return }},
		step{"TSC", func() error { _, err := c.MSRs(tsc); return err }},
		step{"TSC_OFFSET", func() (err error) { st.offset, err = c.TSCOffset(); return }},
		step{"KVM_GET_MP_STATE", func() (err error) { st.mp, err = c.MPState(); return }},
		step{"KVM_GET_REGS", func() (err error) { st.regs, err = c.Regs(); return }},
		step{"KVM_GET_SREGS", func() (err error) { st.sregs, err = c.Sregs(); return }},
		step{"KVM_GET_XSAVE2", func() (err error) { st.xsave, err = c.XSAVE2(h.xsaveSize); return }},
		step{"KVM_GET_XCRS", func() (err error) { st.xcrs, err = c.XCRs(); return }},
		step{"KVM_GET_DEBUGREGS", func() (err error) { st.debug, err = c.DebugRegs(); return }},
		step{"KVM_GET_LAPIC", func() (err error) { st.lapic, err = c.LAPIC(); return }},
		step{"KVM_GET_TSC_KHZ", func() (err error) { st.khz, err = c.TSCKHz(); return }},
		step{"KVM_GET_MSRS", func() error { _, err := c.MSRs(st.msrs); return err }},
		step{"KVM_GET_VCPU_EVENTS", func() (err error) { st.events, err = c.VCPUEvents(); return }},
		step{"KVM_GET_PIT2", func() (err error) { st.pit, err = v.PIT2(); return }},
		step{"KVM_GET_IRQCHIP", func() (err error) {
			for id := range st.chips {
				if st.chips[id], err = v.IRQChip(uint32(id)); err != nil {
					return err
				}
			}
			return nil
		}},
	)
	st.tsc = tsc[0].Data
	// Else KVM_SET_CLOCK would add the time that has passed since.
	st.clock = kvm.ClockData{Clock: st.clock.Clock}
	return st, err
}

// restore writes the state to a machine that has not run, in the order that
// vmm explains: clock and counter first, the IOAPIC after the LAPIC.
func (h *Host) restore(m *machine, st *state) error {
	v, c := m.vm, m.vcpu
	return runSteps(
		step{"KVM_GET_TSC_KHZ", func() error { return h.sameFrequency(c, st) }},
		step{"KVM_SET_CLOCK", func() error { return v.SetClock(&st.clock) }},
		step{"KVM_SET_MP_STATE", func() error { return c.SetMPState(st.mp) }},
		step{"KVM_SET_REGS", func() error { return c.SetRegs(&st.regs) }},
		step{"KVM_SET_SREGS", func() error { return c.SetSregs(&st.sregs) }},
		step{"KVM_SET_XSAVE", func() error { return c.SetXSAVE2(st.xsave) }},
		step{"KVM_SET_XCRS", func() error { return c.SetXCRs(&st.xcrs) }},
		step{"KVM_SET_DEBUGREGS", func() error { return c.SetDebugRegs(&st.debug) }},
		step{"KVM_SET_LAPIC", func() error { return c.SetLAPIC(&st.lapic) }},
		step{"TSC", func() error { return restoreTSC(c, st) }},
		step{"KVM_SET_MSRS", func() error { _, err := c.SetMSRs(st.msrs); return err }},
		step{"KVM_SET_VCPU_EVENTS", func() error { return c.SetVCPUEvents(&st.events) }},
		step{"KVM_SET_PIT2", func() error { return v.SetPIT2(&st.pit) }},
		step{"KVM_SET_IRQCHIP", func() error {
			for _, chip := range st.chips {
				if err := v.SetIRQChip(chip); err != nil {
					return err
				}
			}
			return nil
		}},
		step{"KVM_KVMCLOCK_CTRL", func() error { _ = c.KVMClockCtrl(); return nil }}, // EINVAL: the guest has no kvm-clock
	)
}

func (h *Host) sameFrequency(c *kvm.VCPU, st *state) error {
	khz, err := c.TSCKHz()
	if err == nil && khz != st.khz {
		err = fmt.Errorf("the frequency is %d kHz, was %d kHz", khz, st.khz)
	}
	return err
}

// restoreTSC has the counter go on from where it stopped: what the host's
// counter shows now is read through the offset in force.
func restoreTSC(c *kvm.VCPU, st *state) error {
	tsc := []kvm.MSREntry{{Index: msrTSC}}
	if _, err := c.MSRs(tsc); err != nil {
		return err
	}
	offset, err := c.TSCOffset()
	if err != nil {
		return err
	}
	return c.SetTSCOffset(st.tsc - (tsc[0].Data - offset))
}
