package vmm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/forkvm/forkvm/kvm"
)

// Model-specific registers that are treated one by one. Names follow
// arch/x86/include/asm/msr-index.h and kvm_para.h.
const (
	msrTSC         = 0x10
	msrWallClock   = 0x11 // MSR_KVM_WALL_CLOCK
	msrSystemTime  = 0x12 // MSR_KVM_SYSTEM_TIME
	msrTSCDeadline = 0x6e0
	msrWallClock2  = 0x4b564d00 // MSR_KVM_WALL_CLOCK_NEW

	msrHyperVFirst, msrHyperVLast = 0x40000000, 0x400001ff
)

// maxMSRs is how many KVM takes at once.
const maxMSRs = 255

// excludedMSR says why an MSR of KVM's list is not saved with the others, or
// "" if it is.
func excludedMSR(index uint32) string {
	switch {
	case index == msrTSC:
		return "restored as one offset for all vCPUs"
	case index == msrTSCDeadline:
		return "restored last, after the counter it is compared with"
	case index == msrWallClock, index == msrWallClock2:
		return "no state: writing it makes KVM store the time in guest memory"
	case index == msrSystemTime:
		return "an older name of MSR_KVM_SYSTEM_TIME_NEW; writing it turns the master clock off"
	case index >= msrHyperVFirst && index <= msrHyperVLast:
		return "Hyper-V enlightenments are not offered to the guest"
	}
	return ""
}

// unlistedMSRs are state that KVM keeps and does not list: memory type ranges
// (IA32_MTRR_*) and the control registers of machine check banks
// (IA32_MCi_CTL), which Linux writes at boot.
func unlistedMSRs() []uint32 {
	msrs := []uint32{0x250, 0x258, 0x259, 0x2ff}
	for i := range uint32(16) {
		msrs = append(msrs, 0x200+i) // MTRR_PHYSBASEn, MTRR_PHYSMASKn
	}
	for i := range uint32(8) {
		msrs = append(msrs, 0x268+i) // MTRR_FIX4K_*
	}
	for i := range uint32(32) {
		msrs = append(msrs, 0x400+4*i) // MCi_CTL
	}
	return msrs
}

// msrList is what is saved of a vCPU's MSRs: KVM's own list and the unlisted
// ones, less those that are excluded and those that this vCPU does not have.
type msrList struct{ indices []uint32 }

// newMSRList asks a vCPU of the guest's CPUID, which decides what it has.
func newMSRList(s *shell) (*msrList, error) {
	all, err := s.sys.MSRIndexList()
	if err != nil {
		return nil, fmt.Errorf("vmm: KVM_GET_MSR_INDEX_LIST: %w", err)
	}
	all = append(all, unlistedMSRs()...)
	slices.Sort(all)
	var l msrList
	c := s.vcpus[0]
	c.do(func() {
		for _, index := range slices.Compact(all) {
			if excludedMSR(index) != "" {
				continue
			}
			switch _, err = readMSR(c.kvm, index); {
			case err == nil:
				l.indices = append(l.indices, index)
			case !errors.Is(err, kvm.ErrMSRRefused):
				return // it may well have that one
			}
		}
		err = nil
	})
	if err != nil {
		return nil, fmt.Errorf("vmm: look for MSRs: %w", err)
	}
	return &l, nil
}

// read fills in MSRs and Deadline of a state whose LAPIC is known.
func (l *msrList) read(c *kvm.VCPU, st *vcpuState) error {
	entries := make([]kvm.MSREntry, 0, len(l.indices)+1)
	for _, index := range l.indices {
		entries = append(entries, kvm.MSREntry{Index: index})
	}
	deadline, unmasked := deadlineTimer(&st.LAPIC)
	if deadline {
		entries = append(entries, kvm.MSREntry{Index: msrTSCDeadline})
	}
	for chunk := range slices.Chunk(entries, maxMSRs) {
		if _, err := c.MSRs(chunk); err != nil {
			return err
		}
	}
	st.MSRs = entries[:len(l.indices):len(l.indices)]
	if deadline {
		st.Deadline = repairDeadline(entries[len(l.indices)].Data, unmasked, st.TSC)
	}
	return nil
}

// changedMSRs is what differs from a vCPU that has never been used. Both lists
// are in order of the index.
func changedMSRs(fresh, want []kvm.MSREntry) []kvm.MSREntry {
	if len(fresh) == 0 {
		return want
	}
	changed := make([]kvm.MSREntry, 0, len(want))
	for _, e := range want {
		for len(fresh) > 0 && fresh[0].Index < e.Index {
			fresh = fresh[1:]
		}
		if len(fresh) == 0 || fresh[0] != e {
			changed = append(changed, e)
		}
	}
	return changed
}

// writeMSRs sets all entries. KVM stops at the first that it refuses, and
// some can only be read; that is no loss if the vCPU has the value anyway.
func writeMSRs(c *kvm.VCPU, entries []kvm.MSREntry) error {
	for len(entries) > 0 {
		chunk := entries[:min(len(entries), maxMSRs)]
		n, err := c.SetMSRs(chunk)
		if errors.Is(err, kvm.ErrMSRRefused) {
			e := chunk[n]
			if have, readErr := readMSR(c, e.Index); readErr != nil || have != e.Data {
				return fmt.Errorf("%w; it is %#x", err, have)
			}
			n++
		} else if err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

func readMSR(c *kvm.VCPU, index uint32) (uint64, error) {
	e := []kvm.MSREntry{{Index: index}}
	if _, err := c.MSRs(e); err != nil {
		return 0, err
	}
	return e[0].Data, nil
}

// The LAPIC's timer register, Intel SDM volume 3, 12.5.1: bits 18:17 are the
// mode, bit 16 masks it.
const (
	lapicLVTTimer     = 0x320
	timerModeMask     = 3 << 17
	timerModeDeadline = 2 << 17
	timerMasked       = 1 << 16
)

// deadlineTimer tells whether the timer counts to a deadline, and whether its
// interrupt is let through.
func deadlineTimer(l *kvm.LAPICState) (deadline, unmasked bool) {
	lvt := l.Register(lapicLVTTimer)
	return lvt&timerModeMask == timerModeDeadline, lvt&timerMasked == 0
}

// repairDeadline is the timer's deadline to restore. KVM reports 0 for one that
// has passed, whose interrupt may have been on its way when the vCPU stopped;
// it is replaced by the present, so the restored timer fires at once. One tick
// too many is harmless, one too few stops a guest for ever.
func repairDeadline(deadline uint64, unmasked bool, now uint64) uint64 {
	if deadline == 0 && unmasked {
		return max(now, 1)
	}
	return deadline
}

func writeDeadline(c *kvm.VCPU, st *vcpuState) error {
	if st.Deadline == 0 {
		return nil
	}
	return writeMSRs(c, []kvm.MSREntry{{Index: msrTSCDeadline, Data: st.Deadline}})
}
