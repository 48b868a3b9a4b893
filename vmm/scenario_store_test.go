package vmm

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/snapshot"
)

// Scenarios of machines that are stored and restored.

// saved stores a machine.
func saved(t testing.TB, vm *VM, store *snapshot.Store) snapshot.Info {
	t.Helper()
	info, err := vm.Snapshot(t.Context(), store, SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func restored(t testing.TB, store *snapshot.Store, id string) *VM {
	t.Helper()
	vm, err := Restore(t.Context(), store, id, StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeVM(t, vm) })
	return vm
}

// regularFiles are the files of a directory that have something in them.
func regularFiles(t testing.TB, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > 0 {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func hashFile(t testing.TB, path string) [32]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}

// TestScenarioM22SnapshotNeverWritesWhatIsMapped stores a machine again and
// again into the store whose files it runs on. No file that was there is
// written, and the machine's memory stays what it was.
func TestScenarioM22SnapshotNeverWritesWhatIsMapped(t *testing.T) {
	dir := t.TempDir()
	store := openStore(t, dir)
	vm := startMicro(t, guestSweep)
	awaitCounter(t, vm, 1)
	id := saved(t, vm, store).ID
	vm = restored(t, store, id)
	before := make(map[string][32]byte)
	for _, path := range regularFiles(t, dir) {
		before[path] = hashFile(t, path)
	}
	if len(before) < 2 {
		t.Fatalf("files %v", before)
	}
	for range 3 {
		awaitCounter(t, vm, counter(t, vm))
		pause(t, vm)
		ram := bytes.Clone(vm.mem.ram)
		saved(t, vm, store)
		if !bytes.Equal(ram, vm.mem.ram) {
			t.Error("storing a machine changed its memory")
		}
		resume(t, vm)
	}
	for path, sum := range before {
		if hashFile(t, path) != sum {
			t.Errorf("%s was written", path)
		}
	}
	if err := store.Verify(t.Context(), id, nil); err != nil {
		t.Error(err)
	}
	restored(t, openStore(t, dir), id)
}

// TestScenarioM24DamagedFilesStartNoGuest cuts off, changes and swaps the files
// of a stored machine, one after the other. A process that opens the store
// afterwards gets an error, and no guest of it runs.
func TestScenarioM24DamagedFilesStartNoGuest(t *testing.T) {
	dir := t.TempDir()
	vm := startMicro(t, guestSweep)
	awaitCounter(t, vm, 1)
	store := openStore(t, dir)
	saved(t, vm, store)
	id := saved(t, vm, store).ID // two layers, to be swapped
	paths := regularFiles(t, dir)
	var layers []string
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Size() >= MinMemory {
			layers = append(layers, path)
		}
	}
	tried := 0
	damage := func(name string, do func() (undo func())) {
		t.Helper()
		undo := do()
		// Machines of other tests run meanwhile; one that is restored gets its
		// registers first.
		var mu sync.Mutex
		runs, restored := 0, make(map[int]bool)
		stop := observe(t, func(c kvm.Call) unix.Errno {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case c.Name == "KVM_SET_REGS":
				restored[c.VM] = true
			case c.Name == "KVM_RUN" && restored[c.VM]:
				runs++
			}
			return 0
		})
		s := openStore(t, dir)
		machine, err := Restore(t.Context(), s, id, StartOptions{})
		stop()
		if machine != nil {
			closeVM(t, machine)
		}
		mu.Lock()
		defer mu.Unlock()
		if !errors.Is(err, snapshot.ErrCorrupt) && !errors.Is(err, snapshot.ErrNotFound) && !errors.Is(err, snapshot.ErrVersion) || runs > 0 {
			t.Errorf("%s: %v; the guest was entered %d times", name, err, runs)
		}
		undo()
		tried++
	}
	for _, path := range paths {
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !matters(t, dir, path, id) {
			continue
		}
		replace := func(with []byte) func() func() {
			return func() func() {
				rewrite(t, path, with)
				return func() { rewrite(t, path, whole) }
			}
		}
		name := filepath.Base(path)
		damage(name+" cut by a byte", replace(whole[:len(whole)-1]))
		damage(name+" cut in half", replace(whole[:len(whole)/2]))
		damage(name+" a page longer", replace(append(slices.Clone(whole), make([]byte, pageSize)...)))
		for _, at := range interestingBytes(whole) {
			flipped := slices.Clone(whole)
			flipped[at] ^= 1 << (at % 8)
			damage(name+" with a bit flipped", replace(flipped))
		}
	}
	if len(layers) < 2 {
		t.Fatalf("layers %v", layers)
	}
	swap := func() func() {
		a, b := layers[0], layers[1]
		for _, move := range [][2]string{{a, a + ".x"}, {b, a}, {a + ".x", b}} {
			if err := os.Rename(move[0], move[1]); err != nil {
				t.Fatal(err)
			}
		}
		return func() {}
	}
	damage("two layers swapped", swap)
	swap()
	restored(t, openStore(t, dir), id) // all is as it was
	if tried < 10 {
		t.Errorf("%d damages", tried)
	}
}

// matters tells whether a snapshot cannot be restored without a file.
func matters(t *testing.T, dir, path, id string) bool {
	t.Helper()
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
	}()
	s, err := snapshot.Open(dir)
	if err != nil {
		return false
	}
	defer s.Close()
	stored, err := s.Load(t.Context(), id, nil)
	if err == nil {
		stored.Release()
	}
	return err != nil
}

// rewrite replaces a file that is read-only.
func rewrite(t *testing.T, path string, with []byte) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, with, 0o444); err != nil {
		t.Fatal(err)
	}
}

