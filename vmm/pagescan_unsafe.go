package vmm

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From <linux/fs.h>: PAGEMAP_SCAN and its page categories.
const (
	pagemapScan = 0xc0606610 // _IOWR('f', 16, struct pm_scan_arg)

	pageIsFile    = 1 << 2
	pageIsPresent = 1 << 3
	pageIsSwapped = 1 << 4
	pageIsPFNZero = 1 << 5
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

// scanPagemap asks for pages that are present or swapped, and neither a
// file's nor the shared page of zeros.
func scanPagemap(f *os.File, ram []byte) ([]run, error) {
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
		start:            base,
		end:              base + uint64(len(ram)),
		vec:              uint64(uintptr(unsafe.Pointer(&regions[0]))),
		vecLen:           uint64(len(regions)),
		categoryInverted: pageIsFile | pageIsPFNZero,
		categoryMask:     pageIsFile | pageIsPFNZero,
		categoryAnyOf:    pageIsPresent | pageIsSwapped,
		returnMask:       pageIsPresent,
	}
	for arg.start < arg.end {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), pagemapScan, uintptr(unsafe.Pointer(&arg)))
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
