// Package kvm answers what the kernel offers: it is Linux's KVM interface for
// x86-64, typed, and nothing more.
//
// There is one type for each kind of descriptor, [System] (/dev/kvm), [VM] and
// [VCPU], and one method for each ioctl, named after it without "Get":
// KVM_GET_REGS is [VCPU.Regs], KVM_SET_REGS [VCPU.SetRegs], KVM_CREATE_VM
// [System.CreateVM]. Structures have the kernel's layout and the kernel's field
// names in Go case; they are plain values, which can be compared, copied and
// encoded. The meaning of each call is that of the kernel's
// Documentation/virt/kvm/api.rst, to which the kernel's name leads.
//
// The package has no policy: it takes no decision, keeps no default and retries
// nothing, except that CreateVM goes again when it is interrupted. An [Observer]
// sees every call, for tests and for the curious. Where the kernel trusts the
// caller to have made a buffer large enough, the methods check that it is.
//
// # Errors
//
// An error reads "kvm: KVM_NAME: cause" and wraps the errno, so that
// errors.Is(err, unix.ENXIO) works. A closed descriptor answers unix.EBADF.
//
// # Concurrency
//
// The methods of System and VM are safe for concurrent use, Close included. The
// methods of a VCPU belong to one thread, the one that runs it
// (runtime.LockOSThread): KVM accepts others, at a cost, but the shared page is
// only theirs while the vCPU does not run. [VCPU.SetImmediateExit] is the
// exception and may be called from anywhere at any time.
//
// To stop a vCPU, call SetImmediateExit(true) and then send its thread a
// signal, in this order: Run returns unix.EINTR. SIGURG serves, since the Go
// runtime handles it already and takes a stray one for nothing.
package kvm
