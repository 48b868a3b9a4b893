package vmm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/kvm/kvmtest"
)

// The guests of this file are a few bytes of code that run on any /dev/kvm,
// emulated ones included. They are entered as a kernel would be.

var (
	// guestCounter increments the 64-bit word at counterAddr for ever.
	guestCounter = []byte{
		0x48, 0xc7, 0xc7, 0, 0, 0x30, 0, // mov rdi, 0x300000
		0x48, 0xff, 0x07, // inc qword [rdi]
		0xeb, 0xfb, // jmp back
	}
	// guestGreeter writes "hi" to the serial port and resets the machine.
	guestGreeter = []byte{
		0x66, 0xba, 0xf8, 0x03, // mov dx, 0x3f8
		0xb0, 'h', 0xee, // out dx, al
		0xb0, 'i', 0xee,
		0xb0, 0xfe, 0xe6, 0x64, // out 0x64, 0xfe
		0xeb, 0xfe, // jmp $
	}
	// guestTripleFault loads an empty IDT and faults.
	guestTripleFault = []byte{
		0x6a, 0, 0x6a, 0, // push 0; push 0
		0x0f, 0x01, 0x1c, 0x24, // lidt [rsp]
		0x0f, 0x0b, // ud2
	}
	// guestHalt halts with interrupts off.
	guestHalt = []byte{0xfa, 0xf4, 0xeb, 0xfe}
	// guestReader reads the missing port 0x1234 and stores what it got.
	guestReader = []byte{
		0x66, 0xba, 0x34, 0x12, // mov dx, 0x1234
		0xed,                            // in eax, dx
		0x48, 0xc7, 0xc7, 0, 0, 0x30, 0, // mov rdi, 0x300000
		0x89, 0x07, // mov [rdi], eax
		0xb0, 0xfe, 0xe6, 0x64, // out 0x64, 0xfe
		0xeb, 0xfe,
	}
)

const counterAddr = 0x300000

func startMicro(t testing.TB, code []byte, edit ...func(*Config)) *VM {
	t.Helper()
	kvmtest.OpenOrSkip(t)
	path := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(path, elfKernel(code), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Kernel: path, Memory: MinMemory, Bare: true}
	for _, f := range edit {
		f(&cfg)
	}
	vm, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeVM(t, vm) })
	return vm
}

func forkAndClose(t testing.TB, vm *VM, n int) {
	t.Helper()
	children, err := vm.Fork(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range children {
		closeVM(t, c)
	}
}

func closeVM(t testing.TB, vm *VM) {
	t.Helper()
	if err := vm.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// counter reads the guest's counter. The machine must be paused, or the value
// is merely recent.
func counter(t testing.TB, vm *VM) uint64 {
	t.Helper()
	p, err := vm.mem.Slice(counterAddr, 8)
	if err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(p)
}

// awaitCounter returns once the guest has counted past n.
func awaitCounter(t testing.TB, vm *VM, n uint64) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		if err := vm.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		now := counter(t, vm)
		if err := vm.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if now > n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the guest counts no further than %d", now)
		}
		runtime.Gosched()
	}
}

func TestConsoleAndReset(t *testing.T) {
	var out bytes.Buffer
	vm := startMicro(t, guestGreeter, func(c *Config) { c.Console = &out })
	if err := vm.Wait(t.Context()); !errors.Is(err, ErrReset) {
		t.Errorf("Wait: %v, want ErrReset", err)
	}
	if out.String() != "hi" || string(vm.ConsoleTail()) != "hi" {
		t.Errorf("console got %q, tail is %q", out.String(), vm.ConsoleTail())
	}
}

func TestTripleFaultIsReported(t *testing.T) {
	vm := startMicro(t, guestTripleFault)
	err := vm.Wait(t.Context())
	// A software KVM may give up on the fault instead of delivering it.
	if !errors.Is(err, ErrReset) && !errors.Is(err, ErrCrash) {
		t.Errorf("Wait: %v, want ErrReset or ErrCrash", err)
	}
	if errors.Is(err, ErrCrash) && !strings.Contains(err.Error(), "bytes at rip:") {
		t.Errorf("no registers in %v", err)
	}
}

func TestMissingPortReadsOnesAndIsCounted(t *testing.T) {
	var traced []string
	vm := startMicro(t, guestReader, func(c *Config) {
		c.Trace = func(e TraceEvent) { traced = append(traced, e.String()) }
	})
	if err := vm.Wait(t.Context()); !errors.Is(err, ErrReset) {
		t.Fatal(err)
	}
	if got := counter(t, vm); got != 0xffffffff {
		t.Errorf("the guest read %#x", got)
	}
	if s := vm.Stats(); s.UnmatchedRead != 1 || s.PIORead != 1 || s.PIOWrite != 1 {
		t.Errorf("stats %+v", s)
	}
	if len(traced) != 2 || traced[0] != "vcpu0 IO read 0x1234 [ff ff ff ff]" {
		t.Errorf("trace %q", traced)
	}
}

