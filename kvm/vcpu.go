package kvm

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// VCPU is a virtual CPU and the page (kvm_run) that the kernel shares with the
// VMM about it. Its methods belong to the thread that runs it, except
// SetImmediateExit and FD.
type VCPU struct {
	fd        descriptor
	xsaveSize int // bytes that the kernel reads and writes for XSAVE

	// run lies at the start of page. Both are replaced by memory of our own
	// when the vCPU is closed, so that a late look at them is harmless.
	run  *runPage
	page []byte

	// kickMu keeps the page mapped while another thread sets immediate_exit.
	// It is taken without the lock of fd, which a Run holds.
	kickMu sync.Mutex
	mapped bool // page is the kernel's; guarded by kickMu
}

func newVCPU(fd int, page []byte, xsaveSize int) *VCPU {
	return &VCPU{
		fd:        descriptor{fd: fd},
		xsaveSize: xsaveSize,
		run:       overlay(page),
		page:      page,
		mapped:    true,
	}
}

// Close closes the descriptor and unmaps the shared page. It waits for a Run in
// flight; slices that IO and MMIO returned must not be used afterwards. Close is
// idempotent.
func (c *VCPU) Close() error {
	err := c.fd.close()
	c.kickMu.Lock()
	defer c.kickMu.Unlock()
	if !c.mapped {
		return err
	}
	page := c.page
	c.page = make([]byte, runPageSize)
	c.run = overlay(c.page)
	c.mapped = false
	if unmapErr := unix.Munmap(page); unmapErr != nil {
		return errors.Join(err, fmt.Errorf("kvm: unmap kvm_run: %w", unmapErr))
	}
	return err
}

// FD is the file descriptor, -1 once closed.
func (c *VCPU) FD() int { return c.fd.number() }

// Run issues KVM_RUN: the guest executes until something needs the VMM, which
// ExitReason and its companions then tell. What an IO or MMIO read returned is
// completed by the next Run.
//
// unix.EINTR, bare, says that the thread was signalled or immediate_exit is
// set. ExitReason tells nothing then: it is ExitIntr if the guest was entered, and
// may be left from before if not. It is never retried here, because it is how a
// vCPU is stopped. The Go runtime's own preemption signals cause it too, so a
// caller who sees no reason to stop goes round again. unix.EAGAIN comes back
// bare as well: a vCPU that waited for INIT or SIPI should be run again.
func (c *VCPU) Run() error {
	d := &c.fd
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd < 0 {
		return reqRun.failed(unix.EBADF)
	}
	errno := d.observed.ask(reqRun, uint64(c.run.immediateExit()))
	if errno == 0 {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), reqRun.number, 0)
	}
	switch errno {
	case 0:
		return nil
	case unix.EINTR, unix.EAGAIN:
		return errno
	}
	return reqRun.failed(errno)
}

// SetImmediateExit sets kvm_run.immediate_exit. While it is set, Run returns
// unix.EINTR at once, before the guest executes anything; an exit of the guest
// that KVM has to complete (an IO or MMIO read) is completed first. It does not
// stop a Run in flight: for that a signal follows. See [CapImmediateExit].
//
// It may be called from any goroutine at any time, after Close included.
func (c *VCPU) SetImmediateExit(on bool) {
	c.kickMu.Lock()
	defer c.kickMu.Unlock()
	c.run.setImmediateExit(on)
}

// Interrupt issues KVM_INTERRUPT: it queues an external interrupt with the
// given vector. It is for a VM without interrupt controllers in the kernel.
func (c *VCPU) Interrupt(vector uint32) error {
	_, err := exchange(&c.fd, reqInterrupt, &vector)
	return err
}

// NMI issues KVM_NMI: it queues a non-maskable interrupt.
func (c *VCPU) NMI() error {
	_, err := c.fd.call(reqNMI, 0)
	return err
}

// SetGuestDebug issues KVM_SET_GUEST_DEBUG: breakpoints and single steps that
// leave the guest with [ExitDebug].
func (c *VCPU) SetGuestDebug(g GuestDebug) error {
	_, err := exchange(&c.fd, reqSetGuestDebug, &g)
	return err
}

// EnableCap issues KVM_ENABLE_CAP on the vCPU.
func (c *VCPU) EnableCap(e EnableCap) error {
	_, err := exchange(&c.fd, reqEnableCap, &e)
	return err
}

