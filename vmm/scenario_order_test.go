package vmm

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
)

// savedAndRestored forks a machine of two vCPUs with a timer armed, and
// returns what was asked of KVM for the parent and for the child, up to where
// each ran on.
func savedAndRestored(t *testing.T) (parent, child []kvm.Call) {
	t.Helper()
	vm := startTicker(t, patience*1000, withoutSpare, func(c *Config) { c.VCPUs = 2 })
	awaitArmed(t, vm)
	useKVMClock(t, vm)
	pause(t, vm)
	enrich(t, vm)
	resume(t, vm)
	var c *VM
	r := traceDuring(t, func(r *ioctlTrace) {
		c = forks(t, vm, 1)[0]
		r.awaitCall(t, c, entry)
	})
	return r.of(vm), r.of(c)
}

var (
	deadline = callWith("KVM_SET_MSRS", uint32(1)) // all others are set in one call
	entry    = callWith("KVM_RUN", uint32(0))      // not one that KVM leaves at once
)

// restoreRules is the order of a restore, for each vCPU. The failures are
// what befell others.
var restoreRules = []orderRule{
	{call("KVM_SET_USER_MEMORY_REGION"), call("KVM_CREATE_IRQCHIP"), "a memslot after the chips costs a grace period"},
	{call("KVM_SET_CPUID2"), call("KVM_SET_XSAVE"), "KVM sizes the area by CPUID"},
	{call("KVM_SET_CPUID2"), call("KVM_GET_MSRS"), "an MSR that CPUID gates reads 0 before"},
	{call("KVM_SET_CPUID2"), call("KVM_SET_MSRS"), "an MSR that CPUID gates is refused before"},
	{call("KVM_SET_SREGS"), call("KVM_SET_LAPIC"), "APIC_BASE selects the layout"},
	{call("KVM_SET_SREGS"), call("KVM_SET_XCRS"), "CR4.OSXSAVE must be on"},
	{call("KVM_SET_REGS"), call("KVM_SET_VCPU_EVENTS"), "setting registers clears pending exceptions"},
	{call("KVM_SET_LAPIC"), call("KVM_SET_MSRS"), "a deadline is dropped while the timer is in another mode"},
	{call("KVM_GET_TSC_KHZ"), call("KVM_SET_DEVICE_ATTR"), "the frequency scales the counter"},
	{call("KVM_SET_DEVICE_ATTR"), deadline, "the deadline is compared with the counter when it is written"},
	{call("KVM_SET_CLOCK"), call("KVM_SET_LAPIC"), "the counter is set to agree with the clock"},
	{call("KVM_SET_LAPIC"), callWith("KVM_SET_IRQCHIP", uint32(kvm.IOAPIC)), "the IOAPIC may deliver at once"},
	{callWith("KVM_SET_IRQCHIP", uint32(kvm.IOAPIC)), call("KVM_IRQ_LINE"), "the edge of the VMGenID would be overwritten"},
	{call("KVM_SET_CLOCK"), entry, "the guest gets stale parameters of its clock"},
	{call("KVM_SET_VCPU_EVENTS"), entry, "all state before the guest runs"},
	{callWith("KVM_SET_IRQCHIP", uint32(kvm.IOAPIC)), call("KVM_SET_PIT2"), "a tick at a masked controller is the last one"},
	{call("KVM_SET_PIT2"), entry, "all state before the guest runs"},
	{call("KVM_IRQ_LINE"), entry, "the guest finds its new identity as soon as it runs"},
}

func TestScenarioRestoreOrder(t *testing.T) {
	_, child := savedAndRestored(t)
	for id := range 2 {
		calls := ofVCPU(child, id)
		rules := restoreRules
		if id > 0 { // it waits for its start-up IPI and has no deadline
			rules = slices.DeleteFunc(slices.Clone(rules), orderRule.onlyLead)
		}
		checkOrder(t, calls, rules...)
		// Nothing is set after the events but what tells of the pause.
		for _, c := range calls[last(calls, call("KVM_SET_VCPU_EVENTS"))+1:] {
			if c.Kind == kvm.KindVCPU && strings.HasPrefix(c.Name, "KVM_SET_") {
				t.Errorf("vCPU %d: %s after KVM_SET_VCPU_EVENTS", id, c.Name)
			}
		}
	}
	// The LAPICs of all, not only each one's own.
	checkOrder(t, child, orderRule{call("KVM_SET_LAPIC"), callWith("KVM_SET_IRQCHIP", uint32(kvm.IOAPIC)), "the IOAPIC may deliver to any LAPIC"},
		orderRule{call("KVM_SET_VCPU_EVENTS"), entry, "no vCPU runs while another is restored"})
	if first(child, call("KVM_SET_GSI_ROUTING")) >= 0 {
		t.Error("the routes that KVM made are replaced")
	}
}

