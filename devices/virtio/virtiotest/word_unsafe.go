package virtiotest

import (
	"sync/atomic"
	"unsafe"
)

// loadWord and storeWord access the aligned word at gpa atomically, as a
// driver's virtio_load_acquire and virtio_store_release do.
func (m *Memory) loadWord(gpa uint64) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&m.ram[gpa : gpa+4][0])))
}

func (m *Memory) storeWord(gpa uint64, v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&m.ram[gpa : gpa+4][0])), v)
}