// StatsFD issues KVM_GET_STATS_FD: a descriptor to read binary statistics from,
// which the caller closes. See [CapBinaryStatsFD].
func (c *VCPU) StatsFD() (int, error) { return statsFD(&c.fd) }

// Translate issues KVM_TRANSLATE: it walks the vCPU's page tables for a linear
// address.
func (c *VCPU) Translate(gva uint64) (TranslationResult, error) {
	t := TranslationResult{LinearAddress: gva}
	_, err := exchange(&c.fd, reqTranslate, &t)
	return t, err
}

// SetSignalMask issues KVM_SET_SIGNAL_MASK: while the vCPU runs, its thread has
// this mask instead of its own, signal n being bit n-1. With nil it has its own
// again.
func (c *VCPU) SetSignalMask(mask *uint64) error {
	if mask == nil {
		_, err := c.fd.call(reqSetSignalMask, 0)
		return err
	}
	m := signalMask{len: 8}
	for i := range m.sigset {
		m.sigset[i] = byte(*mask >> (8 * i))
	}
	_, err := exchange(&c.fd, reqSetSignalMask, &m)
	return err
}

// KVMClockCtrl issues KVM_KVMCLOCK_CTRL: it tells the guest that the host
// stopped it, so that its watchdogs forgive the gap. EINVAL says that the guest
// does not use kvm-clock.
func (c *VCPU) KVMClockCtrl() error {
	_, err := c.fd.call(reqKVMClockCtrl, 0)
	return err
}

// preFaultMemory is kvm_pre_fault_memory.
type preFaultMemory struct {
	gpa, size uint64
	_         uint64 // flags, none of which is defined
	_         [5]uint64
}

// PreFaultMemory issues KVM_PRE_FAULT_MEMORY: the range, of whole pages, is
// mapped for the guest as if it had read all of it. It returns how many bytes
// were; fewer than size with an error, EINTR among them. EOPNOTSUPP says that
// this host shadows page tables. See [CapPreFaultMemory].
func (c *VCPU) PreFaultMemory(gpa, size uint64) (uint64, error) {
	m := preFaultMemory{gpa: gpa, size: size}
	_, err := exchange(&c.fd, reqPreFaultMemory, &m)
	return m.gpa - gpa, err
}

// TSCKHz issues KVM_GET_TSC_KHZ on the vCPU.
func (c *VCPU) TSCKHz() (uint32, error) {
	khz, err := c.fd.call(reqGetTSCKHz, 0)
	return uint32(khz), err
}

// SetTSCKHz issues KVM_SET_TSC_KHZ on the vCPU. A frequency other than the
// host's needs [CapTSCControl].
func (c *VCPU) SetTSCKHz(khz uint32) error {
	_, err := c.fd.call(reqSetTSCKHz, uintptr(khz))
	return err
}

// TSCOffset reads the attribute KVM_VCPU_TSC_OFFSET: what the guest's TSC is
// ahead of the host's, modulo 2^64.
func (c *VCPU) TSCOffset() (uint64, error) {
	return c.DeviceAttr(VCPUTSCCtrl, VCPUTSCOffset)
}

// SetTSCOffset writes the attribute KVM_VCPU_TSC_OFFSET. One offset for all
// vCPUs keeps their TSCs synchronized.
func (c *VCPU) SetTSCOffset(offset uint64) error {
	return c.SetDeviceAttr(VCPUTSCCtrl, VCPUTSCOffset, offset)
}

// HasDeviceAttr issues KVM_HAS_DEVICE_ATTR on the vCPU; ENXIO says no. See
// [CapVCPUAttributes].
func (c *VCPU) HasDeviceAttr(group uint32, attr uint64) error {
	return c.fd.hasDeviceAttr(group, attr)
}

// DeviceAttr issues KVM_GET_DEVICE_ATTR on the vCPU. On x86 every attribute is
// 64 bits.
func (c *VCPU) DeviceAttr(group uint32, attr uint64) (uint64, error) {
	return c.fd.deviceAttr(group, attr)
}

// SetDeviceAttr issues KVM_SET_DEVICE_ATTR on the vCPU.
func (c *VCPU) SetDeviceAttr(group uint32, attr, value uint64) error {
	return c.fd.setDeviceAttr(group, attr, value)
}