func TestScenarioSaveOrder(t *testing.T) {
	parent, _ := savedAndRestored(t)
	// What was asked while the machine stood still.
	begin, end := first(parent, call("KVM_GET_CLOCK")), last(parent, call("KVM_GET_IRQCHIP"))
	if begin < 0 || end < begin {
		t.Fatalf("no save in %v", parent)
	}
	save := parent[begin : end+1]
	checkOrder(t, save,
		orderRule{call("KVM_GET_CLOCK"), call("KVM_GET_MP_STATE"), "time that the save takes must not pass for the guest"},
		orderRule{callWith("KVM_GET_MSRS", uint32(1)), call("KVM_GET_MP_STATE"), "the counter goes with the clock"},
		orderRule{call("KVM_GET_VCPU_EVENTS"), call("KVM_GET_PIT2"), "the chips may change while vCPUs are read"},
		orderRule{call("KVM_GET_LAPIC"), call("KVM_GET_IRQCHIP"), "the chips may change while vCPUs are read"},
	)
	for id := range 2 {
		var own []kvm.Call
		for _, c := range save[last(save, call("KVM_GET_CLOCK")):] {
			if c.VCPU == id {
				own = append(own, c)
			}
		}
		if len(own) < 8 || own[0].Name != "KVM_GET_MP_STATE" || own[len(own)-1].Name != "KVM_GET_VCPU_EVENTS" {
			t.Errorf("vCPU %d is read as %v; want MP_STATE first, as reading it may change the LAPIC, and VCPU_EVENTS last", id, own)
		}
	}
	for _, c := range save {
		if !strings.HasPrefix(c.Name, "KVM_GET_") {
			t.Errorf("%s on vCPU %d in the middle of a save", c.Name, c.VCPU)
		}
	}
	// A fork leaves its parent as it is.
	for _, c := range parent {
		if strings.HasPrefix(c.Name, "KVM_SET_") || c.Name == "KVM_IRQ_LINE" {
			t.Errorf("a fork calls %s on its parent", c.Name)
		}
	}
}

// TestScenarioM06ClockBeforeVCPUs looks at the parameters of the clock that a
// child has in memory once it has run: those of the parent, or of a clock that
// began at zero, would show.
func TestScenarioM06ClockBeforeVCPUs(t *testing.T) {
	_, child := savedAndRestored(t)
	for id := range 2 {
		calls := ofVCPU(child, id)
		checkOrder(t, calls, orderRule{call("KVM_SET_CLOCK"), entry, "stale parameters hung guests for minutes"})
	}
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 10)
	useKVMClock(t, vm)
	awaitCounter(t, vm, counter(t, vm))
	image := captureOf(t, vm)
	c := startFrom(t, image, StartOptions{})
	awaitCounter(t, c, counter(t, c))
	before := image.state.kvm.Chips.Clock.Clock
	at := readPVClock(t, c)
	if after, err := c.shell.vm.Clock(); err != nil || at.systemTime < before || at.systemTime > after.Clock {
		t.Errorf("the child's clock starts from %d ns; captured at %d, now at %d; %v", at.systemTime, before, after.Clock, err)
	}
}

// TestScenarioM07PauseIsToldOnEveryPath has the guest's clock say that it
// stood still after a pause, in the parent of a fork and in the child.
func TestScenarioM07PauseIsToldOnEveryPath(t *testing.T) {
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 10)
	useKVMClock(t, vm)
	told := func(name string, vm *VM) {
		t.Helper()
		awaitRun(t, vm)
		if !readPVClock(t, vm).stopped {
			t.Errorf("%s: the guest was not told", name)
		}
	}
	forget := func(vm *VM) {
		t.Helper()
		pause(t, vm)
		setWord(t, vm, pvclockAddr+pvclockFlags, 0)
	}
	forget(vm)
	resume(t, vm)
	told("resume", vm)

	forget(vm)
	image := captureOf(t, vm)
	resume(t, vm)
	told("parent", vm)
	told("child", startFrom(t, image, StartOptions{}))

}

