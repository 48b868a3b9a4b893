package probe

import (
	"unsafe"

	"github.com/forkvm/forkvm/kvm"
)

// region puts the guest's memory at guest-physical address 0.
func (g *guest) region() kvm.UserspaceMemoryRegion {
	return kvm.UserspaceMemoryRegion{
		MemorySize:    uint64(len(g.memory)),
		UserspaceAddr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(g.memory)))),
	}
}
