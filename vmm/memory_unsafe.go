package vmm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hostAddr is the host virtual address of the range.
func hostAddr(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }

// mapZeros replaces the mapping of dst by fresh zeros.
func mapZeros(dst []byte) error {
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(dst)), uintptr(len(dst)),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}

// mapPrivate replaces the mapping of dst by a private one of fd at offset.
// The address range stays the same, so a memslot over it stays valid: KVM
// learns of the change through its MMU notifier.
func mapPrivate(dst []byte, fd int, offset int64) error {
	_, err := unix.MmapPtr(fd, offset, unsafe.Pointer(unsafe.SliceData(dst)), uintptr(len(dst)),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}
