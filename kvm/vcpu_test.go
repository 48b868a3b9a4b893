package kvm_test

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
)

func TestIOOut(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: []byte{
		0xb8, 0x34, 0x12, // mov ax, 0x1234
		0xe7, 0x42, // out 0x42, ax
		0xf4, // hlt
	}})
	g.Run(t, kvm.ExitIO)
	e := g.VCPU.IO()
	if !e.Out || e.Port != 0x42 || e.Size != 2 || e.Count != 1 || string(e.Data) != "\x34\x12" {
		t.Errorf("IO() = %+v", e)
	}
	g.Run(t, kvm.ExitHLT)
}

func TestIOIn(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: []byte{
		0xe4, 0x60, // in al, 0x60
		0xa2, 0x00, 0x20, // mov [0x2000], al
		0xf4, // hlt
	}})
	g.Run(t, kvm.ExitIO)
	e := g.VCPU.IO()
	if e.Out || e.Port != 0x60 || e.Size != 1 || len(e.Data) != 1 {
		t.Fatalf("IO() = %+v", e)
	}
	e.Data[0] = 0x5a
	g.Run(t, kvm.ExitHLT)
	if g.Memory[0x2000] != 0x5a {
		t.Errorf("the guest read %#x", g.Memory[0x2000])
	}
}

func TestIOString(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: []byte{
		0xfc,             // cld
		0xbe, 0x00, 0x20, // mov si, 0x2000
		0xba, 0xf8, 0x03, // mov dx, 0x3f8
		0xb9, 0x05, 0x00, // mov cx, 5
		0xf3, 0x6e, // rep outsb
		0xf4, // hlt
	}})
	copy(g.Memory[0x2000:], "hello")
	var got []byte
	for len(got) < 5 { // KVM may hand the string out in parts
		g.Run(t, kvm.ExitIO)
		e := g.VCPU.IO()
		if !e.Out || e.Port != 0x3f8 || e.Size != 1 || len(e.Data) != e.Count || e.Count == 0 {
			t.Fatalf("IO() = %+v", e)
		}
		got = append(got, e.Data...)
	}
	if string(got) != "hello" {
		t.Errorf("got %q", got)
	}
	g.Run(t, kvm.ExitHLT)
}

func TestMMIO(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: []byte{
		0xa1, 0x00, 0x90, // mov ax, [0x9000]
		0x40,             // inc ax
		0xa3, 0x04, 0x90, // mov [0x9004], ax
		0xf4, // hlt
	}})
	g.Run(t, kvm.ExitMMIO)
	e := g.VCPU.MMIO()
	if e.Write || e.Addr != 0x9000 || len(e.Data) != 2 {
		t.Fatalf("MMIO() = %+v", e)
	}
	copy(e.Data, []byte{0xff, 0x01})
	g.Run(t, kvm.ExitMMIO)
	e = g.VCPU.MMIO()
	if !e.Write || e.Addr != 0x9004 || string(e.Data) != "\x00\x02" {
		t.Errorf("MMIO() = %+v", e)
	}
	g.Run(t, kvm.ExitHLT)
}

func TestShutdown(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{})
	g.ProtectedMode(t, []byte{
		0x0f, 0x0b, // ud2
	})
	s := sregs(t, g.VCPU)
	s.IDT.Limit = 0 // no vector can be delivered, so the third fault ends it
	check(t, g.VCPU.SetSregs(&s))
	g.Run(t, kvm.ExitShutdown)
}

// spin is a guest that announces itself at port 0x10 and never exits again.
var spin = []byte{
	0xe6, 0x10, // out 0x10, al
	0xeb, 0xfe, // jmp $
}

// runner is a goroutine on its own thread that runs a vCPU until it is told to
// stop, as a VMM does it.
type runner struct {
	started chan int // the thread's id, sent before the first run
	stopped chan error
}

func startRunner(c *kvm.VCPU, stop func() bool) runner {
	r := runner{started: make(chan int, 1), stopped: make(chan error, 1)}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		r.started <- unix.Gettid()
		for {
			err := c.Run()
			if err == nil {
				continue
			}
			if !errors.Is(err, unix.EINTR) || stop() {
				r.stopped <- err
				return
			}
		}
	}()
	return r
}

func wait[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("no sign of %s", what)
		panic("unreachable")
	}
}

func TestKickSpinningGuest(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: spin})
	g.Run(t, kvm.ExitIO) // from here on it spins
	for range 20 {
		var mu sync.Mutex
		var told bool
		r := startRunner(g.VCPU, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return told
		})
		tid := wait(t, r.started, "the vCPU's thread")
		mu.Lock()
		told = true
		mu.Unlock()
		kvmtest.Kick(g.VCPU, tid)
		if err := wait(t, r.stopped, "the end of Run"); err != unix.EINTR {
			t.Fatalf("Run: %v, want EINTR as it is", err)
		}
		g.VCPU.SetImmediateExit(false)
	}
	if r := regs(t, g.VCPU); r.RIP != kvmtest.CodeAddr+2 {
		t.Errorf("the guest is at %#x", r.RIP)
	}
}

