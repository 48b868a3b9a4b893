package vmm

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/snapshot"
)

// holdings counts what the process has of what the kernel gives, less what the
// memory of the living machines explains: a descriptor for every layer, a
// mapping for every extent and every gap between two.
func holdings(t testing.TB, living ...*VM) map[string]int {
	t.Helper()
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
		for _, e := range vm.mem.table.Extents() {
			layers[e.Layer] = true
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

// normal is the first vCPU's state less what may differ between two reads.
func normal(st *kvmState) *vcpuState {
	v := st.VCPUs[0]
	v.Deadline = 0
	return &v
}

func compareVCPUs(want, got *vcpuState) string {
	var b strings.Builder
	for _, e := range want.MSRs {
		for _, g := range got.MSRs {
			if g.Index == e.Index && g.Data != e.Data {
				fmt.Fprintf(&b, "MSR %#x: %#x, %#x\n", e.Index, e.Data, g.Data)
			}
		}
	}
	w, g := *want, *got
	w.MSRs, g.MSRs = nil, nil
	return b.String() + cmp.Diff(w, g)
}
