package vmm

import (
	"flag"
	"math/rand"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
)

// Scenarios of timers and clocks, with guests of a few bytes.

var scenarioFull = flag.Bool("scenario.full", false, "run as many rounds as each scenario asks for, however long that takes")

// rounds calls f for round 0, 1 and so on, want times. On a slow machine it
// stops after a while, though not before least rounds, unless all are asked for.
func rounds(t *testing.T, want, least int, f func(round int)) {
	t.Helper()
	const while = 10 * time.Second
	begin := time.Now()
	n := 0
	for ; n < want && (*scenarioFull || n < least || time.Since(begin) < while); n++ {
		f(n)
	}
	t.Logf("%d rounds in %v", n, time.Since(begin).Round(time.Millisecond))
}

// needTSCOffset skips where a guest's time-stamp counter cannot be set: some
// software KVMs accept an offset and do not apply it.
func needTSCOffset(t testing.TB, vm *VM) {
	t.Helper()
	if forks(t, vm, 1)[0].shell.tscFixed {
		kvmtest.Skip(t, "this KVM does not apply an offset to a guest's time-stamp counter")
	}
}

// TestScenarioM01DeadlineAfterTSC forks a guest with a timer a hundred times in
// a chain. Every tick comes, and comes in time.
func TestScenarioM01DeadlineAfterTSC(t *testing.T) {
	const every = 5 * time.Millisecond
	vm := startTicker(t, every)
	awaitCounter(t, vm, 3)
	khz := hostTSCKHz(t)
	rounds(t, 100, 100, func(round int) {
		image := captureOf(t, vm)
		setWord(t, vm, tickerLate, 0)
		trace, at := ticks()
		child := startFrom(t, image, StartOptions{Trace: trace})
		closeVM(t, vm)
		image.Close()
		awaitTick(t, child, at)
		awaitTick(t, child, at)
		if late := time.Duration(nanoseconds(word(t, child, tickerLate), khz)); late > time.Second {
			t.Fatalf("round %d: a tick came %v late", round, late)
		}
		vm = child
	})
}

// TestScenarioM02LostDeadlineIsRepaired captures a guest with a timer of one
// millisecond at random instants. In some the timer has just fired: KVM says
// that its deadline is 0, and the interrupt may be on its way.
func TestScenarioM02LostDeadlineIsRepaired(t *testing.T) {
	const every = time.Millisecond
	vm := startTicker(t, every)
	awaitCounter(t, vm, 3)
	rng := rand.New(rand.NewSource(6))
	repaired := 0
	rounds(t, 200, 100, func(int) {
		time.Sleep(time.Duration(rng.Int63n(int64(2 * every)))) // any instant will do
		image := captureOf(t, vm)
		if s := image.state.kvm.VCPUs[0]; s.Deadline == s.TSC {
			repaired++
		}
		trace, at := ticks()
		child := startFrom(t, image, StartOptions{Trace: trace})
		image.Close()
		awaitTick(t, child, at)
		awaitTick(t, child, at)
		closeVM(t, child)
	})
	t.Logf("%d deadlines had passed", repaired)
}

// TestScenarioM02LostInterrupt takes both the deadline and the interrupt away
// from a guest, which stands still for ever then. Its children do not.
func TestScenarioM02LostInterrupt(t *testing.T) {
	trace, at := ticks()
	vm := startTicker(t, time.Millisecond, func(c *Config) { c.Trace = trace })
	awaitTick(t, vm, at)
	pause(t, vm)
	onVCPU(t, vm, 0, func(c *kvm.VCPU) error {
		if err := writeMSRs(c, []kvm.MSREntry{{Index: msrTSCDeadline, Data: 0}}); err != nil {
			return err
		}
		const irr = 0x200
		l, err := c.LAPIC()
		if err != nil {
			return err
		}
		l.SetRegister(irr+guestVector/32*16, 0)
		return c.SetLAPIC(&l)
	})
	childTrace, childAt := ticks()
	child := startFrom(t, captureOf(t, vm), StartOptions{Trace: childTrace})
	awaitTick(t, child, childAt)
	awaitTick(t, child, childAt)

	resume(t, vm)
	select {
	case <-at: // a tick from before the pause
	default:
	}
	select {
	case <-at:
		t.Log("the parent found its timer again: this KVM has it elsewhere too")
	case <-time.After(50 * time.Millisecond):
	}
}

