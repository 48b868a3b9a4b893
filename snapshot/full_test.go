package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// takesSpace are the changes for which a file system may have no room, and
// whether that stays so: a failed sync is reported once.
var takesSpace = map[string]bool{
	"mkdir": true, "create": true, "truncate": true, "write": true, "rename": true,
	"sync": false, "syncdir": false,
}

// TestFullAtEveryStep has each change that takes space fail, alone and with
// all that follow. The error says so, nothing is left, and once there is
// space again the same store does the same.
func TestFullAtEveryStep(t *testing.T) {
	for name := range changes {
		t.Run(name, func(t *testing.T) { fullAtEveryStep(t, name, &fullDisk{errno: unix.ENOSPC}) })
		t.Run(name+", stays full", func(t *testing.T) { fullAtEveryStep(t, name, &fullDisk{errno: unix.ENOSPC, stays: true}) })
	}
	t.Run("quota", func(t *testing.T) { fullAtEveryStep(t, "create", &fullDisk{errno: unix.EDQUOT}) })
}

func fullAtEveryStep(t *testing.T, name string, d *fullDisk) {
	for k := 1; ; k++ {
		dir := filepath.Join(memoryDir(t), "store")
		d.fillAt(0)
		s, err := open(dir, d.before)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		c := changes[name]
		ids := c.prepare(t, openStore(t, dir), dir)
		before := files(t, dir)

		d.fillAt(k)
		err = c.do(t, s, ids)
		if d.hits == 0 {
			if err != nil || k == 1 {
				t.Fatalf("full at no change, %v", err)
			}
			return
		}
		// To delete is allowed to succeed on a full disk.
		if err != nil && (!errors.Is(err, ErrNoSpace) || !errors.Is(err, d.errno)) || err == nil && name != "delete" {
			t.Errorf("%v, want ErrNoSpace and the errno", err)
		}
		if c.after > c.before && !slices.Equal(files(t, dir), before) {
			t.Errorf("files %v, before %v", files(t, dir), before)
		}
		wantWhole(t, name, s, ids)

		d.fillAt(0)
		if err := c.do(t, s, ids); err != nil && !(name == "delete" && errors.Is(err, ErrNotFound)) {
			t.Errorf("with space again: %v", err)
		}
		if happened := wantWhole(t, name, s, ids); !happened && name != "gc" {
			t.Error("with space again: not done")
		}
		if _, err := s.GC(ctx); err != nil {
			t.Error(err)
		}
		noLeftovers(t, s, dir)
		if t.Failed() {
			t.Fatalf("full at change %d", k)
		}
	}
}

type fullDisk struct {
	mu    sync.Mutex
	n     int
	from  int // 0 is never
	stays bool
	errno unix.Errno
	hits  int
}

// fillAt has the disk become full at the k-th change from now on.
func (d *fullDisk) fillAt(k int) { d.n, d.from, d.hits = 0, k, 0 }

func (d *fullDisk) before(op string, _ ...string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	again, ok := takesSpace[op]
	if !ok || d.from == 0 {
		return nil
	}
	if d.n++; d.n < d.from || d.n > d.from && !(d.stays && again) {
		return nil
	}
	d.hits++
	return d.errno
}

func init() { otherJobs["full"] = fullFileSystems }

// TestFullFileSystem does the same on file systems that are really full. They
// are mounted in a name space of their own, which needs no privilege where
// users may have one.
func TestFullFileSystem(t *testing.T) {
	cmd := job{Change: "full", Dir: t.TempDir()}.command(t)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
		lacks(t, "user name spaces: "+err.Error())
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
}

// lacks skips a test that needs what this machine has not.
func lacks(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("FORKVM_REQUIRE_TOOLS") == "1" {
		t.Fatalf("this machine lacks %s", what)
	}
	t.Skipf("this machine lacks %s", what)
}

// fullFileSystems tries file systems that are larger each time, by pages and
// by files, until a snapshot fits.
func fullFileSystems(t *testing.T, j job) {
	for _, limit := range []string{"size=%dk", "nr_inodes=%d"} {
		failed, before := 0, 0
		for n := 4; ; n++ {
			opt := fmt.Sprintf(limit, n)
			dir := filepath.Join(j.Dir, opt)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, opt); err != nil {
				t.Fatal(err)
			}
			ok, wasOpen := snapshotFits(t, dir)
			if t.Failed() {
				t.Fatal(opt)
			}
			if ok {
				break
			}
			if failed++; !wasOpen {
				before++
			}
			if n == 400 {
				t.Fatal("never fits")
			}
		}
		t.Logf("%s: failed %d times, %d of them before the first snapshot", limit, failed, before)
		if failed-before < 3 {
			t.Errorf("%s: too few failures", limit)
		}
	}
}

// snapshotFits makes two snapshots in a small file system.
func snapshotFits(t *testing.T, dir string) (fits, first bool) {
	s, err := Open(dir)
	if err != nil {
		wantNoSpace(t, err)
		return false, false
	}
	defer s.Close()
	memory := tableOf(t, oldMemory)
	if _, err := s.Create(ctx, Draft{Memory: memory}); err != nil {
		wantNoSpace(t, err)
		if got := files(t, dir); len(got) > 0 {
			t.Errorf("left over: %v", got)
		}
		return false, false
	}
	ids, before := listed(t, s), files(t, dir)
	_, err = s.Create(ctx, Draft{
		Memory:   overlay(t, memory, pages{4, 4, 4, 4, 4, 4, 4, 4}),
		Disks:    []Disk{{"a", tableOf(t, otherMemory)}},
		Sections: map[string][]byte{"big": make([]byte, 20_000)},
	})
	if err != nil {
		wantNoSpace(t, err)
		if got := files(t, dir); !slices.Equal(got, before) {
			t.Errorf("files %v, before %v", got, before)
		}
		wantPages(t, mustLoad(t, s, ids[0]).Memory, oldMemory)
	}
	if err := s.Delete(ctx, ids[0]); err != nil { // which must not take space
		t.Error(err)
	}
	noLeftovers(t, s, dir)
	return err == nil, true
}

func wantNoSpace(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, want ErrNoSpace and ENOSPC", err)
	}
}
