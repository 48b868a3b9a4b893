package vmm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
)

// shell is a machine as KVM sees it, before any state: memory, interrupt
// controllers and parked vCPUs.
type shell struct {
	sys   *kvm.System
	vm    *kvm.VM
	mem   *memory
	vcpus []*vcpu

	cpuid     []kvm.CPUIDEntry2 // what the guest sees, but for what differs by vCPU
	xsaveSize int               // bytes of a vCPU's XSAVE area
	tscFixed  bool              // offsets of the time-stamp counter have no effect
}

// shellSpec says what a shell is like. Shells of equal keys are alike.
type shellSpec struct {
	path   string // of the KVM device
	vcpus  int
	memory int64 // bytes

	// cpuid is what the guest sees, msrs what is restored of it: those of the
	// machine it goes on from, nil for one that boots.
	cpuid []kvm.CPUIDEntry2
	msrs  *msrList
}

// newShell builds a shell.
//
// Memslots come right after KVM_CREATE_VM: registering them after the
// interrupt chips costs a grace period, 7 ms, on Linux 6.18 (commit 7d9a0273).
// A memslot needs no more than addresses; what is mapped there comes later.
//
// Some kernels that fail once to start the thread of a VM's first KVM_RUN fail
// for ever. So if that lacked memory another VM is tried.
func newShell(spec shellSpec) (*shell, error) {
	s, err := tryShell(spec)
	if errors.Is(err, errFirstRun) && errors.Is(err, unix.ENOMEM) {
		s, err = tryShell(spec)
	}
	return s, err
}

var errFirstRun = errors.New("first KVM_RUN")

func tryShell(spec shellSpec) (s *shell, err error) {
	if err := checkSIGURG(); err != nil {
		return nil, err
	}
	s = new(shell)
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.sys, err = openKVM(spec.path); err != nil {
		return s, fmt.Errorf("vmm: %w", err)
	}
	if s.cpuid = spec.cpuid; s.cpuid == nil {
		if err := checkAPI(s.sys); err != nil {
			return s, err
		}
		if s.cpuid, err = guestCPUID(s.sys); err != nil {
			return s, err
		}
	}
	if s.vm, err = s.sys.CreateVM(); err != nil {
		return s, fmt.Errorf("vmm: create VM: %w", err)
	}
	if s.mem, err = reserveMemory(spec.memory); err != nil {
		return s, err
	}
	if err := s.setMemslots(); err != nil {
		return s, err
	}
	if s.xsaveSize, err = s.vm.CheckExtension(kvm.CapXSAVE2); err != nil {
		return s, fmt.Errorf("vmm: size of XSAVE: %w", err)
	}
	if err := s.createChips(); err != nil {
		return s, err
	}
	for i := range spec.vcpus {
		c, err := newVCPU(s.vm, i)
		if err != nil {
			return s, err
		}
		s.vcpus = append(s.vcpus, c)
		c.do(func() { err = s.prepare(c, spec) })
		if err != nil {
			return s, fmt.Errorf("vmm: vCPU %d: %w", i, err)
		}
	}
	return s, nil
}

// prepare gives a vCPU its CPUID, and looks at what a later restore wants to
// know. It runs on the vCPU's thread.
func (s *shell) prepare(c *vcpu, spec shellSpec) (err error) {
	if err := c.kvm.SetCPUID2(cpuidFor(s.cpuid, c.id, spec.vcpus)); err != nil {
		return fmt.Errorf("CPUID: %w", err)
	}
	if c.id == 0 {
		if err := c.runNothing(); err != nil {
			return fmt.Errorf("%w: %w", errFirstRun, err)
		}
	}
	if c.tscKHz, err = c.kvm.TSCKHz(); err != nil {
		return fmt.Errorf("KVM_GET_TSC_KHZ: %w", err)
	}
	if spec.msrs == nil {
		return nil // it boots
	}
	if c.id == 0 {
		if s.tscFixed, err = tscIsFixed(c.kvm); err != nil {
			return fmt.Errorf("TSC offset: %w", err)
		}
	}
	c.fresh = new(vcpuState)
	return saveVCPU(c, c.fresh, s.xsaveSize, spec.msrs)
}

// openKVM is replaced by tests that watch or refuse ioctls.
var openKVM = kvm.Open

