package vmm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// everyVerb does once all that can be done to a machine.
func everyVerb(t *testing.T) {
	t.Helper()
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 1)
	store := openStore(t, filepath.Join(t.TempDir(), "store"))
	info, err := vm.Snapshot(t.Context(), store, SnapshotOptions{Label: "verbs"})
	if err != nil {
		t.Fatal(err)
	}
	if err := vm.Prepare(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	restored, err := Restore(t.Context(), store, info.ID, StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	machines := append(forks(t, vm, 2), restored, startFrom(t, captureOf(t, vm), StartOptions{}))
	for _, m := range machines {
		awaitCounter(t, m, counter(t, m))
		if err := m.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		awaitCounter(t, m, counter(t, m))
		pause(t, m)
		if _, err := m.Snapshot(t.Context(), store, SnapshotOptions{}); err != nil {
			t.Fatal(err)
		}
		resume(t, m)
	}
	closeVM(t, restored)
	if err := store.Delete(t.Context(), info.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := store.GC(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitCounter(t, vm, counter(t, vm))
}

const confinedEnv = "FORKVM_TEST_CONFINED"

// TestScenarioP05EveryVerbUnderConfinement does everything once in a process
// that may do little: without any capability and unable to gain one, with few
// descriptors and no memory to lock. forkvm has no filter of system calls of
// its own to be tested under.
func TestScenarioP05EveryVerbUnderConfinement(t *testing.T) {
	if os.Getenv(confinedEnv) != "" {
		confined(t)
		return
	}
	closeVM(t, startMicro(t, guestHalt)) // there is a KVM, or the test is skipped
	var out []byte
	err := onOwnThread(func() (err error) {
		if err := dropPrivileges(); err != nil {
			return err
		}
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), confinedEnv+"=1")
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil || !bytes.Contains(out, []byte("confined: done")) {
		t.Errorf("%v:\n%s", err, out)
	}
}

// dropPrivileges takes every capability from the thread, for ever and from the
// processes that it makes.
func dropPrivileges() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	var none [2]unix.CapUserData
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
}

// confined is the part of the process that may do little.
func confined(t *testing.T) {
	var have [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &have[0]); err != nil || have != [2]unix.CapUserData{} {
		t.Fatalf("capabilities %+v, %v", have, err)
	}
	for resource, limit := range map[int]uint64{
		unix.RLIMIT_NOFILE: 128, unix.RLIMIT_MEMLOCK: 0, unix.RLIMIT_CORE: 0, unix.RLIMIT_RTPRIO: 0,
	} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			t.Fatal(err)
		}
	}
	everyVerb(t)
	// A fork that hits a limit takes nobody along.
	// Its memory is unlike that of any before, of which a layer may be ready.
	vm := startMicro(t, guestCounter, withoutSpare, func(c *Config) { c.Memory = 3 * MinMemory })
	awaitCounter(t, vm, 1)
	if children, err := vm.Fork(t.Context(), 100); !errors.Is(err, unix.EMFILE) || children != nil {
		t.Errorf("a hundred machines of 128 descriptors: %v", err)
	}
	awaitCounter(t, vm, counter(t, vm))
	restore := limit(t, unix.RLIMIT_FSIZE, MinMemory/4)
	if children, err := vm.Fork(t.Context(), 1); !errors.Is(err, unix.EFBIG) || children != nil {
		t.Errorf("memory larger than a file may be: %v", err)
	}
	restore()
	awaitCounter(t, vm, counter(t, vm))
	forkAndClose(t, vm, 1)
	if !t.Failed() {
		fmt.Println("confined: done")
	}
}