func TestPauseStopsTheGuestAndResumeContinues(t *testing.T) {
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 100)
	for range 2 { // both are idempotent
		if err := vm.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	first := counter(t, vm)
	if err := vm.shell.onAll(nil, func(*vcpu) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if second := counter(t, vm); second != first {
		t.Errorf("paused at %d, then %d", first, second)
	}
	for range 2 {
		if err := vm.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	awaitCounter(t, vm, first)
}

func TestScenarioB24ForkGoesOnFromTheSameState(t *testing.T) {
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 100)
	if err := vm.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	at := counter(t, vm)
	children, err := vm.Fork(t.Context(), 4)
	if err != nil {
		t.Fatal(err)
	}
	if got := counter(t, vm); got != at {
		t.Errorf("the fork of a paused parent let it run from %d to %d", at, got)
	}
	for _, c := range children {
		awaitCounter(t, c, at)
	}
	if err := vm.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitCounter(t, vm, at)

	// What one writes, nobody else sees.
	const mark = 0x310000
	for i, m := range append(children, vm) {
		p, err := m.mem.Slice(mark, 1)
		if err != nil {
			t.Fatal(err)
		}
		p[0] = byte(i + 1)
	}
	for i, m := range append(children, vm) {
		if p, _ := m.mem.Slice(mark, 1); p[0] != byte(i+1) {
			t.Errorf("machine %d sees the mark of %d", i, p[0])
		}
	}
	// A child of a child, with its parent and grandparent gone.
	if err := children[0].Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	at = counter(t, children[0])
	grand, err := children[0].Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range children {
		closeVM(t, c)
	}
	closeVM(t, vm)
	awaitCounter(t, grand[0], at)
	closeVM(t, grand[0])
}

// TestForkStateIsExact restores a machine of two vCPUs and reads its state
// back before it runs.
func TestForkStateIsExact(t *testing.T) {
	vm := startMicro(t, guestCounter, func(c *Config) { c.VCPUs = 2 })
	awaitCounter(t, vm, 100)
	if err := vm.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	image, err := vm.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	table, onDisk, err := image.retain()
	if err != nil {
		t.Fatal(err)
	}
	defer table.Release()
	shell, err := image.pool.take()
	if err != nil {
		t.Fatal(err)
	}
	child, err := newVM(image.cfg, time.Now(), shell, table, onDisk)
	if err != nil {
		t.Fatal(err)
	}
	defer closeVM(t, child)
	saved := image.state.kvm
	var again *kvmState
	err = child.onLead(func(lead *vcpu) (err error) {
		if err = shell.restoreKVM(lead, saved); err == nil {
			again, err = shell.saveKVM(lead, image.state.msrs)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := compareStates(saved, again); diff != "" {
		t.Errorf("state after a restore differs (-saved +restored):\n%s", diff)
	}
	if apart := clocksApart(saved, again); apart > 2*time.Millisecond {
		t.Errorf("counter and clock went %v apart", apart)
	}
	if !bytes.Equal(child.mem.ram, vm.mem.ram) {
		t.Error("memory differs")
	}
}

// TestScenarioM31CloseDuringCapture races the two: a capture either fails or is of the
// machine as it was, not of one whose devices were reset under its hands.
func TestScenarioM31CloseDuringCapture(t *testing.T) {
	const statusRegister, acknowledge = 0x70, 1
	for range 50 {
		vm := startMicro(t, guestHalt)
		vm.mmio.Write(virtioAddr(slotRNG)+statusRegister, []byte{acknowledge, 0, 0, 0})
		closed := make(chan struct{})
		go func() { vm.Close(); close(closed) }()
		image, err := vm.Capture(t.Context())
		<-closed
		if err != nil {
			if !errors.Is(err, ErrClosed) {
				t.Fatal(err)
			}
			continue
		}
		if got := image.state.board.Virtio[slotRNG].Status; got != acknowledge {
			t.Errorf("captured a device of status %d", got)
		}
		image.Close()
	}
}

func TestScenarioP06ForksAndPausesTakeTurns(t *testing.T) {
	vm := startMicro(t, guestCounter)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if i%4 == 0 {
				if err := errors.Join(vm.Pause(t.Context()), vm.Resume(t.Context())); err != nil {
					t.Error(err)
				}
				return
			}
			children, err := vm.Fork(t.Context(), 1)
			if err != nil {
				t.Error(err)
				return
			}
			awaitCounter(t, children[0], 0)
			closeVM(t, children[0])
		})
	}
	wg.Wait()
	awaitCounter(t, vm, counter(t, vm))
}

func TestScenarioM31CloseIsBoundedWhateverTheGuestDoes(t *testing.T) {
	for name, code := range map[string][]byte{"spins": guestCounter, "halted": guestHalt} {
		vm := startMicro(t, code)
		done := make(chan struct{})
		go func() { closeVM(t, vm); closeVM(t, vm); close(done) }()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: Close hangs", name)
		}
		if err := vm.Wait(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: Wait after Close: %v", name, err)
		}
		if _, err := vm.Fork(t.Context(), 1); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: Fork after Close: %v", name, err)
		}
	}
}

func TestContextEndsWaiting(t *testing.T) {
	vm := startMicro(t, guestHalt)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := vm.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: %v", err)
	}
	vm.turn.take()
	if _, err := vm.Capture(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Capture: %v", err)
	}
	vm.turn.give()
}

// TestScenarioM31NothingIsLeftBehind forks and closes 200 times and counts what the
// process holds.
func TestScenarioM31NothingIsLeftBehind(t *testing.T) {
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 10)
	cycle := func() { forkAndClose(t, vm, 2) }
	cycle()
	before := holdings(t, vm)
	for range 100 {
		cycle()
	}
	sameHoldings(t, before, vm)
}