func (s *shell) setMemslots() error {
	base := uint64(hostAddr(s.mem.ram))
	for i, r := range regions(uint64(len(s.mem.ram))) {
		err := s.vm.SetUserMemoryRegion(kvm.UserspaceMemoryRegion{
			Slot: uint32(i), GuestPhysAddr: r.gpa, MemorySize: r.size, UserspaceAddr: base + r.offset,
		})
		if err != nil {
			return fmt.Errorf("vmm: memslot %d: %w", i, err)
		}
	}
	return nil
}

func (s *shell) createChips() error {
	// Intel CPUs run real mode as a task and need room for it; AMD ones
	// accept and ignore both.
	if err := s.vm.SetIdentityMapAddr(identityMapAddr); err != nil {
		return fmt.Errorf("vmm: identity map: %w", err)
	}
	if err := s.vm.SetTSSAddr(tssAddr); err != nil {
		return fmt.Errorf("vmm: TSS: %w", err)
	}
	if err := s.vm.CreateIRQChip(); err != nil {
		return fmt.Errorf("vmm: interrupt controllers: %w", err)
	}
	if err := s.maskPICs(); err != nil {
		return err
	}
	if err := s.vm.CreatePIT2(kvm.PITConfig{Flags: kvm.PITSpeakerDummy}); err != nil {
		return fmt.Errorf("vmm: timer: %w", err)
	}
	return nil
}

// maskPICs masks the two 8259s, which KVM makes unmasked with vectors from 0
// on. A guest of hardware-reduced ACPI never touches them, so an interrupt of
// a device would reach it a second time, as a CPU exception.
func (s *shell) maskPICs() error {
	const imr = 2 // offset in struct kvm_pic_state
	for _, id := range []uint32{kvm.PICMaster, kvm.PICSlave} {
		chip, err := s.vm.IRQChip(id)
		if err != nil {
			return fmt.Errorf("vmm: mask PIC: %w", err)
		}
		chip.Chip[imr] = 0xff
		if err := s.vm.SetIRQChip(chip); err != nil {
			return fmt.Errorf("vmm: mask PIC: %w", err)
		}
	}
	return nil
}

// close ends the vCPUs and frees everything, in the reverse order.
func (s *shell) close() error {
	var errs []error
	for _, c := range s.vcpus {
		errs = append(errs, c.close())
	}
	if s.vm != nil {
		errs = append(errs, s.vm.Close())
	}
	if s.mem != nil {
		errs = append(errs, s.mem.close())
	}
	if s.sys != nil {
		errs = append(errs, s.sys.Close())
	}
	return errors.Join(errs...)
}

// onAll runs f on every vCPU's thread at once and joins the errors. On the
// thread of self, which may be nil, it is the caller that runs it.
func (s *shell) onAll(self *vcpu, f func(*vcpu) error) error {
	errs := make([]error, len(s.vcpus))
	done := make(chan struct{}, len(s.vcpus))
	run := func(c *vcpu) {
		if err := f(c); err != nil {
			errs[c.id] = fmt.Errorf("vmm: vCPU %d: %w", c.id, err)
		}
		done <- struct{}{}
	}
	for i, c := range s.vcpus {
		if c != self && !c.post(func() { run(c) }) {
			errs[i] = ErrClosed
			done <- struct{}{}
		}
	}
	if self != nil {
		run(self)
	}
	for range s.vcpus {
		<-done
	}
	return errors.Join(errs...)
}

// neededCaps are what every machine needs of KVM.
var neededCaps = []kvm.Cap{
	kvm.CapIRQChip, kvm.CapUserMemory, kvm.CapSetTSSAddr, kvm.CapSetIdentityMapAddr, kvm.CapVCPUAttributes, kvm.CapExtCPUID, kvm.CapMPState,
	kvm.CapPIT2, kvm.CapPITState2, kvm.CapAdjustClock, kvm.CapVCPUEvents, kvm.CapDebugRegs,
	kvm.CapXSAVE2, kvm.CapXCRs, kvm.CapImmediateExit, kvm.CapGetTSCKHz,
}

// checkAPI refuses a KVM that lacks what every machine needs.
func checkAPI(s *kvm.System) error {
	v, err := s.APIVersion()
	if err != nil {
		return fmt.Errorf("vmm: KVM API version: %w", err)
	}
	if v != 12 {
		return fmt.Errorf("vmm: KVM API version %d, want 12", v)
	}
	for _, c := range neededCaps {
		n, err := s.CheckExtension(c)
		if err != nil {
			return fmt.Errorf("vmm: KVM_CHECK_EXTENSION %v: %w", c, err)
		}
		if n == 0 {
			return fmt.Errorf("vmm: this KVM lacks %v, which forkvm needs", c)
		}
	}
	return nil
}