// TestScenarioP06VerbsAtOnce has sixteen goroutines fork, store, capture and
// pause one machine at the same time. All succeed, and all that comes of it is
// of one instant.
func TestScenarioP06VerbsAtOnce(t *testing.T) {
	vm := startMicro(t, guestSweep)
	awaitCounter(t, vm, 1)
	store := openStore(t, t.TempDir())
	consistent := func(m *VM) {
		pause(t, m)
		if page, bad := torn(func(gpa uint64) uint64 { return word(t, m, gpa) }); bad {
			t.Errorf("page %d is of another instant", page)
		}
		resume(t, m)
		closeVM(t, m)
	}
	verbs := []func() error{
		func() error {
			children, err := vm.Fork(t.Context(), 2)
			for _, c := range children {
				consistent(c)
			}
			return err
		},
		func() error {
			info, err := vm.Snapshot(t.Context(), store, SnapshotOptions{})
			if err != nil {
				return err
			}
			restored, err := Restore(t.Context(), store, info.ID, StartOptions{})
			if err == nil {
				consistent(restored)
			}
			return err
		},
		func() error {
			image, err := vm.Capture(t.Context())
			if err != nil {
				return err
			}
			defer image.Close()
			child, err := image.Start(t.Context(), StartOptions{})
			if err == nil {
				consistent(child)
			}
			return err
		},
		func() error { return errors.Join(vm.Pause(t.Context()), vm.Resume(t.Context())) },
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if err := verbs[i%len(verbs)](); err != nil {
				t.Errorf("verb %d: %v", i%len(verbs), err)
			}
		})
	}
	wg.Wait()
	resume(t, vm)
	awaitCounter(t, vm, counter(t, vm))
}

// TestScenarioB19NothingIsLeftOfAThousandMachines boots and ends a thousand
// machines.
func TestScenarioB19NothingIsLeftOfAThousandMachines(t *testing.T) {
	kernel := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(kernel, elfKernel(guestCounter), 0o600); err != nil {
		t.Fatal(err)
	}
	closeVM(t, startMicro(t, guestCounter)) // there is a KVM, or the test is skipped
	cycle := func(round int) {
		vm, err := Start(t.Context(), Config{Kernel: kernel, Memory: MinMemory, Bare: true})
		if err != nil {
			t.Fatal(err)
		}
		if round%10 == 0 {
			awaitRun(t, vm)
		}
		closeVM(t, vm)
	}
	for range 20 {
		cycle(0)
	}
	before := holdings(t)
	rounds(t, 1000, 100, cycle)
	sameHoldings(t, before)
}

// TestScenarioM31CloseDuringEveryVerb closes a machine while something else is
// done to it. Close returns, and the other ends with success or ErrClosed.
func TestScenarioM31CloseDuringEveryVerb(t *testing.T) {
	for name, verb := range map[string]func(*VM) error{
		"run":     func(vm *VM) error { return vm.Wait(t.Context()) },
		"fork":    func(vm *VM) error { c, err := vm.Fork(t.Context(), 1); closeAll(t, c); return err },
		"pause":   func(vm *VM) error { return vm.Pause(t.Context()) },
		"prepare": func(vm *VM) error { return vm.Prepare(t.Context(), 2) },
		"reset":   func(vm *VM) error { return vm.Reset(t.Context()) },
		"capture": func(vm *VM) error {
			image, err := vm.Capture(t.Context())
			if err == nil {
				image.Close()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			parent := startMicro(t, guestCounter)
			awaitCounter(t, parent, 1)
			image := captureOf(t, parent)
			for range 20 {
				vm := startFrom(t, image, StartOptions{})
				began, done := make(chan struct{}), make(chan error, 1)
				go func() { close(began); done <- verb(vm) }()
				<-began
				closed := make(chan struct{})
				go func() { closeVM(t, vm); close(closed) }()
				for range 2 {
					select {
					case err := <-done:
						if err != nil && !errors.Is(err, ErrClosed) {
							t.Errorf("ends with %v", err)
						}
						done = nil
					case <-closed:
						closed = nil
					case <-time.After(patience):
						t.Fatal("stuck")
					}
				}
			}
		})
	}
}

func closeAll(t *testing.T, vms []*VM) {
	for _, vm := range vms {
		closeVM(t, vm)
	}
}

