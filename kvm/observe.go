package kvm

import "golang.org/x/sys/unix"

// Kind is a kind of descriptor.
type Kind int

// The kinds of descriptors that take ioctls.
const (
	KindSystem Kind = iota
	KindVM
	KindVCPU
)

// Call is an ioctl that is about to be issued.
type Call struct {
	Name string // the kernel's, such as KVM_SET_LAPIC
	Kind Kind   // of the descriptor that it is issued on
	VM   int    // number of the VM's descriptor; -1 of a call on a System
	VCPU int    // id of the vCPU; -1 of a call on a System or VM

	// Arg is the ioctl's argument where that is a number, and otherwise the
	// first 8 bytes of the structure that it points to: the number of entries
	// of a list, the id of an interrupt controller. It is 0 where there is no
	// argument or it is shorter. For KVM_RUN it is kvm_run.immediate_exit.
	Arg uint64
}

// Observer is told of every ioctl, on the thread that issues it. With an errno
// other than 0 the ioctl is not issued and fails with it, as if the kernel had
// answered so: tests inject faults this way. It must not call methods of the
// package.
type Observer func(Call) unix.Errno

// Observe has o told of the ioctls of the System from now on, and of those of
// the VMs made from it afterwards and their vCPUs. Nil, which is how a System
// begins, tells nobody.
func (s *System) Observe(o Observer) {
	s.fd.mu.Lock()
	defer s.fd.mu.Unlock()
	s.fd.observed = nil
	if o != nil {
		s.fd.observed = &observed{observer: o, kind: KindSystem, vm: -1, vcpu: -1}
	}
}

// observed is who is told of a descriptor's ioctls, and as what.
type observed struct {
	observer Observer
	kind     Kind
	vm, vcpu int
}

// ask returns the errno that the observer wants, if there is an observer.
func (o *observed) ask(r request, arg uint64) unix.Errno {
	if o == nil {
		return 0
	}
	return o.observer(Call{Name: r.name, Kind: o.kind, VM: o.vm, VCPU: o.vcpu, Arg: arg})
}

// ofVM is the same for a VM with that descriptor.
func (o *observed) ofVM(fd int) *observed {
	if o == nil {
		return nil
	}
	return &observed{observer: o.observer, kind: KindVM, vm: fd, vcpu: -1}
}

// ofVCPU is the same for a vCPU of the VM that o is of.
func (o *observed) ofVCPU(id int) *observed {
	if o == nil {
		return nil
	}
	return &observed{observer: o.observer, kind: KindVCPU, vm: o.vm, vcpu: id}
}