// TestKickHaltedGuest stops a vCPU that sleeps in the kernel, in HLT.
func TestKickHaltedGuest(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{
		IRQChip: true,
		Code:    []byte{0xf4}, // hlt, interrupts off
	})
	r := startRunner(g.VCPU, func() bool { return true })
	tid := wait(t, r.started, "the vCPU's thread")
	kvmtest.Kick(g.VCPU, tid)
	if err := wait(t, r.stopped, "the end of Run"); err != unix.EINTR {
		t.Errorf("Run: %v", err)
	}
}

// TestImmediateExit checks that the flag alone keeps the guest from going on,
// but not an exit from being completed.
func TestImmediateExit(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: []byte{
		0xe4, 0x60, // in al, 0x60
		0xa2, 0x00, 0x20, // mov [0x2000], al
		0xf4, // hlt
	}})
	g.VCPU.SetImmediateExit(true)
	if err := g.VCPU.Run(); err != unix.EINTR {
		t.Fatalf("Run: %v", err)
	}
	if r := regs(t, g.VCPU); r.RIP != kvmtest.CodeAddr {
		t.Errorf("the guest moved to %#x", r.RIP)
	}
	g.VCPU.SetImmediateExit(false)
	g.Run(t, kvm.ExitIO)
	g.VCPU.IO().Data[0] = 0x77
	g.VCPU.SetImmediateExit(true)
	if err := g.VCPU.Run(); err != unix.EINTR {
		t.Fatalf("Run: %v", err)
	}
	if r := regs(t, g.VCPU); r.RIP != kvmtest.CodeAddr+2 || byte(r.RAX) != 0x77 {
		t.Errorf("after completion at %#x, AL = %#x", r.RIP, byte(r.RAX))
	}
	g.VCPU.SetImmediateExit(false)
	g.Run(t, kvm.ExitHLT)
	if g.Memory[0x2000] != 0x77 {
		t.Errorf("the guest read %#x", g.Memory[0x2000])
	}
}

// TestCloseWaitsForRun closes a vCPU that another thread runs: Close returns
// once the vCPU was kicked, and the thread learns of it.
func TestCloseWaitsForRun(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: spin})
	g.Run(t, kvm.ExitIO)
	r := startRunner(g.VCPU, func() bool { return false })
	tid := wait(t, r.started, "the vCPU's thread")
	closed := make(chan error, 1)
	go func() { closed <- g.VCPU.Close() }()
	kvmtest.Kick(g.VCPU, tid)
	check(t, wait(t, closed, "the end of Close"))
	if err := wait(t, r.stopped, "the end of Run"); !errors.Is(err, unix.EBADF) {
		t.Errorf("Run: %v", err)
	}
}

// TestCloseTwiceAtOnce closes and kicks a vCPU from several goroutines.
func TestCloseTwiceAtOnce(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			g.VCPU.SetImmediateExit(true)
			if err := g.VCPU.Close(); err != nil {
				t.Error(err)
			}
			g.VCPU.SetImmediateExit(false)
		})
	}
	wg.Wait()
}

// TestExitAllocates holds the path of every exit to allocate nothing.
func TestExitAllocates(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: []byte{
		0xe6, 0x10, // out 0x10, al
		0xeb, 0xfc, // jmp to the out
	}})
	n := testing.AllocsPerRun(100, func() {
		if err := g.VCPU.Run(); err == nil && g.VCPU.IO().Port != 0x10 {
			t.Error("not at port 0x10")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations an exit", n)
	}
}

func TestSignalMask(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: []byte{0xf4}})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	// A blocked signal pends on this thread; only a vCPU whose own mask lets
	// it through is interrupted by it.
	const winch = uint64(1) << (unix.SIGWINCH - 1)
	block := unix.Sigset_t{Val: [16]uint64{winch}}
	var old unix.Sigset_t
	check(t, unix.PthreadSigmask(unix.SIG_BLOCK, &block, &old))
	defer func() { check(t, unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)) }()
	check(t, unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGWINCH))

	mask := ^winch
	check(t, g.VCPU.SetSignalMask(&mask))
	if err := g.VCPU.Run(); err != unix.EINTR {
		t.Errorf("Run with the signal let through: %v", err)
	}
	check(t, g.VCPU.SetSignalMask(nil))
	g.Run(t, kvm.ExitHLT)
}

