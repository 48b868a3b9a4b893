package vmm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hostAddr is the host virtual address of the range.
func hostAddr(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }

// at is the address as a pointer. It never points into the heap of Go.
func at(addr uintptr) unsafe.Pointer { return unsafe.Add(unsafe.Pointer(nil), addr) }

// bytesAt are n bytes at an address. To touch them before something is mapped
// there is a crash.
func bytesAt(addr uintptr, n int64) []byte { return unsafe.Slice((*byte)(at(addr)), n) }

// checkUnmapped fails with EEXIST if anything is mapped in a range, or with
// the error of the kernel if nothing can be.
func checkUnmapped(addr uintptr, size int64) error {
	err := mmap(at(addr), uintptr(size), -1, 0, unix.PROT_NONE, privately|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		return err
	}
	return unix.MunmapPtr(at(addr), uintptr(size))
}

const privately = unix.MAP_PRIVATE | unix.MAP_NORESERVE

// mapZeros maps fresh zeros to dst, in place of what may be there.
func mapZeros(dst []byte) error {
	return mapAt(dst, -1, 0, privately|unix.MAP_ANONYMOUS|unix.MAP_FIXED)
}

// mapNewZeros maps fresh zeros to dst, where nothing is.
func mapNewZeros(dst []byte) error {
	return mapAt(dst, -1, 0, privately|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
}

// mapPrivate maps fd at offset to dst, privately, in place of what may be
// there. The address range stays the same, so a memslot over it stays valid:
// KVM learns of the change through its MMU notifier.
func mapPrivate(dst []byte, fd int, offset int64) error {
	return mapAt(dst, fd, offset, privately|unix.MAP_FIXED)
}

// mapNewPrivate is mapPrivate where nothing is.
func mapNewPrivate(dst []byte, fd int, offset int64) error {
	return mapAt(dst, fd, offset, privately|unix.MAP_FIXED_NOREPLACE)
}

func mapAt(dst []byte, fd int, offset int64, flags int) error {
	return mmap(unsafe.Pointer(unsafe.SliceData(dst)), uintptr(len(dst)), fd, offset, unix.PROT_READ|unix.PROT_WRITE, flags)
}

// mmap maps to an address and nowhere else: for Linux before 4.17
// MAP_FIXED_NOREPLACE is a hint.
func mmap(addr unsafe.Pointer, size uintptr, fd int, offset int64, prot, flags int) error {
	got, err := unix.MmapPtr(fd, offset, addr, size, prot, flags)
	if err == nil && got != addr {
		_ = unix.MunmapPtr(got, size)
		err = unix.EEXIST
	}
	return err
}

// unmap removes what is mapped in a range.
func unmap(dst []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(dst)), uintptr(len(dst)))
}
