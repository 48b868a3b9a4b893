package vmm

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/forkvm/forkvm/initrd/rootfs/ext4"
	"github.com/forkvm/forkvm/kvm/kvmtest"
	"github.com/forkvm/forkvm/snapshot"
)

// withDisks has a file system on /dev/vda, which is mounted, and zeros on
// /dev/vdb and, only to be read, on /dev/vdc.
var withDisks = &guestKind{kernel: "minimal", vcpus: 1, disks: func(dir string) ([]Disk, error) {
	image := filepath.Join(dir, "data.ext4")
	if err := ext4.Write(image, 32<<20, ext4.Options{UUID: [16]byte{1}, Label: "data"}); err != nil {
		return nil, err
	}
	return []Disk{
		{Name: "data", Image: image},
		{Name: "raw", Size: 64 << 20},
		{Name: "fixed", Image: image, ReadOnly: true},
	}, os.Chmod(image, 0o400)
}}

// mounted is a machine of its own with the file system mounted on /mnt.
func mounted(t testing.TB) *VM {
	t.Helper()
	vm := withDisks.fork(t)
	output(t, vm, "mkdir", "-p", "/mnt")
	output(t, vm, "mount", "-t", "ext4", "/dev/vda", "/mnt")
	return vm
}

// e2fsck checks the file system on a disk as a fresh kernel would find it: its
// journal is replayed, and then nothing may be wrong.
func e2fsck(t testing.TB, vm *VM, number int) {
	t.Helper()
	program := os.Getenv("FORKVM_TEST_E2FSCK")
	if program == "" {
		var err error
		if program, err = exec.LookPath("e2fsck"); err != nil {
			kvmtest.Skip(t, "no e2fsck")
		}
	}
	path := filepath.Join(t.TempDir(), "disk")
	dump(t, vm, number, path)
	// 1: the journal was replayed, and the free counts made right.
	out, err := exec.Command(program, "-fp", path).CombinedOutput()
	if exit, ok := err.(*exec.ExitError); err != nil && !(ok && exit.ExitCode() == 1) {
		t.Errorf("e2fsck -fp: %v\n%s", err, out)
	}
	if out, err := exec.Command(program, "-fn", path).CombinedOutput(); err != nil {
		t.Errorf("e2fsck -fn: %v\n%s", err, out)
	}
}