func TestSyncRegs(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	kvmtest.NeedCap(t, s, kvm.CapSyncRegs)
	g := kvmtest.New(t, s, kvmtest.Config{Code: []byte{
		0x40, // inc ax
		0xf4, // hlt
	}})
	all := uint64(kvm.SyncX86Regs | kvm.SyncX86Sregs | kvm.SyncX86Events)
	g.VCPU.SetSyncRegsMasks(all, 0)
	g.Run(t, kvm.ExitHLT)
	sr := *g.VCPU.SyncRegs()
	if want := regs(t, g.VCPU); sr.Regs != want || want.RAX != 1 {
		t.Errorf("registers %+v, want %+v", sr.Regs, want)
	}
	if want := sregs(t, g.VCPU); sr.Sregs != want {
		t.Errorf("special registers %+v, want %+v", sr.Sregs, want)
	}
	if want, err := g.VCPU.VCPUEvents(); err != nil || sr.Events != want {
		t.Errorf("events %+v, want %+v (%v)", sr.Events, want, err)
	}

	// And back in: run the same code with another AX.
	g.VCPU.SyncRegs().Regs.RIP = kvmtest.CodeAddr
	g.VCPU.SyncRegs().Regs.RAX = 41
	g.VCPU.SetSyncRegsMasks(all, kvm.SyncX86Regs)
	g.Run(t, kvm.ExitHLT)
	if rax := regs(t, g.VCPU).RAX; rax != 42 {
		t.Errorf("RAX = %d", rax)
	}
}

func TestSingleStep(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	kvmtest.NeedCap(t, s, kvm.CapSetGuestDebug)
	g := kvmtest.New(t, s, kvmtest.Config{Code: []byte{
		0x40, // inc ax
		0x40, // inc ax
		0xf4, // hlt
	}})
	check(t, g.VCPU.SetGuestDebug(kvm.GuestDebug{Control: kvm.GuestDebugEnable | kvm.GuestDebugSingleStep}))
	for i := range uint64(2) {
		g.Run(t, kvm.ExitDebug)
		if e := g.VCPU.Debug(); e.Exception != 1 || e.PC != kvmtest.CodeAddr+1+i {
			t.Errorf("step %d: %+v", i, e)
		}
	}
	check(t, g.VCPU.SetGuestDebug(kvm.GuestDebug{}))
	g.Run(t, kvm.ExitHLT)
}

func TestTranslate(t *testing.T) {
	_, g := newVCPU(t)
	tr, err := g.VCPU.Translate(0x1234)
	if err != nil || tr.Valid == 0 || tr.PhysicalAddress != 0x1234 {
		t.Errorf("without paging: %+v, %v", tr, err)
	}

	// Long mode: the first 2 MiB at 0, the second also, the third not there.
	const pml4, pdpt, directory = 0x2000, 0x3000, 0x4000
	putEntry := func(at int, v uint64) { binary.LittleEndian.PutUint64(g.Memory[at:], v) }
	putEntry(pml4, pdpt|3)
	putEntry(pdpt, directory|3)
	putEntry(directory, 0x83) // present, writable, large
	putEntry(directory+8, 0x83)
	g.ProtectedMode(t, nil)
	s := sregs(t, g.VCPU)
	s.CS.DB, s.CS.L = 0, 1
	s.CR3 = pml4
	s.CR4 |= 1 << 5               // PAE
	s.CR0 |= 1<<31 | 1<<16 | 1<<0 // PG, WP, PE
	s.EFER |= 1<<10 | 1<<8        // LMA, LME
	check(t, g.VCPU.SetSregs(&s))
	tr, err = g.VCPU.Translate(0x200123)
	if err != nil || tr.Valid == 0 || tr.PhysicalAddress != 0x123 || tr.LinearAddress != 0x200123 {
		t.Errorf("mapped: %+v, %v", tr, err)
	}
	if tr, err = g.VCPU.Translate(0x400000); err != nil || tr.Valid != 0 {
		t.Errorf("not mapped: %+v, %v", tr, err)
	}
}

func TestVCPUEnableCap(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	kvmtest.NeedCap(t, s, kvm.CapEnforcePVFeatureCPUID)
	g := kvmtest.New(t, s, kvmtest.Config{})
	check(t, g.VCPU.EnableCap(kvm.EnableCap{Cap: kvm.CapEnforcePVFeatureCPUID, Args: [4]uint64{1}}))
	if err := g.VCPU.EnableCap(kvm.EnableCap{Cap: kvm.CapIRQChip}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("EnableCap of one that cannot be enabled: %v", err)
	}
}

func TestCreateVCPUErrors(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{})
	if _, err := g.VM.CreateVCPU(0); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a second vCPU 0: %v", err)
	}
	for _, id := range []int{-1, 1 << 20} {
		if _, err := g.VM.CreateVCPU(id); !errors.Is(err, unix.EINVAL) {
			t.Errorf("vCPU %d: %v", id, err)
		}
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func regs(t testing.TB, c *kvm.VCPU) kvm.Regs {
	t.Helper()
	r, err := c.Regs()
	check(t, err)
	return r
}

func sregs(t testing.TB, c *kvm.VCPU) kvm.Sregs {
	t.Helper()
	s, err := c.Sregs()
	check(t, err)
	return s
}