// TestScenarioM08OneTSCOffset restores two vCPUs whose counters were written
// at different times.
func TestScenarioM08OneTSCOffset(t *testing.T) {
	vm := startMicro(t, guestCounter, func(c *Config) { c.VCPUs = 2 })
	awaitCounter(t, vm, 10)
	for range 5 {
		vm = forks(t, vm, 1)[0]
		awaitCounter(t, vm, counter(t, vm))
		var offsets [2]uint64
		for id := range offsets {
			onVCPU(t, vm, id, func(c *kvm.VCPU) (err error) {
				offsets[id], err = c.TSCOffset()
				return err
			})
		}
		if offsets[0] != offsets[1] {
			t.Fatalf("offsets %#x", offsets)
		}
	}
	// The counter itself is never written: KVM would guess what is meant.
	if slices.Contains(vm.msrs.indices, msrTSC) {
		t.Error("IA32_TSC is among the MSRs that are restored")
	}
}

// TestScenarioM11CPUIDFirst looks for anything that depends on CPUID before
// CPUID is set, when a machine boots and when it is restored.
func TestScenarioM11CPUIDFirst(t *testing.T) {
	var booted *VM
	r := traceDuring(t, func(*ioctlTrace) { booted = startMicro(t, guestCounter, func(c *Config) { c.VCPUs = 2 }) })
	_, child := savedAndRestored(t)
	for name, trace := range map[string][]kvm.Call{"boot": r.of(booted), "restore": child} {
		for id := range 2 {
			calls := ofVCPU(trace, id)
			at := first(calls, call("KVM_SET_CPUID2"))
			for i, c := range calls {
				if c.Kind == kvm.KindVCPU && i < at {
					t.Errorf("%s: vCPU %d: %s before KVM_SET_CPUID2", name, id, c.Name)
				}
			}
			if at < 0 || last(calls, call("KVM_SET_CPUID2")) != at {
				t.Errorf("%s: vCPU %d: KVM_SET_CPUID2 is not called once", name, id)
			}
		}
	}
}

// TestScenarioP02RoutesOfKVM waits for IRQ 0 on both ways from the timer chip
// to a vCPU, the 8259 and the IOAPIC, in a parent and in its child.
func TestScenarioP02RoutesOfKVM(t *testing.T) {
	t.Run("8259", func(t *testing.T) { tickOverFork(t, startMicro(t, guestPIT.image(0))) })
	t.Run("IOAPIC", func(t *testing.T) {
		vm := startTicker(t, patience*1000) // its LAPIC is on, its own timer is not due
		awaitArmed(t, vm)
		pause(t, vm)
		programPIT(t, vm)
		resume(t, vm)
		tickOverFork(t, vm)
	})
}

// tickOverFork has the counter move in a machine and its child.
func tickOverFork(t *testing.T, vm *VM) {
	t.Helper()
	for range 2 {
		awaitCounter(t, vm, counter(t, vm)+5)
		vm = forks(t, vm, 1)[0]
	}
	awaitCounter(t, vm, counter(t, vm)+5)
}

// TestScenarioP02TimerChipIsNotLost delays a restore between the timer chip and
// the interrupt controllers. What the timer raises into a controller that is
// still masked is lost, and KVM raises nothing more until it is acknowledged.
func TestScenarioP02TimerChipIsNotLost(t *testing.T) {
	vm := startMicro(t, guestPIT.image(0))
	awaitCounter(t, vm, 5)
	image := captureOf(t, vm)
	trace, at := ticks()
	stop := observe(t, func(c kvm.Call) unix.Errno {
		if c.Name == "KVM_SET_IRQCHIP" || c.Name == "KVM_SET_PIT2" {
			time.Sleep(10 * time.Millisecond) // ten periods of the timer
		}
		return 0
	})
	child := startFrom(t, image, StartOptions{Trace: trace})
	stop()
	awaitTick(t, child, at)
	awaitTick(t, child, at)
}
