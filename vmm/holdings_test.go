package vmm

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/snapshot"
)

// holdings counts what the process has of what the kernel gives, less what the
// memory of the living machines explains: a descriptor for every layer, a
// mapping for every extent and every gap between two.
func holdings(t testing.TB, living ...*VM) map[string]int {
	t.Helper()
	if err := WaitFreed(context.Background()); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	h := map[string]int{"goroutines": runtime.NumGoroutine()}
	for _, kind := range []string{"fd", "task"} {
		entries, err := os.ReadDir("/proc/self/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		h[kind] = len(entries)
	}
	fd, err := unix.Dup(0) // the lowest free number
	if err != nil {
		t.Fatal(err)
	}
	h["fd_next"] = fd
	unix.Close(fd)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if !inMemoryOf(t, living, line) {
			h["maps"]++
		}
	}
	for _, vm := range living {
		layers := make(map[*snapshot.Layer]bool)
		for _, table := range []*snapshot.Table{vm.mem.birth, vm.mem.table, vm.mem.base} {
			for _, e := range table.Extents() {
				layers[e.Layer] = true
			}
		}
		h["fd"] -= len(layers)
	}
	return h
}

// inMemoryOf tells whether a line of /proc/self/maps is of a machine's RAM.
func inMemoryOf(t testing.TB, living []*VM, line string) bool {
	t.Helper()
	var start, end uintptr
	if _, err := fmt.Sscanf(line, "%x-%x", &start, &end); err != nil {
		t.Fatal(err)
	}
	for _, vm := range living {
		base := hostAddr(vm.mem.ram)
		if start < base+uintptr(len(vm.mem.ram)) && end > base {
			return true
		}
	}
	return false
}

// compareStates says how two states differ, but for what may: the clocks, the
// timer's deadline, and when the PIT was programmed.
func compareStates(want, got *kvmState) string {
	var b strings.Builder
	for i := range want.VCPUs {
		w, g := want.VCPUs[i], got.VCPUs[i]
		for k, e := range w.MSRs {
			if g.MSRs[k] != e {
				fmt.Fprintf(&b, "vCPU %d: MSR %#x: %#x, %#x\n", i, e.Index, e.Data, g.MSRs[k].Data)
			}
		}
		w.MSRs, g.MSRs = nil, nil
		w.TSC, g.TSC, w.Deadline, g.Deadline = 0, 0, 0, 0
		b.WriteString(cmp.Diff(w, g))
	}
	w, g := want.Chips, got.Chips
	w.Clock, g.Clock = kvm.ClockData{}, kvm.ClockData{}
	for i := range w.PIT.Channels {
		w.PIT.Channels[i].CountLoadTime, g.PIT.Channels[i].CountLoadTime = 0, 0
	}
	return b.String() + cmp.Diff(w, g)
}

// clocksApart is how much more or less has passed from one state to the other
// on the counter than on the clock.
func clocksApart(from, to *kvmState) time.Duration {
	tsc := nanoseconds(to.VCPUs[0].TSC-from.VCPUs[0].TSC, from.VCPUs[0].TSCKHz)
	clock := to.Chips.Clock.Clock - from.Chips.Clock.Clock
	return (time.Duration(tsc) - time.Duration(clock)).Abs()
}
