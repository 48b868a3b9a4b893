// Package kvmtest builds micro-guests, virtual machines of a few bytes of
// machine code, for tests that need /dev/kvm.
package kvmtest

import (
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
)

// CodeAddr is where a guest's code is put and begins.
const CodeAddr = 0x1000

// DefaultMemory is the bytes of memory, from guest-physical address 0, that a
// guest has if its configuration does not say. What lies above is MMIO.
const DefaultMemory = 0x8000

// runTimeout is how long a guest may run without an exit before its test fails.
const runTimeout = 20 * time.Second

// Skip skips the test for want of what reason names. With FORKVM_REQUIRE_KVM=1
// in the environment it fails the test instead, so that a machine that is meant
// to run everything does not pass by skipping.
func Skip(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("FORKVM_REQUIRE_KVM") == "1" {
		t.Fatalf("FORKVM_REQUIRE_KVM=1, but %s", reason)
	}
	t.Skip(reason)
}

// OpenOrSkip opens /dev/kvm for the length of the test, and skips the test
// where there is none or it is not for us.
func OpenOrSkip(t testing.TB) *kvm.System {
	t.Helper()
	s, err := kvm.Open("")
	if err != nil {
		Skip(t, err.Error())
	}
	t.Cleanup(func() { closeOrFail(t, s) })
	return s
}

// NeedCap skips the test unless the system or VM has each of the capabilities.
func NeedCap(t testing.TB, s interface{ CheckExtension(kvm.Cap) (int, error) }, caps ...kvm.Cap) {
	t.Helper()
	for _, c := range caps {
		n, err := s.CheckExtension(c)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			Skip(t, "this KVM lacks "+c.String())
		}
	}
}

// Config is what a guest is made of. The zero value has 32 KiB of memory, one
// vCPU and no interrupt controllers.
type Config struct {
	Code    []byte // put at CodeAddr; real-mode entry
	Memory  int    // bytes, a multiple of the page size; 0 for DefaultMemory
	Flags   uint32 // of the memory slot
	IRQChip bool   // interrupt controllers and PIT in the kernel
	// Prepare is called before any vCPU exists, if not nil.
	Prepare func(*kvm.VM)
}

// Guest is a VM with one vCPU whose memory is slot 0.
type Guest struct {
	VM     *kvm.VM
	VCPU   *kvm.VCPU
	Memory []byte // guest-physical address 0 onwards
}

// New builds a guest, which begins in real mode at CodeAddr with its stack
// below it. It is closed when the test ends.
func New(t testing.TB, s *kvm.System, c Config) *Guest {
	t.Helper()
	if c.Memory == 0 {
		c.Memory = DefaultMemory
	}
	vm, err := s.CreateVM()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOrFail(t, vm) })

	g := &Guest{VM: vm, Memory: mapMemory(t, c.Memory)}
	must(t, vm.SetUserMemoryRegion(g.Region(c.Flags)))
	must(t, vm.SetTSSAddr(0xfffbd000))
	if c.IRQChip {
		must(t, vm.CreateIRQChip())
		must(t, vm.CreatePIT2(kvm.PITConfig{Flags: kvm.PITSpeakerDummy}))
	}
	if c.Prepare != nil {
		c.Prepare(vm)
	}
	g.VCPU, err = vm.CreateVCPU(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOrFail(t, g.VCPU) })
	g.RealMode(t, c.Code)
	return g
}

// RealMode puts code at CodeAddr and the vCPU there in real mode, all segments
// at 0.
func (g *Guest) RealMode(t testing.TB, code []byte) {
	t.Helper()
	copy(g.Memory[CodeAddr:], code)
	s, err := g.VCPU.Sregs()
	if err != nil {
		t.Fatal(err)
	}
	s.CS.Base, s.CS.Selector = 0, 0
	must(t, g.VCPU.SetSregs(&s))
	must(t, g.VCPU.SetRegs(&kvm.Regs{RIP: CodeAddr, RSP: CodeAddr, RFLAGS: 2}))
}

// ProtectedMode puts code at CodeAddr and the vCPU there in 32-bit protected
// mode without paging, at privilege level 0, all segments flat.
func (g *Guest) ProtectedMode(t testing.TB, code []byte) {
	t.Helper()
	g.RealMode(t, code)
	s, err := g.VCPU.Sregs()
	if err != nil {
		t.Fatal(err)
	}
	flat := kvm.Segment{Limit: 0xffffffff, Selector: 0x10, Type: 3, Present: 1, DB: 1, S: 1, G: 1}
	s.DS, s.ES, s.FS, s.GS, s.SS = flat, flat, flat, flat, flat
	s.CS = flat
	s.CS.Selector, s.CS.Type = 0x08, 0xb
	s.CR0 |= 1
	must(t, g.VCPU.SetSregs(&s))
}

// Run runs the vCPU until it exits, and fails the test if the reason is not the
// one wanted or none comes.
func (g *Guest) Run(t testing.TB, want kvm.ExitReason) {
	t.Helper()
	if err := g.RunOnce(t); err != nil {
		t.Fatalf("run: %v", err)
	}
	if got := g.VCPU.ExitReason(); got != want {
		regs, _ := g.VCPU.Regs()
		t.Fatalf("exit reason %v, want %v (%+v, registers %+v)", got, want, g.VCPU.InternalError(), regs)
	}
}

// RunOnce runs the vCPU until Run returns for another reason than a signal, and
// fails the test if that takes too long.
func (g *Guest) RunOnce(t testing.TB) error {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var late atomic.Bool
	tid := unix.Gettid()
	watchdog := time.AfterFunc(runTimeout, func() {
		late.Store(true)
		Kick(g.VCPU, tid)
	})
	defer watchdog.Stop()
	for {
		err := g.VCPU.Run()
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
		if late.Load() {
			t.Fatalf("no exit within %v", runTimeout)
		}
	}
}

// Kick makes the Run of the vCPU on thread tid of this process return, now or
// as soon as it is called, until SetImmediateExit(false).
func Kick(c *kvm.VCPU, tid int) {
	c.SetImmediateExit(true)
	// ESRCH: the thread is gone, and nothing runs.
	_ = unix.Tgkill(unix.Getpid(), tid, unix.SIGURG)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func closeOrFail(t testing.TB, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
