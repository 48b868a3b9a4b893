package kvm

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// descriptor is an open file of KVM. Its lock is held shared by each ioctl and
// exclusively by close: without it a call that races with close could reach
// whatever file was given the same number next, such as another VM.
type descriptor struct {
	mu sync.RWMutex
	fd int // -1 once closed; guarded by mu

	observed *observed // nil outside of tests; guarded by mu
}

// observedBy is who is told of the descriptor's ioctls, nil if nobody is.
func (d *descriptor) observedBy() *observed {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.observed
}

// number is the descriptor's number, -1 once closed.
func (d *descriptor) number() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.fd
}

// close closes the file when no ioctl is in flight. Only the first call does
// anything.
func (d *descriptor) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fd < 0 {
		return nil
	}
	fd := d.fd
	d.fd = -1
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("kvm: close: %w", err)
	}
	return nil
}

// call issues an ioctl whose argument is a number and returns its result.
func (d *descriptor) call(r request, arg uintptr) (int, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd < 0 {
		return -1, r.failed(unix.EBADF)
	}
	if errno := d.observed.ask(r, uint64(arg)); errno != 0 {
		return -1, r.failed(errno)
	}
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), r.number, arg)
	if errno != 0 {
		return -1, r.failed(errno)
	}
	return int(n), nil
}

// exchange issues an ioctl whose argument is a structure, read or written by
// the kernel, and returns its result. A nil p is passed on as such.
//
// The conversion to uintptr stands inside the call of Syscall: only there does
// the compiler keep *p alive and in place until the kernel is done.
func exchange[T any](d *descriptor, r request, p *T) (int, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd < 0 {
		return -1, r.failed(unix.EBADF)
	}
	if d.observed != nil {
		if errno := d.observed.ask(r, firstWord(p)); errno != 0 {
			return -1, r.failed(errno)
		}
	}
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), r.number, uintptr(unsafe.Pointer(p)))
	if errno != 0 {
		return -1, r.failed(errno)
	}
	return int(n), nil
}

// firstWord is the first 8 bytes of *p, 0 if it has fewer.
func firstWord[T any](p *T) uint64 {
	if p == nil || unsafe.Sizeof(*p) < 8 {
		return 0
	}
	return *(*uint64)(unsafe.Pointer(p))
}

// newArray allocates what the kernel declares as {u32 n, pad; E entries[n]} in
// one aligned buffer. The entries alias it. E holds no pointer and its size is
// a multiple of 8.
func newArray[E any](n int) (buf []uint64, entries []E) {
	var e E
	buf = make([]uint64, 1+n*int(unsafe.Sizeof(e))/8)
	buf[0] = uint64(uint32(n))
	return buf, unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(buf[1:]))), n)
}

// dirtyLog reads the log of a slot into a bitmap large enough for it. The
// field of the structure is a real pointer, so the bitmap is kept and tracked
// with it.
func (d *descriptor) dirtyLog(slot uint32, bitmap []uint64) error {
	_, err := exchange(d, reqGetDirtyLog, &dirtyLog{
		slot:   slot,
		bitmap: unsafe.Pointer(unsafe.SliceData(bitmap)),
	})
	return err
}

// clearDirtyLog is dirtyLog for KVM_CLEAR_DIRTY_LOG.
func (d *descriptor) clearDirtyLog(slot uint32, first uint64, pages uint32, bitmap []uint64) error {
	_, err := exchange(d, reqClearDirtyLog, &clearDirtyLog{
		slot:      slot,
		numPages:  pages,
		firstPage: first,
		bitmap:    unsafe.Pointer(unsafe.SliceData(bitmap)),
	})
	return err
}

// hasDeviceAttr asks whether a descriptor has an attribute.
func (d *descriptor) hasDeviceAttr(group uint32, attr uint64) error {
	_, err := exchange(d, reqHasDeviceAttr, &deviceAttr{group: group, attr: attr})
	return err
}

// deviceAttr reads an attribute, which on x86 is always a u64.
func (d *descriptor) deviceAttr(group uint32, attr uint64) (value uint64, err error) {
	_, err = exchange(d, reqGetDeviceAttr, &deviceAttr{group: group, attr: attr, addr: unsafe.Pointer(&value)})
	return value, err
}

// setDeviceAttr writes an attribute, which on x86 is always a u64.
func (d *descriptor) setDeviceAttr(group uint32, attr, value uint64) error {
	_, err := exchange(d, reqSetDeviceAttr, &deviceAttr{group: group, attr: attr, addr: unsafe.Pointer(&value)})
	return err
}
