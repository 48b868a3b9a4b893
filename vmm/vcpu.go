package vmm

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
)

// ErrSIGURG is returned where the process ignores SIGURG: the signal that
// brings a vCPU out of the guest would be lost.
var ErrSIGURG = errors.New("the process ignores SIGURG, which forkvm needs to interrupt vCPUs")

func checkSIGURG() error {
	if signal.Ignored(unix.SIGURG) {
		return fmt.Errorf("vmm: %w", ErrSIGURG)
	}
	return nil
}

// vcpu runs one virtual CPU on a goroutine that owns its OS thread. All
// ioctls of the vCPU are made there: other goroutines hand in functions with
// do. It starts parked.
type vcpu struct {
	id  int
	kvm *kvm.VCPU

	// Set before the vCPU first runs: exit handles one exit, false parks the
	// vCPU for good; first is told when the first one comes.
	exit  func(*vcpu) bool
	fail  func(*vcpu, error)
	first func()

	counters exitCounters

	tscKHz uint32     // rate of its counter
	fresh  *vcpuState // of a vCPU that has not been used; nil if that was not looked at

	mu    sync.Mutex
	queue []func() // guarded by mu
	rests bool     // guarded by mu: the thread waits for wake
	gone  bool     // guarded by mu: the thread has left its loop

	wake   chan struct{} // capacity 1: the queue has something
	done   chan struct{} // closed when the thread is gone
	tid    atomic.Int64
	parked bool // owned by the thread

	threads int64 // share of the budget of that name
	quit    bool  // owned by the thread
}

// newVCPU starts the thread and makes the vCPU on it.
func newVCPU(vm *kvm.VM, id int) (*vcpu, error) {
	raiseProcs()
	c := &vcpu{
		id: id, parked: true,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if err := threads.resize(&c.threads, 1); err != nil {
		return nil, err
	}
	made := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, so no other
		// goroutine inherits a thread that a late kick aims at.
		runtime.LockOSThread()
		c.tid.Store(int64(unix.Gettid()))
		var err error
		c.kvm, err = vm.CreateVCPU(id)
		made <- err
		if err == nil {
			c.loop()
		}
		close(c.done)
	}()
	if err := <-made; err != nil {
		_ = threads.resize(&c.threads, 0)
		return nil, fmt.Errorf("vmm: vCPU %d: %w", id, err)
	}
	return c, nil
}

// loop alternates between the guest and the queue. The queue is looked at
// only after KVM_RUN was interrupted: by then KVM has completed the access of
// the exit before, so the registers are consistent.
func (c *vcpu) loop() {
	c.drain()
	for !c.quit {
		switch err := c.kvm.Run(); {
		case err == nil:
			if c.first != nil {
				c.first()
				c.first = nil
			}
			if !c.exit(c) {
				c.parked = true
				c.drain()
			}
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			// EINTR is a kick, or Go's own preemption signal, which is
			// the same one. EAGAIN is an application processor that got
			// its start-up IPI. The flag is cleared before the queue is
			// read, and set after it is filled: no kick is lost.
			c.counters.interrupted.Add(1)
			c.kvm.SetImmediateExit(false)
			c.drain()
		default:
			c.fail(c, fmt.Errorf("vmm: vCPU %d: KVM_RUN: %w", c.id, err))
			c.parked = true
			c.drain()
		}
	}
}

// runNothing makes the first KVM_RUN of a machine, which does not get to the
// guest. KVM starts a thread of its own in it, which takes longer than all the
// rest of a fork. It runs on the vCPU's thread.
func (c *vcpu) runNothing() error {
	c.kvm.SetImmediateExit(true)
	defer c.kvm.SetImmediateExit(false)
	// Some kernels answer ENOMEM if a signal disturbs the start of the thread.
	err := error(unix.ENOMEM)
	for n := 0; n < 8 && errors.Is(err, unix.ENOMEM); n++ {
		err = c.kvm.Run()
	}
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// drain runs what is queued, and while the vCPU is parked waits for more.
func (c *vcpu) drain() {
	for {
		c.mu.Lock()
		queue := c.queue
		c.queue = nil
		c.rests = len(queue) == 0 && !c.quit && c.parked
		c.gone = c.quit
		c.mu.Unlock()
		for _, f := range queue {
			f()
		}
		switch {
		case len(queue) > 0:
		case c.quit || !c.parked:
			return
		default:
			<-c.wake
		}
	}
}

// do runs f on the vCPU's thread, outside the guest, and waits for it. A
// running vCPU is interrupted for it and goes on afterwards. It reports false
// if the vCPU is gone.
func (c *vcpu) do(f func()) bool {
	ran := make(chan struct{})
	if !c.post(func() { f(); close(ran) }) {
		return false
	}
	<-ran
	return true
}

// doSoon is do for what takes about as long as it takes an idle processor to
// wake up. The caller is woken when it begins, and waits awake for its end, but
// not for long.
func (c *vcpu) doSoon(f func()) bool {
	if raiseProcs() == 1 {
		return c.do(f)
	}
	var over atomic.Bool
	begun, ran := make(chan struct{}), make(chan struct{})
	if !c.post(func() { close(begun); f(); over.Store(true); close(ran) }) {
		return false
	}
	<-begun
	for begin := time.Now(); !over.Load() && time.Since(begin) < 200*time.Microsecond; {
	}
	if !over.Load() {
		<-ran
	}
	return true
}

// post is do without waiting.
func (c *vcpu) post(f func()) bool {
	c.mu.Lock()
	if c.gone {
		c.mu.Unlock()
		return false
	}
	c.queue = append(c.queue, f)
	select {
	case c.wake <- struct{}{}:
	default:
	}
	if !c.rests {
		c.kick() // under mu, or the thread could go and kvm_run be unmapped
	}
	c.mu.Unlock()
	return true
}

// kick makes KVM_RUN return: at once if the thread is in it, or as soon as it
// enters. The order matters: a signal that arrives before KVM_RUN finds the
// flag set. The caller holds mu.
func (c *vcpu) kick() {
	c.kvm.SetImmediateExit(true)
	unix.Tgkill(os.Getpid(), int(c.tid.Load()), unix.SIGURG)
}

// park stops the vCPU outside the guest until unpark.
func (c *vcpu) park() { c.do(func() { c.parked = true }) }

// unpark lets the vCPU into the guest unless stopped says otherwise by then.
func (c *vcpu) unpark(stopped func() bool) { c.post(func() { c.enter(stopped) }) }

// enter is unpark on the vCPU's own thread. The guest is told that it stood
// still, so its watchdogs do not take the pause for a stall: KVM answers
// EINVAL for one without the KVM clock, which has none.
func (c *vcpu) enter(stopped func() bool) {
	_ = c.kvm.KVMClockCtrl()
	c.parked = stopped()
}

// close ends the thread and closes the vCPU.
func (c *vcpu) close() error {
	c.post(func() { c.quit = true })
	<-c.done
	_ = threads.resize(&c.threads, 0)
	return c.kvm.Close()
}
