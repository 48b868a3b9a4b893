package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// job is what a child process does: a change of a store, or one of otherJobs.
type job struct {
	Change string
	Dir    string
	IDs    []string
	KillAt int // before this change of the disk, counted from 1
}

const jobVariable = "FORKVM_STORE_JOB"

// otherJobs are those that are not cut short.
var otherJobs = map[string]func(*testing.T, job){}

// command runs this test binary again, for one job.
func (j job) command(t testing.TB) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildProcess$", "-test.v")
	cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	return cmd
}

// TestChildProcess does the job of a child process, and nothing in the parent.
func TestChildProcess(t *testing.T) {
	text := os.Getenv(jobVariable)
	if text == "" {
		return
	}
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		t.Fatal(err)
	}
	if do := otherJobs[j.Change]; do != nil {
		do(t, j)
		return
	}
	var n atomic.Int64
	s, err := open(j.Dir, func(string, ...string) error {
		if n.Add(1) == int64(j.KillAt) {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {} // the signal may take a moment
		}
		return nil
	})
	if err == nil {
		err = changes[j.Change].do(t, s, j.IDs)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// wasKilled tells whether a process was killed; else it ended well.
func wasKilled(t testing.TB, cmd *exec.Cmd) bool {
	t.Helper()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return true
	}
	t.Fatalf("%v: %s", err, out)
	return false
}

// TestKilledAtEveryStep kills a process before each change that it makes to
// the disk. The next one to open the store finds everything or nothing, the
// snapshots that were there before, and sweeps the rest away.
func TestKilledAtEveryStep(t *testing.T) {
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			happened := false
			for k := 1; ; k++ {
				dir := filepath.Join(memoryDir(t), "store")
				ids := c.prepare(t, openStore(t, dir), dir)
				killed := wasKilled(t, job{name, dir, ids, k}.command(t))
				s := openStore(t, dir)
				now := wantWhole(t, name, s, ids)
				noLeftovers(t, s, dir)
				if t.Failed() {
					t.Fatalf("killed before change %d", k)
				}
				if happened && !now {
					t.Fatalf("killed before change %d: not done, but done when killed before", k)
				}
				happened = now
				if !killed {
					if k < 4 {
						t.Fatalf("only %d changes of the disk", k-1)
					}
					t.Logf("%d changes", k-1)
					break
				}
				if k == 200 {
					t.Fatal("no end")
				}
			}
			if !happened && name != "gc" {
				t.Error("not done in the end")
			}
		})
	}
}

// TestKilledWhileTheStoreIsMade kills the first process ever to open a store.
func TestKilledWhileTheStoreIsMade(t *testing.T) {
	for k := 1; ; k++ {
		dir := filepath.Join(memoryDir(t), "store")
		n := 0
		_, err := open(dir, func(string, ...string) error {
			if n++; n >= k {
				return errCut
			}
			return nil
		})
		s := openStore(t, dir)
		mustLoad(t, s, makeOld(t, s, dir)[0])
		if err == nil {
			break
		}
		if !errors.Is(err, errCut) {
			t.Fatal(err)
		}
	}
}

// TestPowerLossAtEveryStep simulates a machine that loses its power before
// each change of the disk. Of files there remains what was synced, of names
// either those that were synced or those of the moment.
func TestPowerLossAtEveryStep(t *testing.T) {
	for name, c := range changes {
		for _, keepNames := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, names kept %v", name, keepNames), func(t *testing.T) {
				for k := 1; ; k++ {
					dir := filepath.Join(memoryDir(t), "store")
					ids := c.prepare(t, openStore(t, dir), dir)
					m := newPowerModel(t, dir, k)
					err := func() error {
						s, err := open(dir, m.before)
						if err != nil {
							return err
						}
						defer s.Close()
						return c.do(t, s, ids)
					}()
					after := m.afterLoss(keepNames)
					s := openStore(t, after)
					happened := wantWhole(t, name, s, ids)
					if _, err := s.GC(ctx); err != nil {
						t.Error(err)
					}
					noLeftovers(t, s, after)
					if t.Failed() {
						t.Fatalf("power lost before change %d", k)
					}
					if m.n < k {
						if err != nil || !happened && name != "gc" {
							t.Fatalf("done, but it did not last: %v", err)
						}
						break
					}
				}
			})
		}
	}
}

// powerModel knows what a disk has when the power goes. It keeps a link to
// every file, so that one can still be read when its names are gone.
type powerModel struct {
	t       *testing.T
	mu      sync.Mutex
	dir     string
	cutAt   int
	n       int
	pending func()            // what the last change does, if it succeeded
	now     map[string]string // name → link
	durable map[string]string
	synced  map[string]bool // links whose bytes are on the disk
	links   int
}

func newPowerModel(t *testing.T, dir string, cutAt int) *powerModel {
	m := &powerModel{t: t, dir: dir, cutAt: cutAt, now: map[string]string{}, durable: map[string]string{}, synced: map[string]bool{}}
	if err := os.Mkdir(dir+"-links", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files(t, dir), lockName+" 0") {
		name, _, _ := strings.Cut(f, " ")
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			m.link(name)
			m.synced[m.now[name]] = true
		}
	}
	for name, link := range m.now {
		m.durable[name] = link
	}
	return m
}

func (m *powerModel) link(name string) {
	m.links++
	link := fmt.Sprintf("%s-links/%d", m.dir, m.links)
	if err := os.Link(filepath.Join(m.dir, name), link); err != nil {
		m.t.Fatal(err)
	}
	m.now[name] = link
}

// before is asked by the store; from the cut on it refuses everything.
func (m *powerModel) before(op string, names ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n++; m.n >= m.cutAt {
		m.settle()
		return errCut
	}
	m.settle()
	name := names[0]
	switch op {
	case "create":
		m.pending = func() { m.link(name) }
	case "write", "truncate":
		m.pending = func() { m.synced[m.now[name]] = false }
	case "sync":
		m.pending = func() { m.synced[m.now[name]] = true }
	case "rename":
		m.pending = func() { m.now[names[1]] = m.now[name]; delete(m.now, name) }
	case "remove":
		m.pending = func() { delete(m.now, name) }
	case "syncdir":
		m.pending = func() { m.syncDir(name) }
	}
	return nil
}

func (m *powerModel) settle() {
	if m.pending != nil {
		m.pending()
		m.pending = nil
	}
}

func (m *powerModel) syncDir(dir string) {
	for name := range m.durable {
		if filepath.Dir(name) == dir && m.now[name] == "" {
			delete(m.durable, name)
		}
	}
	for name, link := range m.now {
		if filepath.Dir(name) == dir {
			m.durable[name] = link
		}
	}
}

// afterLoss makes the directory that is found when the power is back.
func (m *powerModel) afterLoss(keepNames bool) string {
	m.settle()
	dir, names := m.dir+"-after", m.durable
	if keepNames {
		names = m.now
	}
	for _, sub := range []string{layersDir, snapshotsDir, tmpDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			m.t.Fatal(err)
		}
	}
	for name, link := range names {
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			m.t.Fatal(err)
		}
		var err error
		if m.synced[link] {
			err = os.Link(link, to)
		} else {
			err = os.WriteFile(to, nil, 0o400)
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
	return dir
}
