package kvm

import (
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// VM is a virtual machine: guest-physical memory, interrupt controllers, clock
// and vCPUs. It belongs to the process that made it.
type VM struct {
	fd       descriptor
	mmapSize int

	// mu guards slots, and is held over the ioctls that change a slot or
	// fill a bitmap of its size.
	mu    sync.Mutex
	slots map[uint32]uint64 // bytes by slot, for the size of its dirty bitmap
}

// Close closes the descriptor. The kernel frees the VM when its vCPUs are
// closed too, which takes it tens of milliseconds. Close is idempotent.
func (v *VM) Close() error { return v.fd.close() }

// FD is the file descriptor, -1 once closed.
func (v *VM) FD() int { return v.fd.number() }

// CheckExtension issues KVM_CHECK_EXTENSION on the VM, whose answer may depend
// on how the VM was made. See [System.CheckExtension].
func (v *VM) CheckExtension(c Cap) (int, error) {
	return v.fd.call(reqCheckExtension, uintptr(c))
}

// EnableCap issues KVM_ENABLE_CAP on the VM, such as [CapSplitIRQChip].
func (v *VM) EnableCap(e EnableCap) error {
	_, err := exchange(&v.fd, reqEnableCap, &e)
	return err
}

// SetTSSAddr issues KVM_SET_TSS_ADDR: where three pages of guest-physical
// memory, outside of all slots and below 4 GiB, serve KVM on Intel CPUs.
func (v *VM) SetTSSAddr(addr uint64) error {
	_, err := v.fd.call(reqSetTSSAddr, uintptr(addr))
	return err
}

// SetIdentityMapAddr issues KVM_SET_IDENTITY_MAP_ADDR: where one page of
// guest-physical memory serves KVM on Intel CPUs. It must come before any vCPU.
func (v *VM) SetIdentityMapAddr(addr uint64) error {
	_, err := exchange(&v.fd, reqSetIdentityMapAddr, &addr)
	return err
}

// SetUserMemoryRegion issues KVM_SET_USER_MEMORY_REGION: it makes, moves,
// changes or deletes a slot. The caller keeps the memory mapped while the slot
// exists; the kernel follows what is mapped there.
func (v *VM) SetUserMemoryRegion(r UserspaceMemoryRegion) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, err := exchange(&v.fd, reqSetUserMemoryRegion, &r); err != nil {
		return err
	}
	v.slots[r.Slot] = r.MemorySize
	return nil
}

// SetUserMemoryRegion2 issues KVM_SET_USER_MEMORY_REGION2, which is
// SetUserMemoryRegion with guest_memfd. See [CapUserMemory2].
func (v *VM) SetUserMemoryRegion2(r UserspaceMemoryRegion2) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, err := exchange(&v.fd, reqSetUserMemoryRegion2, &r); err != nil {
		return err
	}
	v.slots[r.Slot] = r.MemorySize
	return nil
}

// CreateVCPU issues KVM_CREATE_VCPU and maps what the vCPU shares with its VMM.
// The id is the vCPU's APIC id.
func (v *VM) CreateVCPU(id int) (*VCPU, error) {
	if id < 0 {
		return nil, reqCreateVCPU.failed(unix.EINVAL)
	}
	xsave, err := v.CheckExtension(CapXSAVE2)
	if err != nil {
		return nil, err
	}
	fd, err := v.fd.call(reqCreateVCPU, uintptr(id))
	if err != nil {
		return nil, err
	}
	page, err := unix.Mmap(fd, 0, v.mmapSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("kvm: map kvm_run: %w", err)
	}
	c := newVCPU(fd, page, max(xsave, len(XSAVEState{}.Region)))
	c.fd.observed = v.fd.observedBy().ofVCPU(id)
	return c, nil
}

// Clock issues KVM_GET_CLOCK.
func (v *VM) Clock() (c ClockData, err error) {
	_, err = exchange(&v.fd, reqGetClock, &c)
	return c, err
}

// SetClock issues KVM_SET_CLOCK. Of the flags only [ClockRealtime] counts.
func (v *VM) SetClock(c *ClockData) error {
	_, err := exchange(&v.fd, reqSetClock, c)
	return err
}

// TSCKHz issues KVM_GET_TSC_KHZ on the VM: the TSC frequency that new vCPUs
// get. See [CapVMTSCControl].
func (v *VM) TSCKHz() (uint32, error) {
	khz, err := v.fd.call(reqGetTSCKHz, 0)
	return uint32(khz), err
}

// SetTSCKHz issues KVM_SET_TSC_KHZ on the VM, before any vCPU is made. See
// [CapVMTSCControl].
func (v *VM) SetTSCKHz(khz uint32) error {
	_, err := v.fd.call(reqSetTSCKHz, uintptr(khz))
	return err
}

// DirtyLog issues KVM_GET_DIRTY_LOG: it sets in bitmap one bit a page, page 0
// of the slot being bit 0 of bitmap[0], that the guest wrote since the last
// call, and begins anew unless [CapManualDirtyLogProtect2] is enabled. The slot
// has MemLogDirtyPages. A bitmap too small for the slot is EINVAL.
func (v *VM) DirtyLog(slot uint32, bitmap []uint64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	pages := v.slots[slot] / uint64(unix.Getpagesize())
	if uint64(len(bitmap)) < (pages+63)/64 {
		return reqGetDirtyLog.failed(unix.EINVAL)
	}
	return v.fd.dirtyLog(slot, bitmap)
}

// ClearDirtyLog issues KVM_CLEAR_DIRTY_LOG: it begins anew for those of the
// pages from first to first+pages whose bits are set in bitmap, where bit 0 is
// page first. Both numbers are multiples of 64, but for the slot's last page.
// [CapManualDirtyLogProtect2] is enabled. A bitmap too small is EINVAL.
func (v *VM) ClearDirtyLog(slot uint32, first uint64, pages uint32, bitmap []uint64) error {
	if uint64(len(bitmap)) < (uint64(pages)+63)/64 {
		return reqClearDirtyLog.failed(unix.EINVAL)
	}
	return v.fd.clearDirtyLog(slot, first, pages, bitmap)
}

// ResetDirtyRings issues KVM_RESET_DIRTY_RINGS: it begins anew for the pages
// harvested from all dirty rings, and returns their number. See [DirtyRing].
func (v *VM) ResetDirtyRings() (int, error) {
	return v.fd.call(reqResetDirtyRings, 0)
}

// StatsFD issues KVM_GET_STATS_FD: a descriptor to read binary statistics from,
// which the caller closes. See [CapBinaryStatsFD].
func (v *VM) StatsFD() (int, error) { return statsFD(&v.fd) }

// statsFD closes the gap that the kernel leaves: it is the one KVM descriptor
// made without O_CLOEXEC, so no process may be started until it has it.
func statsFD(d *descriptor) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := d.call(reqGetStatsFD, 0)
	if err != nil {
		return -1, err
	}
	unix.CloseOnExec(fd)
	return fd, nil
}
