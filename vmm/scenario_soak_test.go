package vmm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The soak: the same again and again, with everything going on at once. A run
// of the whole suite does a few rounds; -scenario.full does all.

// slabs is the kernel memory that is not given back by itself, in bytes. It is
// of the whole machine.
func slabs(t testing.TB) int64 {
	t.Helper()
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(info)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "SUnreclaim: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("no SUnreclaim in /proc/meminfo")
	return 0
}

// flat checks that a number of rounds left nothing behind: descriptors,
// threads, mappings, memory, kernel memory.
func flat(t *testing.T, vm *VM, rounds int, do func()) {
	t.Helper()
	do()
	before, resident, kernel := holdings(t, vm), residentMemory(t), slabs(t)
	for range rounds {
		do()
	}
	sameHoldings(t, before, vm)
	// A page a round, and what others do on the machine meanwhile.
	slack := int64(rounds)*pageSize + 32<<20
	for kind, now := range residentMemory(t) {
		if now > resident[kind]+slack {
			t.Errorf("%s: %d KiB before, %d KiB after", kind, resident[kind]>>10, now>>10)
		}
	}
	if now := slabs(t); now > kernel+slack {
		t.Errorf("kernel memory: %d KiB before, %d KiB after", kernel>>10, now>>10)
	}
}

// TestScenarioSoakResets resets a machine two thousand times that writes 2 MiB
// in between. Nothing of it stays, in the machine or around it.
func TestScenarioSoakResets(t *testing.T) {
	parent := startMicro(t, guestCounter)
	awaitCounter(t, parent, 1)
	pause(t, parent)
	at := counter(t, parent)
	vm := forks(t, parent, 1)[0]
	n := 400
	if *scenarioFull {
		n = 2000
	}
	flat(t, vm, n, func() {
		awaitRun(t, vm)
		scribble(t, vm, 2<<20)
		if err := vm.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		pause(t, vm)
		if got := word(t, vm, 16<<20); got != 0 {
			t.Errorf("%#x of before the reset", got)
		}
		if got := counter(t, vm); got < at {
			t.Errorf("the counter is at %d, below the %d of the fork", got, at)
		}
		resume(t, vm)
	})
}

// traffic keeps a machine's sockets busy until stop is called, which fails the
// test if something hangs.
func traffic(t *testing.T, vm *VM) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	echo := vm.CommandContext(ctx, "cat")
	in, err := echo.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := echo.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := echo.Start(); err != nil {
		t.Fatal(err)
	}
	busy := make(chan struct{}) // closed when both streams have moved
	var moved sync.WaitGroup
	moved.Add(2)
	go func() { moved.Wait(); close(busy) }()
	wg.Go(func() { // one session, back and forth
		buf := make([]byte, 4096)
		for i := 0; ; i++ {
			if _, err := in.Write(buf); err != nil {
				break
			}
			if _, err := io.ReadFull(out, buf); err != nil {
				break
			}
			if i == 0 {
				moved.Done()
			}
		}
		in.Close()
		out.Close()
		_ = echo.Wait()
	})
	wg.Go(func() { // many connections, one after the other
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := askHelper(ctx, vm, "state"); err != nil {
				return
			}
			if i == 0 {
				moved.Done()
			}
		}
	})
	select {
	case <-busy:
	case <-time.After(patience):
		t.Fatal("there is no traffic")
	}
	return func() {
		t.Helper()
		cancel()
		in.Close()
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatal("a connection hangs")
		}
	}
}

// endLeftOver ends the command of the traffic that a machine was stored in: it
// lives on in the restored one though its client does not, and 200 of them are
// all of the guest's memory.
func endLeftOver(t *testing.T, vm *VM) {
	t.Helper()
	all, err := vm.Agent().Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Args[0] != "cat" || p.Exited {
			continue
		}
		if err := vm.Agent().SignalProcess(t.Context(), p.ID, unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		if err := vm.Agent().WaitProcess(t.Context(), p.ID); err == nil {
			t.Error("a command that was killed ended well")
		}
	}
}

