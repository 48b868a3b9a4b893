package vmm

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
)

// The tests of this file stand between the package and the kernel: they see
// every ioctl that a machine makes, or make one fail.

var kvmObserver atomic.Pointer[kvm.Observer]

// Every machine of the test binary is observed; what with, a test decides at
// any time.
func init() {
	openKVM = func(path string) (*kvm.System, error) {
		s, err := kvm.Open(path)
		if err == nil {
			s.Observe(func(c kvm.Call) unix.Errno {
				if o := kvmObserver.Load(); o != nil {
					return (*o)(c)
				}
				return 0
			})
		}
		return s, err
	}
}

// observe has o told of every ioctl of every machine until stop is called or
// the test ends.
func observe(t testing.TB, o kvm.Observer) (stop func()) {
	t.Helper()
	if !kvmObserver.CompareAndSwap(nil, &o) {
		t.Fatal("another test observes")
	}
	stop = func() { kvmObserver.CompareAndSwap(&o, nil) }
	t.Cleanup(stop)
	return stop
}

// ioctlTrace is the ioctls made by a number of machines, in order.
type ioctlTrace struct {
	mu    sync.Mutex
	calls []kvm.Call // guarded by mu
}

func (r *ioctlTrace) record(c kvm.Call) unix.Errno {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
	return 0
}

// all is the trace so far.
func (r *ioctlTrace) all() []kvm.Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// of is the trace of one machine.
func (r *ioctlTrace) of(vm *VM) []kvm.Call {
	var calls []kvm.Call
	for _, c := range r.all() {
		if c.VM == vm.shell.vm.FD() {
			calls = append(calls, c)
		}
	}
	return calls
}

// awaitCall waits until each vCPU of a machine has made such a call.
func (r *ioctlTrace) awaitCall(t testing.TB, vm *VM, what which) {
	t.Helper()
	missing := func() bool {
		calls := r.of(vm)
		for _, c := range vm.shell.vcpus {
			if !slices.ContainsFunc(calls, func(k kvm.Call) bool { return k.VCPU == c.id && what.matches(k) }) {
				return true
			}
		}
		return false
	}
	for deadline := time.Now().Add(patience); missing(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("no %v on every vCPU", what)
		}
	}
}

// traceDuring records what f does.
func traceDuring(t testing.TB, f func(r *ioctlTrace)) *ioctlTrace {
	t.Helper()
	r := new(ioctlTrace)
	stop := observe(t, r.record)
	f(r)
	stop()
	return r
}

// which says which calls are meant: those of a name and, if arg is not
// negative, those whose argument's low half is arg.
type which struct {
	name string
	arg  int64
}

func call(name string) which                     { return which{name, -1} }
func callWith[T ~uint32](name string, a T) which { return which{name, int64(a)} }

func (w which) matches(c kvm.Call) bool {
	return c.Name == w.name && (w.arg < 0 || int64(uint32(c.Arg)) == w.arg)
}

func (w which) String() string {
	if w.arg < 0 {
		return w.name
	}
	return fmt.Sprintf("%s(%d)", w.name, w.arg)
}

// ofVCPU are the calls made on one vCPU and on the VM as a whole.
func ofVCPU(calls []kvm.Call, id int) (of []kvm.Call) {
	for _, c := range calls {
		if c.VCPU == id || c.VCPU < 0 {
			of = append(of, c)
		}
	}
	return of
}

// first and last are positions in a trace, -1 if there is no such call.
func first(calls []kvm.Call, w which) int { return slices.IndexFunc(calls, w.matches) }

func last(calls []kvm.Call, w which) int {
	for i := len(calls) - 1; i >= 0; i-- {
		if w.matches(calls[i]) {
			return i
		}
	}
	return -1
}

// orderRule says that all calls of one kind come before all of another. Both
// have to be there.
type orderRule struct {
	before, after which
	why           string
}

// onlyLead says that only the first vCPU makes the later call.
func (r orderRule) onlyLead() bool {
	// Where offsets of the counter have no effect, only the first is asked.
	return r.after == call("KVM_SET_DEVICE_ATTR") || r.after == deadline
}

func checkOrder(t *testing.T, calls []kvm.Call, rules ...orderRule) {
	t.Helper()
	for _, r := range rules {
		b, a := last(calls, r.before), first(calls, r.after)
		if b < 0 || a < 0 || b >= a {
			t.Errorf("%v (last is number %d) must come before %v (first is number %d): %s", r.before, b, r.after, a, r.why)
		}
	}
}
