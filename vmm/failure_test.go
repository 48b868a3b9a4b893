package vmm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm/kvmtest"
)

// limit lowers a resource limit of the process until restore is called.
func limit(t *testing.T, resource int, to uint64) (restore func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(resource, &old); err != nil {
		t.Fatal(err)
	}
	lower := old
	lower.Cur = to
	if err := unix.Setrlimit(resource, &lower); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(resource, &old); err != nil {
			t.Fatal(err)
		}
	}
}

// TestScenarioB21ForkWithoutDescriptors runs out of descriptors at
// every point of a fork, one after the other.
func TestScenarioB21ForkWithoutDescriptors(t *testing.T) {
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 10)
	forkAndClose(t, vm, 1) // what the process and the machine open once
	before := holdings(t, vm)
	// Descriptors are given from the lowest free number on: a limit of n
	// leaves room for as many as are free below n.
	failed := 0
	for free := 0; ; free++ {
		if free > 100 {
			t.Fatal("a fork needs more than 100 descriptors")
		}
		restore := limit(t, unix.RLIMIT_NOFILE, uint64(before["fd_next"]+free))
		children, err := vm.Fork(t.Context(), 2)
		restore()
		if err == nil {
			for _, c := range children {
				closeVM(t, c)
			}
			break
		}
		failed++
		if !errors.Is(err, unix.EMFILE) {
			t.Fatalf("%d descriptors free: %v, want EMFILE", free, err)
		}
		awaitCounter(t, vm, counter(t, vm))
	}
	if failed == 0 {
		t.Error("no fork failed: the limit had no effect")
	}
	after := holdings(t, vm)
	if after["fd"] > before["fd"]+2 {
		t.Errorf("%d descriptors before, %d after", before["fd"], after["fd"])
	}
}

func TestScenarioB21ForkWithoutAddressSpace(t *testing.T) {
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 10)
	// What machines of other tests still have would make room.
	if err := WaitFreed(t.Context()); err != nil {
		t.Fatal(err)
	}
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var pages uint64
	for _, d := range strings.Fields(string(statm))[0] {
		pages = pages*10 + uint64(d-'0')
	}
	// Room for what the Go runtime may want, not for a guest's memory.
	restore := limit(t, unix.RLIMIT_AS, pages*pageSize+MinMemory/2)
	children, err := vm.Fork(t.Context(), 1)
	restore()
	for _, c := range children {
		closeVM(t, c)
	}
	if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("Fork: %v, want ENOMEM and how much was asked for", err)
	}
	awaitCounter(t, vm, counter(t, vm))
	children, err = vm.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	awaitCounter(t, children[0], 0)
	closeVM(t, children[0])
}

func TestNoKVM(t *testing.T) {
	kernel := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(kernel, elfKernel(guestHalt), 0o600); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path string
		want error
	}{
		"missing":      {"/dev/no-such-kvm", fs.ErrNotExist},
		"not a device": {plain, unix.ENOTTY},
	} {
		_, err := Start(t.Context(), Config{Kernel: kernel, KVM: c.path})
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "kvm") {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestStartRefusesWhatCannotBoot(t *testing.T) {
	kvmtest.OpenOrSkip(t)
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", elfKernel(guestHalt))
	before := holdings(t)
	for name, c := range map[string]struct {
		cfg  Config
		want error
	}{
		"no kernel":    {Config{Kernel: filepath.Join(dir, "none")}, fs.ErrNotExist},
		"text":         {Config{Kernel: write("text", []byte("hello"))}, ErrKernel},
		"truncated":    {Config{Kernel: write("cut", elfKernel(guestHalt)[:100])}, ErrKernel},
		"big initrd":   {Config{Kernel: good, Memory: MinMemory, Initramfs: make([]byte, 63<<20)}, ErrInitrdTooBig},
		"long cmdline": {Config{Kernel: good, Cmdline: strings.Repeat("a", 4096)}, ErrCmdlineTooLong},
		"bad config":   {Config{Kernel: good, VCPUs: 99}, ErrConfig},
	} {
		vm, err := Start(t.Context(), c.cfg)
		if !errors.Is(err, c.want) || vm != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if after := holdings(t); after["fd"] > before["fd"] {
		t.Errorf("%d descriptors before, %d after", before["fd"], after["fd"])
	}
}
