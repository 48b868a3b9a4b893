package vmm

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From <linux/fs.h>: PAGEMAP_SCAN, its page categories and flags.
const (
	pagemapScan = 0xc0606610 // _IOWR('f', 16, struct pm_scan_arg)

	pageIsWritten = 1 << 1
	pageIsFile    = 1 << 2
	pageIsPresent = 1 << 3
	pageIsSwapped = 1 << 4
	pageIsPFNZero = 1 << 5

	scanWPMatching   = 1 << 0
	scanCheckWPAsync = 1 << 1
)

// pmScanArg is struct pm_scan_arg.
type pmScanArg struct {
	size, flags                 uint64
	start, end, walkEnd         uint64
	vec, vecLen                 uint64
	maxPages                    uint64
	categoryInverted            uint64
	categoryMask, categoryAnyOf uint64
	returnMask                  uint64
}

// pageRegion is struct page_region.
type pageRegion struct{ start, end, categories uint64 }

var _ = [1]struct{}{}[unsafe.Sizeof(pmScanArg{})-96]

// scan asks PAGEMAP_SCAN for pages that are present or swapped, not the shared
// page of zeros, of no category in not, and of all in also.
func scan(pagemap *os.File, ram []byte, not, also, flags uint64) ([]run, error) {
	base := uint64(hostAddr(ram))
	var (
		runs    []run
		pin     runtime.Pinner
		regions = make([]pageRegion, 512)
	)
	// The kernel writes through an address that the compiler cannot see.
	pin.Pin(&regions[0])
	defer pin.Unpin()
	arg := pmScanArg{
		size:             uint64(unsafe.Sizeof(pmScanArg{})),
		flags:            flags,
		start:            base,
		end:              base + uint64(len(ram)),
		vec:              uint64(uintptr(unsafe.Pointer(&regions[0]))),
		vecLen:           uint64(len(regions)),
		categoryInverted: not | pageIsPFNZero,
		categoryMask:     not | pageIsPFNZero | also,
		categoryAnyOf:    pageIsPresent | pageIsSwapped,
		returnMask:       pageIsPresent,
	}
	for arg.start < arg.end {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, pagemap.Fd(), pagemapScan, uintptr(unsafe.Pointer(&arg)))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return nil, errno
		}
		for _, r := range regions[:n] {
			runs = appendRun(runs, run{int64(r.start - base), int64(r.end - base)})
		}
		arg.start = arg.walkEnd
	}
	return runs, nil
}

// From <linux/userfaultfd.h>.
const (
	uffdUserModeOnly   = 1
	uffdAPI            = 0xaa
	uffdioAPI          = 0xc018aa3f // _IOWR(0xaa, 0x3f, struct uffdio_api)
	uffdioRegister     = 0xc020aa00 // _IOWR(0xaa, 0x00, struct uffdio_register)
	uffdioWriteprotect = 0xc018aa06 // _IOWR(0xaa, 0x06, struct uffdio_writeprotect)
	uffdFeatureWPAsync = 1 << 15
	uffdModeWP         = 1 << 1
)

// openUffd makes a userfaultfd for asynchronous write protection: the kernel
// itself resolves a fault on a protected page, by noting that it was written.
// No fault is ever handed to user space, so no privilege is needed.
func openUffd() (fd int, err error) {
	n, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|uffdUserModeOnly, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	api := struct{ api, features, ioctls uint64 }{api: uffdAPI, features: uffdFeatureWPAsync}
	if _, _, errno = unix.Syscall(unix.SYS_IOCTL, n, uffdioAPI, uintptr(unsafe.Pointer(&api))); errno != 0 {
		unix.Close(int(n))
		return -1, errno
	}
	return int(n), nil
}

// registerUffd has pages of ram write-protected on demand.
func registerUffd(fd int, ram []byte) error {
	arg := struct{ start, length, mode, ioctls uint64 }{
		start: uint64(hostAddr(ram)), length: uint64(len(ram)), mode: uffdModeWP,
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uffdioRegister, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return errno
	}
	return nil
}

// unprotectUffd takes write protection away from pages of ram, and the marks
// that it leaves where protected pages were.
func unprotectUffd(fd int, ram []byte) error {
	arg := struct{ start, length, mode uint64 }{start: uint64(hostAddr(ram)), length: uint64(len(ram))}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uffdioWriteprotect, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return errno
	}
	return nil
}
