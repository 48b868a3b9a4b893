package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/kvm/probe/probetest"
	"github.com/forkvm/forkvm/snapshot"
)

// fullStore in the environment is the directory of a small file system, for the
// store of TestScenarioB21FullStore.
const fullStore = "FORKVM_TEST_FULL_STORE"

// TestScenarioB21FullStore pauses and snapshots sandboxes when the disk of the
// store is full, in a process with a mount of its own. Each time the sandbox goes
// on at once, and nothing is left in the store.
func TestScenarioB21FullStore(t *testing.T) {
	if dir := os.Getenv(fullStore); dir != "" {
		withFullStore(t, dir)
		return
	}
	probetest.NeedLinux(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), fullStore+"="+t.TempDir())
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

// withFullStore runs in a process whose mounts are its own.
func withFullStore(t *testing.T, dir string) {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("forkvm", dir, "tmpfs", 0, "size=512m,nr_inodes=300"); err != nil {
		t.Fatal(err)
	}
	elsewhere := os.TempDir()
	t.Setenv("TMPDIR", dir) // the store is there, and nothing else
	store := linuxTemplates(t)
	t.Setenv("TMPDIR", elsewhere)
	t.Run("engine", func(t *testing.T) {
		e := must[*Engine](t)(Open(t.Context(), t.TempDir(), Options{Templates: store.Store}))
		defer e.Close(context.Background(), CloseDestroys)
		r := newLinuxRig(t, e)
		s := r.create(workTemplate)
		r.sh(s, "mkdir /m && mount -t tmpfs m /m && head -c 16777216 /dev/urandom >/m/x && sha256sum </m/x >/m/sum")
		pause := func() error { _, err := r.Pause(r.ctx, s.ID); return err }
		snapshot := func() error {
			_, err := r.CreateSnapshot(r.ctx, s.ID, api.SnapshotRequest{Name: "of a full disk"})
			return err
		}
		// Half of it can be written. Only while the guest stands still: where a layer
		// of its memory has a hole, this file system needs room to read it.
		remove := fill(t, dir, 8<<20)
		r.fails(s, "pause", pause)
		remove()
		// One file can be made, or two, and so on, until all can.
		for _, do := range []func() error{snapshot, pause} {
			files := 0
			for fits := false; !fits && files < 100; files += 1 + files {
				remove := exhaust(t, dir, files)
				fits = r.failsOrNot(s, fmt.Sprintf("room for %d files", files), do)
				remove()
			}
			if files < 2 || files >= 100 {
				t.Errorf("it went well with room for %d files", files)
			}
		}
		// What was stored at last is whole.
		page := must[*api.SnapshotPage](t)(r.Snapshots(r.ctx, api.SnapshotQuery{}))
		if len(page.Snapshots) != 1 {
			t.Fatalf("snapshots: %+v", page)
		}
		restored, resumed := r.create(page.Snapshots[0].ID), must[*api.Sandbox](t)(r.Resume(r.ctx, s.ID))
		r.sh(restored, isWhole)
		r.sh(resumed, isWhole)
	})
}

// isWhole is a script that succeeds if memory is as it was.
const isWhole = "test \"$(sha256sum </m/x)\" = \"$(cat /m/sum)\""

// fails checks that what is done to a sandbox that runs fails for want of space,
// that it goes on, and that nothing is left.
func (r *linuxRig) fails(s *api.Sandbox, when string, do func() error) {
	r.t.Helper()
	if r.failsOrNot(s, when, do) {
		r.t.Errorf("%s: it went well", when)
	}
}

// failsOrNot is fails, unless it does not.
func (r *linuxRig) failsOrNot(s *api.Sandbox, when string, do func() error) (fine bool) {
	r.t.Helper()
	store := r.machines.(*vmMachines).Snapshots()
	before := must[[]snapshot.Info](r.t)(store.List(r.ctx))
	err := do()
	if err == nil {
		return true
	}
	wantCode(r.t, err, api.NotEnoughSpace)
	begin := time.Now()
	r.sh(s, isWhole)
	if d := time.Since(begin); d > 20*time.Second {
		r.t.Errorf("%s: a command afterwards took %v", when, d)
	}
	if now := must[*api.Sandbox](r.t)(r.Get(r.ctx, s.ID)); now.State != api.Running || now.AccessToken != s.AccessToken {
		r.t.Errorf("%s: %+v", when, now)
	}
	if after := must[[]snapshot.Info](r.t)(store.List(r.ctx)); len(after) != len(before) {
		r.t.Errorf("%s: stored are %v, before %v", when, after, before)
	}
	return false
}

// fill takes all of a file system but for some bytes, and returns what gives it
// back.
func fill(t *testing.T, dir string, room int64) (remove func()) {
	t.Helper()
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	f := must[*os.File](t)(os.Create(filepath.Join(dir, "ballast")))
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(s.Bavail)*s.Bsize-room); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
	}
}

// exhaust makes files until a file system has room for some more only, and returns
// what removes them.
func exhaust(t *testing.T, dir string, files int) (remove func()) {
	t.Helper()
	ballast := filepath.Join(dir, "ballast")
	if err := os.Mkdir(ballast, 0o700); err != nil {
		t.Fatal(err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	for k := range int(s.Ffree) - files {
		if err := os.WriteFile(filepath.Join(ballast, strconv.Itoa(k)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.RemoveAll(ballast); err != nil {
			t.Error(err)
		}
	}
}
