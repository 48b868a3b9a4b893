package bare

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/test/bench/microguest"
)

// Host is a KVM and what is asked of it once.
type Host struct {
	sys       *kvm.System
	cpuid     []kvm.CPUIDEntry2
	msrs      []kvm.MSREntry // indices of what is saved
	xsaveSize int
}

// Open opens the KVM.
func Open() (*Host, error) {
	sys, err := kvm.Open("")
	if err != nil {
		return nil, err
	}
	h := &Host{sys: sys}
	if err := h.ask(); err != nil {
		return nil, errors.Join(err, sys.Close())
	}
	return h, nil
}

// Close closes the KVM. Machines live on.
func (h *Host) Close() error { return h.sys.Close() }

// ask finds out what does not change.
func (h *Host) ask() (err error) {
	if h.cpuid, err = h.sys.SupportedCPUID(); err != nil {
		return err
	}
	m, err := h.newMachine(1<<20, nil)
	if err != nil {
		return err
	}
	defer m.close()
	if h.xsaveSize, err = m.vm.CheckExtension(kvm.CapXSAVE2); err != nil {
		return err
	}
	indices, err := h.sys.MSRIndexList()
	if err != nil {
		return err
	}
	slices.Sort(indices)
	for _, i := range slices.Compact(append(indices, unlistedMSRs()...)) {
		e := []kvm.MSREntry{{Index: i}}
		if !savedMSR(i) {
			continue
		}
		if _, err := m.vcpu.MSRs(e); err != nil {
			continue
		}
		// One that cannot be set has the value that it has.
		if _, err := m.vcpu.SetMSRs(e); err == nil {
			h.msrs = append(h.msrs, kvm.MSREntry{Index: i})
		}
	}
	return nil
}

// savedMSR leaves out what vmm leaves out: the counter, which has an offset
// instead, its deadline, two that have no state, and those of Hyper-V.
func savedMSR(i uint32) bool {
	const deadline, wallClock, systemTime, wallClockNew = 0x6e0, 0x11, 0x12, 0x4b564d00
	switch i {
	case msrTSC, deadline, wallClock, systemTime, wallClockNew:
		return false
	}
	return i < 0x40000000 || i > 0x400001ff
}

// unlistedMSRs are state too: memory type ranges and machine check banks.
func unlistedMSRs() []uint32 {
	all := []uint32{0x250, 0x258, 0x259, 0x2ff}
	for i := range uint32(16) {
		all = append(all, 0x200+i)
	}
	for i := range uint32(8) {
		all = append(all, 0x268+i)
	}
	for i := range uint32(32) {
		all = append(all, 0x400+4*i)
	}
	return all
}

// machine is a VM of one vCPU with its memory, and nothing in it.
type machine struct {
	vm   *kvm.VM
	vcpu *kvm.VCPU
	ram  []byte
}

// newMachine makes a machine of so many bytes of memory, which fill maps if it
// is not nil.
//
// Memory is mapped first: where KVM knows of a range already, it looks through
// all of its pages at every change of a mapping, unless it has a TDP MMU. The
// memory slot comes right after the VM: after the interrupt controllers it
// costs a grace period on Linux 6.18.
func (h *Host) newMachine(memory int64, fill func(ram []byte) error) (*machine, error) {
	m := new(machine)
	const identityMap, tss = 0xfffbc000, 0xfffbd000
	err := runSteps(
		step{"mmap", func() (err error) {
			if m.ram, err = reserve(memory); err == nil && fill != nil {
				err = fill(m.ram)
			}
			return err
		}},
		step{"KVM_CREATE_VM", func() (err error) { m.vm, err = h.sys.CreateVM(); return }},
		step{"KVM_SET_USER_MEMORY_REGION", func() error {
			return m.vm.SetUserMemoryRegion(kvm.UserspaceMemoryRegion{MemorySize: uint64(len(m.ram)), UserspaceAddr: uint64(address(m.ram))})
		}},
		step{"KVM_SET_IDENTITY_MAP_ADDR", func() error { return m.vm.SetIdentityMapAddr(identityMap) }},
		step{"KVM_SET_TSS_ADDR", func() error { return m.vm.SetTSSAddr(tss) }},
		step{"KVM_CREATE_IRQCHIP", func() error { return m.vm.CreateIRQChip() }},
		step{"KVM_CREATE_PIT2", func() error { return m.vm.CreatePIT2(kvm.PITConfig{Flags: kvm.PITSpeakerDummy}) }},
		step{"KVM_CREATE_VCPU", func() (err error) { m.vcpu, err = m.vm.CreateVCPU(0); return }},
		step{"KVM_SET_CPUID2", func() error { return m.vcpu.SetCPUID2(h.cpuid) }},
		step{"first KVM_RUN", m.runNothing},
	)
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// runNothing makes KVM start a thread of its own, which it does in the first
// KVM_RUN and which takes long, before there is any state.
func (m *machine) runNothing() error {
	m.vcpu.SetImmediateExit(true)
	defer m.vcpu.SetImmediateExit(false)
	if err := m.vcpu.Run(); !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("KVM_RUN with immediate_exit: %w", err)
	}
	return nil
}

// close frees the machine, for which the kernel takes some 10 ms.
func (m *machine) close() error {
	var errs []error
	if m.vcpu != nil {
		errs = append(errs, m.vcpu.Close())
	}
	if m.vm != nil {
		errs = append(errs, m.vm.Close())
	}
	if m.ram != nil {
		errs = append(errs, unix.Munmap(m.ram))
		m.ram = nil
	}
	return errors.Join(errs...)
}

// run lets the guest run to its next write to the port.
func (m *machine) run() error {
	for {
		err := m.vcpu.Run()
		switch {
		case errors.Is(err, unix.EINTR): // a signal of the Go runtime
			continue
		case err != nil:
			return err
		case m.vcpu.ExitReason() != kvm.ExitIO || m.vcpu.IO().Port != microguest.Port:
			return fmt.Errorf("bare: unexpected exit %v", m.vcpu.ExitReason())
		}
		return nil
	}
}