// TestScenarioM29P15TimesByPhase forks a number of times, with nothing built
// ahead. Where the time goes is told phase by phase, what the call returned is
// told apart from the guest's first sign of life, and each phase keeps to a
// budget that is generous for a machine and small for a human.
func TestScenarioM29P15TimesByPhase(t *testing.T) {
	const n = 21
	vm := startMicro(t, guestGreeterLoop, withoutSpare)
	phases := map[string][]time.Duration{}
	for range n {
		image := captureOf(t, vm)
		begin := time.Now()
		exits := make(chan struct{}, 1)
		child := startFrom(t, image, StartOptions{Trace: func(TraceEvent) {
			select {
			case exits <- struct{}{}:
			default:
			}
		}})
		returned := time.Since(begin)
		select {
		case <-exits:
		case <-time.After(patience):
			t.Fatal("no exit")
		}
		seen := time.Since(begin)
		pause(t, child)
		tm := child.Timings()
		switch {
		case tm.Create <= 0 || tm.Restore <= 0 || tm.Pause <= 0 || tm.Capture <= 0:
			t.Errorf("a phase is missing: %+v", tm)
		case tm.Create+tm.Restore > tm.StateReady:
			t.Errorf("the phases take longer than all: %+v", tm)
		case tm.StateReady > returned || tm.FirstExit <= tm.StateReady || tm.FirstExit > seen:
			t.Errorf("returned after %v, first exit seen after %v: %+v", returned, seen, tm)
		case tm.Capture > tm.Pause:
			t.Errorf("the capture is longer than the pause: %+v", tm)
		}
		for name, d := range map[string]time.Duration{
			"create": tm.Create, "restore": tm.Restore, "pause": tm.Pause, "capture": tm.Capture,
			"state ready": tm.StateReady, "first exit": tm.FirstExit,
		} {
			phases[name] = append(phases[name], d)
		}
		closeVM(t, child)
		image.Close()
	}
	const budget = 200 * time.Millisecond
	for name, d := range phases {
		t.Logf("%s: median %v", name, median(d))
		if median(d) > budget {
			t.Errorf("%s takes %v", name, median(d))
		}
	}
}

// guestGreeterLoop writes to a port without end.
var guestGreeterLoop = []byte{
	0xe6, tickPort, // out tickPort, al
	0xeb, 0xfc, // jmp back
}

// TestScenarioB24ForkIsOfTheLiveState forks and stores a machine that goes on
// after each, and one that is paused. A child goes on from where the machine
// was then, not from where it was saved last.
func TestScenarioB24ForkIsOfTheLiveState(t *testing.T) {
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 1)
	store := openStore(t, t.TempDir())
	var last uint64
	for i := range 6 {
		paused := i%2 == 1
		awaitCounter(t, vm, counter(t, vm))
		pause(t, vm)
		at := counter(t, vm)
		if at <= last {
			t.Fatalf("the parent stands still at %d", at)
		}
		last = at
		if !paused {
			resume(t, vm)
		}
		if i == 2 {
			if _, err := vm.Snapshot(t.Context(), store, SnapshotOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		child := forks(t, vm, 1)[0]
		pause(t, child)
		if got := counter(t, child); got < at {
			t.Errorf("a child is at %d, its parent was at %d", got, at)
		}
		if paused && counter(t, vm) != at {
			t.Error("the fork of a paused machine let it run")
		}
		resume(t, vm)
	}
}

// TestScenarioP07ConsoleOfAResetStartsEmpty is the same for a machine that is
// reset: nothing of what it wrote before is in its console or counters.
func TestScenarioP07ConsoleOfAResetStartsEmpty(t *testing.T) {
	vm := forks(t, startMicro(t, guestHalt), 1)[0]
	pause(t, vm)
	vm.pio.Write(serialPort, []byte{'x'})
	if err := vm.board.Load().serial.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := string(vm.ConsoleTail()); got != "x" {
		t.Fatalf("the console has %q", got)
	}
	if err := vm.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := string(vm.ConsoleTail()); got != "" {
		t.Errorf("after a reset the console has %q", got)
	}
}
