package virtio

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/forkvm/forkvm/devices"
)

// half is a 16-bit field that driver and device share. Go has no 16-bit
// atomics, so it is reached through the aligned 32-bit word that covers it.
type half struct {
	word  *uint32
	shift uint
}

// load reads the field with acquire semantics: what the driver wrote before
// it stored this value is visible afterwards.
func (h half) load() uint16 {
	return uint16(atomic.LoadUint32(h.word) >> h.shift)
}

// store replaces the field and is a full memory barrier. It is for a field in
// the low half of its word, of which the device is the only writer.
//
// A field that has the value already is not written: in a fork that would copy
// its page. Nor is a barrier needed then, for the driver has seen this value
// whenever it looked.
//
// The other half belongs to somebody else and may change at any time. Adding
// the difference leaves it alone without a loop that a guest could keep going:
// the sum of the low half neither carries nor borrows. Only if the guest
// breaks the rule and writes the field as well may its neighbour be off by
// one, which is the guest's own memory.
func (h half) store(v uint16) {
	if old := h.load(); old != v {
		atomic.AddUint32(h.word, uint32(v)-uint32(old))
	}
}

// ringPart is one of the three areas of a split ring: size bytes of guest
// memory at gpa. The slice is widened to whole aligned words, which are RAM
// as well because RAM comes in pages.
type ringPart struct {
	words []byte
	skip  uint64 // from the start of words to gpa
}

// mapRing slices the size bytes at gpa out of mem. gpa must be a multiple of
// align, a power of two.
func mapRing(mem devices.Memory, what string, gpa, size, align uint64) (ringPart, error) {
	if gpa%align != 0 {
		return ringPart{}, fmt.Errorf("virtio: queue: %s at %#x: not aligned to %d", what, gpa, align)
	}
	skip := gpa % 4
	n := (skip + size + 3) &^ 3
	if gpa+n < gpa {
		return ringPart{}, fmt.Errorf("virtio: queue: %s at %#x: address wraps", what, gpa)
	}
	b, err := mem.Slice(gpa-skip, n)
	if err != nil {
		return ringPart{}, fmt.Errorf("virtio: queue: %s: %w", what, err)
	}
	if uint64(len(b)) != n || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%4 != 0 {
		return ringPart{}, fmt.Errorf("virtio: queue: %s at %#x: memory is not word-aligned on the host", what, gpa)
	}
	return ringPart{words: b, skip: skip}, nil
}

// bytes are the n bytes at off.
func (r ringPart) bytes(off, n uint64) []byte {
	return r.words[r.skip+off:][:n:n]
}

// half is the 16-bit field at off, a multiple of 2.
func (r ringPart) half(off uint64) half {
	at := r.skip + off
	return half{word: r.wordAt(at &^ 3), shift: uint(at%4) * 8}
}

// word is the 32-bit word at off, which must be aligned.
func (r ringPart) word(off uint64) *uint32 {
	return r.wordAt(r.skip + off)
}

func (r ringPart) wordAt(at uint64) *uint32 {
	return (*uint32)(unsafe.Pointer(&r.words[at : at+4][0]))
}

// storeWord stores v with release semantics and is a full memory barrier: on
// x86 sync/atomic stores with XCHG. Loads of the driver's fields that follow
// in program order are not satisfied early, which NeedInterrupt and SetNotify
// rely on (section 2.7.7.2 and 2.7.10).
func storeWord(w *uint32, v uint32) { atomic.StoreUint32(w, v) }

// desc is the device's own copy of one descriptor (section 2.7.5).
type desc struct {
	addr  uint64
	len   uint32
	flags uint16
	next  uint16
}

const (
	descSize = 16

	descNext     = 1 // VIRTQ_DESC_F_NEXT
	descWrite    = 2 // VIRTQ_DESC_F_WRITE
	descIndirect = 4 // VIRTQ_DESC_F_INDIRECT
)

// readDesc copies descriptor i of table. Every field is loaded once: the
// guest may change it between the check and the use.
func readDesc(table []byte, i uint16) desc {
	b := table[uint64(i)*descSize:][:descSize]
	return desc{
		addr:  binary.LittleEndian.Uint64(b),
		len:   binary.LittleEndian.Uint32(b[8:]),
		flags: binary.LittleEndian.Uint16(b[12:]),
		next:  binary.LittleEndian.Uint16(b[14:]),
	}
}
