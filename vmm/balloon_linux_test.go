package vmm

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"
)

// private is how much memory a machine has of its own, in bytes.
func private(t testing.TB, vm *VM) int64 {
	t.Helper()
	runs, err := privatePages(vm.mem.ram)
	if err != nil {
		t.Fatal(err)
	}
	return pagesIn(runs) * pageSize
}

// awaitPrivate returns once a machine has no more than that of its own.
func awaitPrivate(t testing.TB, vm *VM, most int64) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); private(t, vm) > most; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("the machine keeps %d KiB, want at most %d; %+v", private(t, vm)>>10, most>>10, vm.board.Load().balloon.Stats())
		}
	}
}

// A child gives back what it used: it has hardly more memory of its own than
// before. So does a child of it, and what is in use keeps its bytes.
func TestChildrenGiveMemoryBack(t *testing.T) {
	const size, slack = 32 << 20, 6 << 20
	for name, kind := range map[string]*guestKind{"minimal": minimal, "debian": debian} {
		t.Run(name, func(t *testing.T) {
			vm := kind.fork(t)
			startHelper(t, vm)
			hash := ask(t, vm, "").Hash
			for generation := range 2 {
				before := private(t, vm)
				data := make([]byte, size)
				for i := range data {
					data[i] = byte(i>>12) | 1
				}
				if err := vm.Agent().FS().WriteFile("/tmp/large", data, 0o600); err != nil {
					t.Fatal(err)
				}
				if grown := private(t, vm) - before; grown < size/2 {
					t.Fatalf("generation %d: a file of %d bytes takes %d", generation, size, grown)
				}
				if err := vm.Agent().FS().Remove("/tmp/large"); err != nil {
					t.Fatal(err)
				}
				awaitPrivate(t, vm, before+slack)
				vm = forks(t, vm, 1)[0]
				if got := ask(t, vm, "").Hash; got != hash {
					t.Errorf("generation %d: a buffer has hash %s, had %s", generation, got, hash)
				}
			}
		})
	}
}

// The balloon takes memory away from the guest and gives it back.
func TestBalloonTakesAndGives(t *testing.T) {
	vm := minimal.fork(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	free := func() (kib int64) {
		t.Helper()
		b, err := vm.Agent().FS().ReadFile("/proc/meminfo")
		if err != nil {
			t.Fatal(err)
		}
		var total int64
		if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB\nMemFree: %d kB", &total, &kib); err != nil {
			t.Fatal(err)
		}
		return kib
	}
	const size, slack = 64 << 10, 8 << 10 // KiB
	before := free()
	if err := vm.SetBalloon(ctx, size<<10); err != nil {
		t.Fatal(err)
	}
	if got := free(); got > before-size+slack {
		t.Errorf("%d KiB free with a balloon of %d, %d without", got, size, before)
	}
	child := forks(t, vm, 1)[0]
	for _, vm = range []*VM{vm, child} {
		if err := vm.SetBalloon(ctx, 0); err != nil {
			t.Fatal(err)
		}
		if got := free(); got < before-slack {
			t.Errorf("%d KiB free without a balloon, %d before it", got, before)
		}
	}
}
