package kvm

import (
	"sync/atomic"
	"unsafe"
)

// runPage is kvm_run, the start of the memory shared by kernel and VMM. The
// data of port IO lies behind it, in the second page.
type runPage struct {
	// request is {u8 request_interrupt_window, immediate_exit; u8 pad[2]}.
	// Other threads set immediate_exit while the kernel reads it, so the word
	// is only accessed atomically; the kernel never writes it.
	request                    uint32
	_                          uint32
	exitReason                 uint32
	readyForInterruptInjection uint8
	ifFlag                     uint8
	flags                      uint16
	cr8                        uint64
	apicBase                   uint64
	exit                       [256]byte // the union of what each exit tells
	validRegs                  uint64
	dirtyRegs                  uint64
	sync                       SyncRegs
	_                          [2048 - 520]byte
}

// runPageSize is the size of kvm_run.
const runPageSize = int(unsafe.Sizeof(runPage{}))

// Bits of runPage.request.
const (
	requestInterruptWindow = 1 << 0
	requestImmediateExit   = 1 << 8
)

// overlay sees kvm_run at the start of a mapping.
func overlay(page []byte) *runPage {
	_ = page[runPageSize-1]
	return (*runPage)(unsafe.Pointer(unsafe.SliceData(page)))
}

func (r *runPage) setImmediateExit(on bool) { r.setRequest(requestImmediateExit, on) }

// immediateExit is 1 if immediate_exit is set.
func (r *runPage) immediateExit() uint32 {
	return atomic.LoadUint32(&r.request) & requestImmediateExit / requestImmediateExit
}

func (r *runPage) setRequest(bit uint32, on bool) {
	if on {
		atomic.OrUint32(&r.request, bit)
	} else {
		atomic.AndUint32(&r.request, ^bit)
	}
}