// TestScenarioM03DeadlineIsReadBack restores a deadline far ahead, which KVM
// drops silently while the timer is in another mode.
func TestScenarioM03DeadlineIsReadBack(t *testing.T) {
	vm := startTicker(t, patience*1000)
	awaitArmed(t, vm)
	image := captureOf(t, vm)
	want := image.state.kvm.VCPUs[0].Deadline
	armed := word(t, vm, counterAddr+0x18)
	if want != armed {
		t.Errorf("the guest's deadline is %d, saved is %d", armed, want)
	}
	child := startFrom(t, image, StartOptions{})
	onVCPU(t, child, 0, func(c *kvm.VCPU) error {
		got, err := readMSR(c, msrTSCDeadline)
		if err == nil && got != want {
			t.Errorf("deadline %d after a restore, saved is %d", got, want)
		}
		return err
	})
}

// TestScenarioM04DowntimeDoesNotPass keeps an image for a while. Neither clock
// of a guest started from it has gone on meanwhile.
func TestScenarioM04DowntimeDoesNotPass(t *testing.T) {
	vm := startMicro(t, guestStamp)
	awaitCounter(t, vm, 0)
	needTSCOffset(t, vm)
	const downtime = 3 * time.Second
	image := captureOf(t, vm)
	time.Sleep(downtime)
	begin := time.Now()
	child := startFrom(t, image, StartOptions{})
	awaitRun(t, child)
	st := image.state.kvm
	clock, err := child.shell.vm.Clock()
	if err != nil {
		t.Fatal(err)
	}
	tsc := word(t, child, counterAddr)
	// However long the start took, it is no more than that which has passed.
	most := time.Since(begin) + downtime/2
	if d := time.Duration(clock.Clock - st.Chips.Clock.Clock); d < 0 || d > most {
		t.Errorf("the child's clock jumped by %v", d)
	}
	if d := time.Duration(nanoseconds(tsc-st.VCPUs[0].TSC, st.VCPUs[0].TSCKHz)); d < 0 || d > most {
		t.Errorf("the child's counter jumped by %v", d)
	}
}

// TestScenarioP10ClocksAreReadAtTheStop has a save take long. The clocks that
// are saved are of the instant at which the guest stopped.
func TestScenarioP10ClocksAreReadAtTheStop(t *testing.T) {
	vm := startMicro(t, guestStamp)
	awaitCounter(t, vm, 0)
	const slow = 400 * time.Millisecond
	stop := observe(t, func(c kvm.Call) unix.Errno {
		if c.Name == "KVM_GET_MP_STATE" || c.Name == "KVM_GET_PIT2" {
			time.Sleep(slow)
		}
		return 0
	})
	image := captureOf(t, vm)
	stop()
	if image.Pause() < 2*slow {
		t.Fatalf("the pause took %v only", image.Pause())
	}
	child := startFrom(t, image, StartOptions{})
	st := image.state.kvm.VCPUs[0]
	last := frozenWord(t, image, counterAddr)
	if gap := time.Duration(nanoseconds(st.TSC-last, st.TSCKHz)); gap < 0 || gap > slow {
		t.Errorf("the guest last read its counter %v before the instant that was saved", gap)
	}
	if apart := clocksApart(image.state.kvm, captureOf(t, child).state.kvm); apart > 2*time.Millisecond {
		t.Errorf("counter and clock went %v apart", apart)
	}
}

// TestScenarioP09TimersTickByThemselves starts a thousand machines from a guest
// that waits for its timer, and does nothing that could wake them.
func TestScenarioP09TimersTickByThemselves(t *testing.T) {
	tickingChildren(t, startTicker(t, time.Millisecond))
}

// tickingChildren starts a thousand machines from a guest with a timer of a
// millisecond. Each has its next tick by itself.
func tickingChildren(t *testing.T, vm *VM) {
	t.Helper()
	const each = 20 // starts of one image
	var image *Image
	rounds(t, 1000, 100, func(round int) {
		if round%each == 0 {
			awaitCounter(t, vm, counter(t, vm)+1)
			image = captureOf(t, vm)
		}
		trace, at := ticks()
		child, err := image.Start(t.Context(), StartOptions{Trace: trace})
		if err != nil {
			t.Fatal(err)
		}
		awaitTick(t, child, at)
		closeVM(t, child)
		if round%each == each-1 {
			image.Close()
		}
	})
}

// TestScenarioP09TimerChipTicksByItself is the same for the i8254.
func TestScenarioP09TimerChipTicksByItself(t *testing.T) {
	tickingChildren(t, startMicro(t, guestPIT.image(0)))
}
