package kvm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DirtyGFN is a page that the guest wrote.
type DirtyGFN struct {
	Slot   uint32
	Offset uint64 // pages from the start of the slot
}

// dirtyGFN is kvm_dirty_gfn, an entry of a dirty ring. The kernel writes flags
// last and reads them first.
type dirtyGFN struct {
	flags  uint32
	slot   uint32
	offset uint64
}

// Flags of a dirty ring's entry.
const (
	gfnDirty = 1 << 0 // KVM_DIRTY_GFN_F_DIRTY: by the kernel, to be harvested
	gfnReset = 1 << 1 // KVM_DIRTY_GFN_F_RESET: harvested, to be reset
)

// dirtyRingOffset is KVM_DIRTY_LOG_PAGE_OFFSET in bytes.
const dirtyRingOffset = 64 * 4096

// DirtyRing is a vCPU's ring of pages that its guest wrote. The VM has
// [CapDirtyLogRing] (or [CapDirtyLogRingAcqRel]) enabled, with the ring's size
// in bytes, before any vCPU is made. A full ring makes Run return
// [ExitDirtyRingFull].
type DirtyRing struct {
	page    []byte
	entries []dirtyGFN
	next    int
}

// MapDirtyRing maps the vCPU's dirty ring of size bytes, which is what the
// capability was enabled with. The ring is for one goroutine at a time and is
// closed by its owner.
func (c *VCPU) MapDirtyRing(size int) (*DirtyRing, error) {
	if size < int(unsafe.Sizeof(dirtyGFN{})) {
		return nil, fmt.Errorf("kvm: map dirty ring: %w", unix.EINVAL)
	}
	page, err := unix.Mmap(c.FD(), dirtyRingOffset, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("kvm: map dirty ring: %w", err)
	}
	first := (*dirtyGFN)(unsafe.Pointer(unsafe.SliceData(page)))
	return &DirtyRing{page: page, entries: unsafe.Slice(first, size/int(unsafe.Sizeof(dirtyGFN{})))}, nil
}

// Harvest hands out, in order, the entries written since the last call and
// gives them back to the kernel, which logs those pages anew once
// [VM.ResetDirtyRings] was called. It returns how many there were.
func (r *DirtyRing) Harvest(f func(DirtyGFN)) int {
	n := 0
	for ; n < len(r.entries); n++ {
		e := &r.entries[r.next]
		if atomic.LoadUint32(&e.flags)&(gfnDirty|gfnReset) != gfnDirty {
			break
		}
		f(DirtyGFN{Slot: e.slot, Offset: e.offset})
		atomic.StoreUint32(&e.flags, gfnReset)
		r.next = (r.next + 1) % len(r.entries)
	}
	return n
}

// Close unmaps the ring. It is idempotent.
func (r *DirtyRing) Close() error {
	if r.page == nil {
		return nil
	}
	page := r.page
	r.page, r.entries = nil, nil
	if err := unix.Munmap(page); err != nil {
		return fmt.Errorf("kvm: unmap dirty ring: %w", err)
	}
	return nil
}