// dump writes what a disk of the machine holds to a file.
func dump(t testing.TB, vm *VM, number int, path string) {
	t.Helper()
	image, err := vm.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	_, onDisk, err := image.retain()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(onDisk[number].Size()); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	for _, e := range onDisk[number].Extents() {
		for at := e.Start; at < e.End(); at += int64(len(buf)) {
			p := buf[:min(int64(len(buf)), e.End()-at)]
			if err := onDisk[number].ReadAt(p, at); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(p, at); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// blocks checks the blocks of a disk, and writes others: see helperBlocks.
func blocks(t testing.TB, vm *VM, device string, seeds ...string) {
	t.Helper()
	output(t, vm, helperPath, append([]string{"blocks", device}, seeds...)...)
}

// TestScenarioP04BlocksOfForks writes blocks all over a disk and forks. The
// source and four children write others to the same places and read them back,
// past the page cache; one is reset and has the source's again. The source has
// what was written in memory, or in a file, below which is a store on the same
// file system.
func TestScenarioP04BlocksOfForks(t *testing.T) {
	vm := withDisks.fork(t)
	blocks(t, vm, "/dev/vdb", "0", "parent")
	t.Run("memory", func(t *testing.T) { forksKeepTheirBlocks(t, vm, 1) })
	t.Run("file", func(t *testing.T) { forksKeepTheirBlocks(t, storedIn(t, vm, t.TempDir()), 4) })
}

func forksKeepTheirBlocks(t *testing.T, vm *VM, n int) {
	all := append(forks(t, vm, n), vm)
	if vm.cfg.Scratch == "" {
		all = all[:n] // the source is to stay what it is
	}
	var wg sync.WaitGroup
	for i, m := range all {
		wg.Go(func() { blocks(t, m, "/dev/vdb", "parent", fmt.Sprint("own-", i), fmt.Sprint("again-", i)) })
	}
	wg.Wait()
	for i, m := range all {
		blocks(t, m, "/dev/vdb", fmt.Sprint("again-", i))
	}
	if err := all[0].Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	blocks(t, all[0], "/dev/vdb", "parent")
}

// storedIn is a machine restored from a snapshot of vm, with store and files
// for what is written in dir.
func storedIn(t *testing.T, vm *VM, dir string) *VM {
	t.Helper()
	store, err := snapshot.Open(filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	info, err := vm.Snapshot(t.Context(), store, SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	image, err := Load(t.Context(), store, info.ID, LoadOptions{Scratch: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	again, err := image.Start(t.Context(), StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeVM(t, again) })
	return again
}

// TestScenarioB10ForksWriteTheirDisks has ten forks of a machine whose file
// system is mounted, with unwritten data in its page cache, write different
// files at once. Each has its own and the parent's, and is clean.
func TestScenarioB10ForksWriteTheirDisks(t *testing.T) {
	vm := mounted(t)
	output(t, vm, "sh", "-c", "mkdir /mnt/d && echo parent > /mnt/d/parent && sync && echo late > /mnt/d/late")
	children := forks(t, vm, 10)
	var wg sync.WaitGroup
	for i, c := range children {
		wg.Go(func() {
			output(t, c, "sh", "-c", fmt.Sprintf(
				"for n in 1 2 3 4 5 6 7 8; do echo child %d > /mnt/d/$n; done; dd if=/bin/guest-helper of=/mnt/d/big bs=64k count=16 2>/dev/null; mv /mnt/d/8 /mnt/d/of-%d; sync", i, i))
		})
	}
	wg.Wait()
	sum := output(t, vm, "sh", "-c", "dd if=/bin/guest-helper bs=64k count=16 2>/dev/null | sha256sum")
	for i, c := range children {
		output(t, c, "sh", "-c", "echo 3 > /proc/sys/vm/drop_caches")
		got := output(t, c, "cat", "/mnt/d/parent", "/mnt/d/late", "/mnt/d/1", fmt.Sprintf("/mnt/d/of-%d", i))
		if want := fmt.Sprintf("parent\nlate\nchild %d\nchild %d", i, i); got != want {
			t.Errorf("child %d has %q, want %q", i, got, want)
		}
		if got := output(t, c, "sh", "-c", "sha256sum < /mnt/d/big"); got != sum {
			t.Errorf("child %d: its large file has %s, want %s", i, got, sum)
		}
		output(t, c, "umount", "/mnt")
		e2fsck(t, c, 0)
	}
	if got := output(t, vm, "ls", "/mnt/d"); got != "late\nparent" {
		t.Errorf("the parent has %q", got)
	}
	e2fsck(t, vm, 0) // as if the power had failed
}

// TestScenarioB11EveryAcknowledgedRecord captures a guest that appends records
// to a file and waits for each to be on disk, time and again. Whatever it had
// said before a snapshot is on the disk of that snapshot, and its file system
// is whole.
func TestScenarioB11EveryAcknowledgedRecord(t *testing.T) {
	rounds := 3
	if *scenarioFull {
		rounds = 50
	}
	vm := mounted(t)
	said := startLog(t, vm)
	store, err := snapshot.Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for range rounds {
		before := said.next()
		info, err := vm.Snapshot(t.Context(), store, SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		again, err := Restore(t.Context(), store, info.ID, StartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		checkLog(t, again, before)
		e2fsck(t, again, 0)
		closeVM(t, again)
	}
	if said.last < int64(rounds) {
		t.Errorf("only %d records in all", said.last)
	}
}

// checkLog reads the log from the disk of a machine in which it still grows.
func checkLog(t *testing.T, vm *VM, atLeast int64) {
	t.Helper()
	output(t, vm, "sh", "-c", "echo 3 > /proc/sys/vm/drop_caches")
	got, err := vm.CommandContext(t.Context(), "cat", "/mnt/log").Output()
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(got)) < atLeast*logRecord {
		t.Errorf("%d bytes of %d records", len(got), atLeast)
	}
	for i := 0; len(got) >= logRecord; i++ {
		if !bytes.Equal(got[:logRecord], record(i)) {
			t.Fatalf("record %d is %q", i, got[:logRecord])
		}
		got = got[logRecord:]
	}
}

// TestScenarioB27FullGuestDisk fills a disk: the guest is told, and lives on.
func TestScenarioB27FullGuestDisk(t *testing.T) {
	vm := mounted(t)
	_, err := vm.CommandContext(t.Context(), "dd", "if=/dev/zero", "of=/mnt/big", "bs=1M").Output()
	if err == nil {
		t.Error("more was written than there is room for")
	}
	output(t, vm, "rm", "/mnt/big")
	output(t, vm, "sh", "-c", "echo again > /mnt/small && sync")
	e2fsck(t, vm, 0)
}

// TestReadOnlyDisk refuses writes and says so to the guest's kernel.
func TestReadOnlyDisk(t *testing.T) {
	vm := withDisks.fork(t)
	if got := output(t, vm, "cat", "/sys/block/vdc/ro", "/sys/block/vdc/serial"); got != "1\nfixed" {
		t.Errorf("read only, serial: %q", got)
	}
	output(t, vm, "sh", "-c", "mkdir /m && mount -t ext4 -o ro,noload /dev/vdc /m && ls /m/lost+found")
	if _, err := vm.CommandContext(t.Context(), "mount", "-o", "remount,rw", "/m", "/m").Output(); err == nil {
		t.Error("it was mounted for writing")
	}
}

// TestDiskUsage: a fresh fork has nothing of its own; one that wrote has that;
// and what is deleted and discarded is gone again.
func TestDiskUsage(t *testing.T) {
	vm := mounted(t)
	output(t, vm, "sync")
	child := forks(t, vm, 1)[0]
	own := func(what string, low, high int64) {
		t.Helper()
		disks, err := child.Disks()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d KiB of its own, %d shared", what, disks[0].Own>>10, disks[0].Shared>>10)
		if n := disks[0].Own; n < low || n > high {
			t.Errorf("%s: %d bytes of its own, want %d to %d", what, n, low, high)
		}
	}
	own("fresh", 0, 64<<10)
	output(t, child, "sh", "-c", "dd if=/dev/urandom of=/mnt/f bs=1M count=8 2>/dev/null && sync")
	own("8 MiB written", 8<<20, 9<<20)
	output(t, child, "sh", "-c", "rm /mnt/f && sync")
	output(t, child, "mount", "-o", "remount,discard", "/mnt", "/mnt")
	output(t, child, "sh", "-c", "dd if=/dev/urandom of=/mnt/f bs=1M count=8 2>/dev/null && sync && rm /mnt/f && sync")
	own("written again, and discarded", 0, 9<<20)
}

// TestForkUnderDiskLoad forks a machine that has requests in flight all the
// time. They are completed, in it and not once more in the children, which go
// on with the same load.
func TestForkUnderDiskLoad(t *testing.T) {
	vm := withDisks.fork(t)
	cmd := vm.CommandContext(t.Context(), "sh", "-c", "while true; do dd if=/dev/vdb of=/dev/null bs=64k count=20 2>/dev/null; "+
		"dd if=/dev/zero of=/dev/vdb bs=64k count=20 2>/dev/null; echo round; sync; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := io.ReadFull(out, make([]byte, len("round\n"))); err != nil {
			t.Fatal(err)
		}
		children, err := vm.Fork(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range children {
			output(t, c, "dd", "if=/dev/vdb", "of=/dev/null", "bs=64k", "count=20")
			closeVM(t, c)
		}
	}
}