// interestingBytes are places in a file: the first, the last, some in between,
// and some where it is not zero.
func interestingBytes(b []byte) []int {
	at := []int{0, len(b) - 1}
	for i := range b {
		if b[i] != 0 && len(at) < 4 && i%1021 == 0 {
			at = append(at, i)
		}
	}
	return at
}

// TestScenarioB22DeleteWithChildren deletes a snapshot, and every file of its
// store, while machines that were restored from it have most of their memory
// yet to read.
func TestScenarioB22DeleteWithChildren(t *testing.T) {
	dir := t.TempDir()
	vm := startMicro(t, guestSweep)
	awaitCounter(t, vm, 1)
	scribble(t, vm, 8<<20)
	pause(t, vm)
	store := openStore(t, dir)
	id := saved(t, vm, store).ID
	image, err := Load(t.Context(), store, id, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	first := startFrom(t, image, StartOptions{})
	if err := store.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := store.GC(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), store, id, StartOptions{}); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("Restore of what was deleted: %v", err)
	}
	store.Close()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	second := startFrom(t, image, StartOptions{})
	grandchild := forks(t, first, 1)[0]
	const read = 16 << 20
	want, _ := vm.mem.Slice(read, 8<<20)
	for name, m := range map[string]*VM{"first": first, "second": second, "grandchild": grandchild} {
		awaitRun(t, m)
		if got, _ := m.mem.Slice(read, 8<<20); !bytes.Equal(got, want) {
			t.Errorf("%s: memory differs", name)
		}
	}
}

// TestScenarioB28AnotherCPUIsRefused restores machines that were shown what
// this host's CPU does not have. The error says what that is.
func TestScenarioB28AnotherCPUIsRefused(t *testing.T) {
	vm := startMicro(t, guestCounter)
	store := openStore(t, t.TempDir())
	image := captureOf(t, vm)
	good := slices.Clone(image.state.kvm.CPUID)
	for name, c := range map[string]struct {
		leaf, index uint32
		change      func(*kvm.CPUIDEntry2)
		says        string
	}{
		"another vendor":        {0, 0, func(e *kvm.CPUIDEntry2) { e.EBX ^= 0x20 }, "cpu of"},
		"a feature of leaf 1":   {leafFeatures, 0, func(e *kvm.CPUIDEntry2) { e.ECX = ^uint32(0) }, "ecx"},
		"a feature of leaf 7":   {leafStructured, 0, func(e *kvm.CPUIDEntry2) { e.EBX = ^uint32(0) }, "ebx"},
		"a component of XSAVE":  {leafXSAVE, 0, func(e *kvm.CPUIDEntry2) { e.EAX |= 3 << 17 }, "eax"},
		"a feature of KVM's":    {leafKVMFeatures, 0, func(e *kvm.CPUIDEntry2) { e.EAX |= 1 << 23 }, "40000001h"},
		"an AMD feature":        {leafExtFeatures, 0, func(e *kvm.CPUIDEntry2) { e.ECX = ^uint32(0) }, "80000001h"},
		"the CPU that is there": {0, 0, func(*kvm.CPUIDEntry2) {}, ""},
	} {
		image.state.kvm.CPUID = slices.Clone(good)
		for i := range image.state.kvm.CPUID {
			if e := &image.state.kvm.CPUID[i]; e.Function == c.leaf && e.Index == c.index {
				c.change(e)
			}
		}
		info, err := image.Save(t.Context(), store, SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		vm, err := Restore(t.Context(), store, info.ID, StartOptions{})
		if vm != nil {
			closeVM(t, vm)
		}
		if c.says == "" && err != nil || c.says != "" && !errors.Is(err, snapshot.ErrIncompatible) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && !strings.Contains(strings.ToLower(err.Error()), c.says) {
			t.Errorf("%s: the error does not say %q: %v", name, c.says, err)
		}
	}
}

const fullEnv = "FORKVM_TEST_FULL"

// TestScenarioP12B21FullDisk stores a machine on a file system that has no room
// for it, in a process with a mount of its own.
func TestScenarioP12B21FullDisk(t *testing.T) {
	if dir := os.Getenv(fullEnv); dir != "" {
		fullDisk(t, dir)
		return
	}
	closeVM(t, startMicro(t, guestHalt)) // there is a KVM, or the test is skipped
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), fullEnv+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("%v:\n%s", err, out)
	}
}

// fullDisk runs in a process whose mounts are its own.
func fullDisk(t *testing.T, dir string) {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("forkvm", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	store := openStore(t, dir)
	vm := startMicro(t, guestSweep)
	awaitCounter(t, vm, 1) // 8 MiB
	for _, paused := range []bool{false, true} {
		if paused {
			pause(t, vm)
		}
		if _, err := vm.Snapshot(t.Context(), store, SnapshotOptions{}); !errors.Is(err, snapshot.ErrNoSpace) || !errors.Is(err, unix.ENOSPC) {
			t.Errorf("Snapshot: %v, want ErrNoSpace", err)
		}
		if vm.paused != paused {
			t.Errorf("paused %v, was %v", vm.paused, paused)
		}
		resume(t, vm)
		awaitRun(t, vm)
	}
	if all, err := store.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("snapshots %v, %v", all, err)
	}
	// A machine that has less to store fits, and a fork needs no disk.
	forkAndClose(t, vm, 1)
	small := startMicro(t, guestCounter)
	awaitCounter(t, small, 1)
	restored(t, store, saved(t, small, store).ID)
}
