package bare

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/test/bench/microguest"
)

const pageSize = microguest.PageSize

// address is where a range of memory begins.
func address(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }

// reserve maps memory that is allocated as it is written, in small pages.
func reserve(size int64) ([]byte, error) {
	ram, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err == nil {
		_ = unix.Madvise(ram, unix.MADV_NOHUGEPAGE) // EINVAL: there are none
	}
	return ram, err
}

// overlay replaces the mapping of dst by a private one of fd at offset.
func overlay(dst []byte, fd int, offset int64) error {
	_, err := unix.MmapPtr(fd, offset, unsafe.Pointer(unsafe.SliceData(dst)), uintptr(len(dst)),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_NORESERVE|unix.MAP_FIXED)
	if err != nil {
		return fmt.Errorf("bare: mmap: %w", err)
	}
	return nil
}

// run is a range of bytes in memory.
type run struct{ start, end int64 }

// From <linux/fs.h>: PAGEMAP_SCAN, of Linux 6.7, and its page categories.
const (
	pagemapScan = 0xc0606610

	pageIsFile    = 1 << 2
	pageIsPresent = 1 << 3
	pageIsSwapped = 1 << 4
	pageIsPFNZero = 1 << 5
)

// scanArg is struct pm_scan_arg.
type scanArg struct {
	size, flags                 uint64
	start, end, walkEnd         uint64
	vec, vecLen                 uint64
	maxPages                    uint64
	inverted, mask, anyOf, back uint64
}

// scanner finds private pages. It is made once, for the kernel writes into
// its memory, which lies outside of Go's.
type scanner struct {
	pagemap int
	regions []byte
}

const maxRegions = 4096

type region struct{ start, end, categories uint64 }

func newScanner() (*scanner, error) {
	fd, err := unix.Open("/proc/self/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(-1, 0, maxRegions*int(unsafe.Sizeof(region{})), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &scanner{fd, mem}, nil
}

func (s *scanner) close() {
	unix.Close(s.pagemap)
	_ = unix.Munmap(s.regions)
}

// private appends the ranges of ram that were written since they were mapped.
func (s *scanner) private(ram []byte, runs []run) ([]run, error) {
	base := uint64(address(ram))
	regions := unsafe.Slice((*region)(unsafe.Pointer(unsafe.SliceData(s.regions))), maxRegions)
	arg := scanArg{
		size:  uint64(unsafe.Sizeof(scanArg{})),
		start: base, end: base + uint64(len(ram)),
		vec: uint64(address(s.regions)), vecLen: maxRegions,
		inverted: pageIsFile | pageIsPFNZero, mask: pageIsFile | pageIsPFNZero,
		anyOf: pageIsPresent | pageIsSwapped, back: pageIsPresent,
	}
	for arg.start < arg.end {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.pagemap), pagemapScan, uintptr(unsafe.Pointer(&arg)))
		if errno != 0 {
			return nil, fmt.Errorf("bare: PAGEMAP_SCAN: %w", errno)
		}
		for _, r := range regions[:n] {
			runs = append(runs, run{int64(r.start - base), int64(r.end - base)})
		}
		arg.start = arg.walkEnd
	}
	return runs, nil
}
