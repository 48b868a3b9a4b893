package kvm_test

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
)

// recorder is an observer that remembers, and fails the calls it is told to.
type recorder struct {
	mu    sync.Mutex
	calls []kvm.Call            // guarded by mu
	fail  map[string]unix.Errno // by name; constant
}

func (r *recorder) observe(c kvm.Call) unix.Errno {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
	return r.fail[c.Name]
}

// count tells how many calls are like c, whatever their VM.
func (r *recorder) count(c kvm.Call) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, got := range r.calls {
		got.VM = c.VM
		if got == c {
			n++
		}
	}
	return n
}

func TestObserverSeesTheCallsOfAllDescriptors(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	var r recorder
	s.Observe(r.observe)
	g := kvmtest.New(t, s, kvmtest.Config{Code: []byte{0xe6, 0x80}, IRQChip: true}) // out 0x80, al
	g.Run(t, kvm.ExitIO)
	if _, err := g.VM.IRQChip(kvm.IOAPIC); err != nil {
		t.Fatal(err)
	}
	if _, err := g.VCPU.MSRs([]kvm.MSREntry{{Index: 0x10}, {Index: 0x1b}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []kvm.Call{
		{Name: "KVM_CREATE_VM", Kind: kvm.KindSystem, VCPU: -1},
		{Name: "KVM_CREATE_VCPU", Kind: kvm.KindVM, VCPU: -1, Arg: 0},
		{Name: "KVM_SET_TSS_ADDR", Kind: kvm.KindVM, VCPU: -1, Arg: 0xfffbd000},
		{Name: "KVM_GET_IRQCHIP", Kind: kvm.KindVM, VCPU: -1, Arg: kvm.IOAPIC},
		{Name: "KVM_GET_MSRS", Kind: kvm.KindVCPU, VCPU: 0, Arg: 2},
	} {
		if n := r.count(c); n != 1 {
			t.Errorf("%+v was seen %d times", c, n)
		}
	}
	if r.count(kvm.Call{Name: "KVM_RUN", Kind: kvm.KindVCPU}) == 0 {
		t.Error("KVM_RUN was not seen")
	}
	for _, c := range r.calls {
		if want := g.VM.FD(); c.Kind != kvm.KindSystem && c.VM != want || c.Kind == kvm.KindSystem && c.VM != -1 {
			t.Errorf("%+v: the VM is %d", c, want)
		}
	}
	s.Observe(nil)
	before := len(r.calls)
	if _, err := s.APIVersion(); err != nil {
		t.Fatal(err)
	}
	if len(r.calls) != before {
		t.Error("the observer was told after it was taken away")
	}
}

func TestObserverMakesCallsFail(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	g := kvmtest.New(t, s, kvmtest.Config{})
	r := recorder{fail: map[string]unix.Errno{
		"KVM_GET_API_VERSION": unix.EBUSY, "KVM_GET_CLOCK": unix.EIO, "KVM_GET_REGS": unix.ENOSPC, "KVM_RUN": unix.ENOMEM,
	}}
	s.Observe(r.observe)
	if _, err := g.VCPU.Regs(); err != nil {
		t.Errorf("the vCPU of before: %v", err)
	}
	g = kvmtest.New(t, s, kvmtest.Config{})
	for name, f := range map[string]func() error{
		"KVM_GET_API_VERSION": func() error { _, err := s.APIVersion(); return err },
		"KVM_GET_CLOCK":       func() error { _, err := g.VM.Clock(); return err },
		"KVM_GET_REGS":        func() error { _, err := g.VCPU.Regs(); return err },
		"KVM_RUN":             g.VCPU.Run,
	} {
		err := f()
		if !errors.Is(err, r.fail[name]) || err.Error() != "kvm: "+name+": "+r.fail[name].Error() {
			t.Errorf("%s: %v, want %v", name, err, r.fail[name])
		}
	}
	r.fail["KVM_RUN"] = unix.EINTR
	for _, immediate := range []bool{true, false} {
		g.VCPU.SetImmediateExit(immediate)
		_ = g.VCPU.Run()
		if c := r.calls[len(r.calls)-1]; c.Name != "KVM_RUN" || (c.Arg == 1) != immediate {
			t.Errorf("immediate_exit %v is told as %+v", immediate, c)
		}
	}
	if err := g.VCPU.Run(); err != unix.EINTR {
		t.Errorf("Run: %v, want EINTR as it is", err)
	}
}

// TestCreateVMInterrupted has KVM_CREATE_VM answer EINTR with no signal in
// sight, as it does while the machine is busy.
func TestCreateVMInterrupted(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	for _, interruptions := range []int{0, 1, 5} {
		left := interruptions
		s.Observe(func(c kvm.Call) unix.Errno {
			if c.Name != "KVM_CREATE_VM" || left == 0 {
				return 0
			}
			left--
			return unix.EINTR
		})
		vm, err := s.CreateVM()
		if err != nil || left != 0 {
			t.Errorf("after %d interruptions: %v", interruptions, err)
			continue
		}
		vm.Close()
	}
	var tries []kvm.Call
	s.Observe(func(c kvm.Call) unix.Errno {
		if c.Name != "KVM_CREATE_VM" {
			return 0
		}
		tries = append(tries, c)
		return unix.EINTR
	})
	if _, err := s.CreateVM(); !errors.Is(err, unix.EINTR) {
		t.Errorf("interrupted for ever: %v, want EINTR", err)
	}
	if len(tries) < 2 || len(tries) > 100 {
		t.Errorf("%d tries", len(tries))
	}
}
