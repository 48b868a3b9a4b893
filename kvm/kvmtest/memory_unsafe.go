package kvmtest

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
)

// Region is slot 0: the guest's memory at guest-physical address 0.
func (g *Guest) Region(flags uint32) kvm.UserspaceMemoryRegion {
	return kvm.UserspaceMemoryRegion{
		Flags:         flags,
		MemorySize:    uint64(len(g.Memory)),
		UserspaceAddr: Address(g.Memory),
	}
}

// Address is where mapped memory lies in this process. It must not be memory of
// the Go heap, which nothing keeps alive for a guest.
func Address(mapped []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mapped))))
}

// mapMemory maps zeroed memory for the length of the test.
func mapMemory(t testing.TB, size int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(m); err != nil {
			t.Error(err)
		}
	})
	return m
}