// TestScenarioSoakSnapshotKillRestore stores a machine with processes that
// compute, sleep and talk, ends it, and restores it, round after round. Every
// sleep ends in time, no connection hangs, and the guest's kernel has nothing
// to complain of.
func TestScenarioSoakSnapshotKillRestore(t *testing.T) {
	vm := minimal.fork(t)
	startHelper(t, vm)
	first := ask(t, vm, "state")
	store := openStore(t, t.TempDir())
	last := first
	var id string
	// Of a sleep of 20 ms. Machines without spare time are slow, and where the
	// guest's counter cannot be set it goes on while nobody runs.
	const inTime = 5 * time.Second
	var downtime time.Duration
	var phases []string
	mark := time.Now()
	phase := func(name string) {
		phases = append(phases, fmt.Sprint(name, " ", time.Since(mark).Round(time.Millisecond)))
		mark = time.Now()
	}
	rounds(t, 500, 6, func(round int) {
		phases, mark = nil, time.Now()
		stop := traffic(t, vm)
		phase("traffic")
		begin := time.Now()
		info, err := vm.Snapshot(t.Context(), store, SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		phase("snapshot")
		closeVM(t, vm)
		stop()
		phase("kill")
		if id != "" {
			if err := store.Delete(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		id = info.ID
		if vm, err = Restore(t.Context(), store, id, StartOptions{}); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		t.Cleanup(func() { closeVM(t, vm) })
		phase("restore")
		if vm.shell.tscFixed {
			downtime = max(downtime, time.Since(begin))
		}
		if got := output(t, vm, "echo", "hello"); got != "hello" {
			t.Errorf("round %d: a command says %q", round, got)
		}
		phase("command")
		endLeftOver(t, vm)
		s := ask(t, vm, "state")
		for deadline := time.Now().Add(patience); s.Ticks <= last.Ticks || s.Counter <= last.Counter; s = ask(t, vm, "state") {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: the guest stands still: %+v, then %+v", round, last, s)
			}
		}
		if s.Hash != first.Hash || s.PID != first.PID || s.Back != 0 {
			t.Errorf("round %d: the helper is %+v, was %+v", round, s, first)
		}
		if s.MaxGap > inTime+downtime {
			t.Fatalf("round %d: a sleep of 100 ms took %v; the round: %v, %+v\n%s", round, s.MaxGap, phases, vm.Timings(), timers(t, vm))
		}
		last = s
		if round%10 == 9 {
			noStalls(t, vm)
			if _, err := store.GC(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
	noStalls(t, vm)
	t.Logf("longest sleep of 100 ms: %v", last.MaxGap)
}

// TestScenarioSoakResetsOfLinux resets a machine with a kernel, processes and
// sockets. Each time a command runs at once, a file written since is gone, and
// a process that ran at the fork is where it was.
func TestScenarioSoakResetsOfLinux(t *testing.T) {
	parent := minimal.fork(t)
	startHelper(t, parent)
	first := ask(t, parent, "state")
	vm := forks(t, parent, 1)[0]
	n := 40
	if *scenarioFull {
		n = 2000
	}
	flat(t, vm, n, func() {
		if err := vm.Agent().FS().WriteFile("/tmp/mess", make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		ask(t, vm, "scribble")
		stale := vm.Agent()
		if err := vm.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := ask(t, vm, "state"); s.Hash != first.Hash || s.PID != first.PID || s.Back != 0 {
			t.Errorf("after a reset the helper is %+v, at the fork %+v", s, first)
		}
		if _, err := vm.Agent().FS().Stat("/tmp/mess"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a file of before the reset: %v", err)
		}
		if _, err := stale.FS().Stat("/tmp"); err == nil {
			t.Error("the agent's client of before the reset still works")
		}
	})
	noStalls(t, vm)
	output(t, parent, "echo")
}
