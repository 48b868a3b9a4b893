package sandbox

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/api"
)

// needJails skips where the kernel lets this user have no name spaces.
func needJails(t testing.TB) {
	t.Helper()
	j, err := startJail(t.TempDir())
	if err != nil {
		needTool(t, "name spaces of one's own: "+err.Error())
	}
	j.close()
}

// witness is what of this machine a jail must not reach. Its rights would let
// anybody: it is the jail that is to be in the way.
type witness struct {
	dir, file string
	other     *jail // its processes are of the same user as those of any jail
	passwd    []byte
	hostname  string
}

const witnessed = "nobody touches this"

func newWitness(t *testing.T) *witness {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "forkvm-witness")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &witness{dir: dir, file: filepath.Join(dir, "file")}
	w.passwd, _ = os.ReadFile("/etc/passwd") // "" where there is none
	w.hostname = must[string](t)(os.Hostname())
	if err := errors.Join(os.WriteFile(w.file, []byte(witnessed), 0o666), os.Chmod(w.file, 0o666), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	w.other = must[*jail](t)(startJail(t.TempDir()))
	t.Cleanup(w.other.close)
	return w
}

// check looks whether all is as it was.
func (w *witness) check(t *testing.T, after string) {
	t.Helper()
	if got, err := os.ReadFile(w.file); string(got) != witnessed {
		t.Fatalf("after %s: the file has %q, %v", after, got, err)
	}
	if names, err := os.ReadDir(w.dir); err != nil || len(names) != 1 {
		t.Fatalf("after %s: the directory has %v, %v", after, names, err)
	}
	if got, _ := os.ReadFile("/etc/passwd"); !bytes.Equal(got, w.passwd) {
		t.Fatalf("after %s: /etc/passwd has changed", after)
	}
	if got, err := os.Hostname(); got != w.hostname {
		t.Fatalf("after %s: the host name is %q, %v", after, got, err)
	}
	select {
	case <-w.other.ended:
		t.Fatalf("after %s: a process of this machine has ended", after)
	default:
	}
}

// TestJail: whatever is asked of a jailed machine, this machine stays as it was.
func TestJail(t *testing.T) {
	needJails(t)
	w := newWitness(t)
	r := newRig(t, Limits{})
	r.w.jails = true
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	t.Run("commands", func(t *testing.T) { jailCommands(ctx, t, r, w) })
	t.Run("files", func(t *testing.T) { jailedFiles(ctx, t, r, w) })
	t.Run("what it sees", func(t *testing.T) { jailSees(ctx, t, r, w) })
	t.Run("bounds", func(t *testing.T) { jailBounds(ctx, t, r) })
	w.check(t, "all")
}

// jailCommands runs what would do harm. The agent outlives all of it.
func jailCommands(ctx context.Context, t *testing.T, r *rig, w *witness) {
	self, other := strconv.Itoa(os.Getpid()), strconv.Itoa(w.other.first.Pid)
	for _, argv := range [][]string{
		{"rm", "-rf", "/"}, {"rm", "-rf", w.dir}, {"rm", "-rf", "/proc/1/root" + w.dir}, {"rm", "-rf", "/proc/1/cwd" + w.dir},
		{"rm", "-rf", "/old" + w.dir}, {"rm", "-rf", "/.." + w.dir}, {"mv", w.dir, "/tmp/mine"},
		{"kill", "-9", "-1"}, {"kill", "-9", self}, {"kill", "-9", other}, {"kill", "-9", "1"}, {"kill", "-15", "-1"},
		{"hostname", "taken"}, {"poweroff"}, {"poweroff", "-f"}, {"reboot"}, {"reboot", "-f"},
		{"mount", "-t", "tmpfs", "tmpfs", "/tmp"}, {"mount", "-o", "remount,rw", "/init"}, {"umount", "/proc"}, {"umount", "/init"},
		{"sh", "-c", "echo 1 > /proc/sys/kernel/sysrq; echo b > /proc/sysrq-trigger; echo x > /proc/sys/kernel/core_pattern"},
		{"sh", "-c", "echo 100 > /proc/sys/user/max_user_namespaces && hostname taken"},
		{"env", jailStage + "=build", "/init"}, {"env", jailStage + "=serve", "/init"},
		{"dd", "if=/dev/zero", "of=" + w.file, "bs=1024", "count=1"}, {"chmod", "0", "/dev/null"}, {"chown", "0", w.file},
	} {
		b := r.create(t, api.Settings{})
		run := func(argv ...string) (*api.ExecResult, error) {
			return r.Exec(ctx, b.Access(), api.ExecRequest{Command: api.Command{Argv: argv, TimeoutSeconds: api.Set(int64(10))}})
		}
		_, err := run(argv...)
		w.check(t, fmt.Sprint(argv))
		res, again := run("echo", "on")
		if again != nil || string(res.Stdout) != "on\n" {
			t.Errorf("after %v (%v): %+v, %v", argv, err, res, again)
		}
		if err := r.Destroy(ctx, b.ID); err != nil {
			t.Error(err)
		}
	}
}

func jailedFiles(ctx context.Context, t *testing.T, r *rig, w *witness) {
	a := r.create(t, api.Settings{}).Access()
	write := func(path string) func() error {
		return func() error {
			_, err := r.WriteFile(ctx, a, path, strings.NewReader("x"), api.WriteOptions{})
			return err
		}
	}
	rename := func(from, to string) func() error {
		return func() error { _, err := r.Rename(ctx, a, from, to); return err }
	}
	remove := func(path string) func() error {
		return func() error { return r.Remove(ctx, a, path, api.RemoveOptions{Recursive: true}) }
	}
	for _, what := range []struct {
		name string
		do   func() error
	}{
		{"a write to /etc/passwd", write("/etc/passwd")},
		{"a write", write(w.file)},
		{"a rename of what is there", rename(w.dir, "/tmp/taken")},
		{"a rename to it", rename("/etc", w.dir+"/etc")},
		{"a rename by /proc", rename("/proc/1/root"+w.dir, "/tmp/x")},
		{"a removal", remove(w.dir)},
		{"a removal of /etc", remove("/etc")},
		{"an archive", func() error { return r.WriteTree(ctx, a, "/tmp", evilTree(t, w)) }},
		{"a write through a link", write("/tmp/up/file")},
	} {
		t.Logf("%s: %v", what.name, what.do())
		w.check(t, what.name)
	}
}

// jailSees checks that nothing of this machine is there to be reached.
func jailSees(ctx context.Context, t *testing.T, r *rig, w *witness) {
	a := r.create(t, api.Settings{}).Access()
	res := must[*api.ExecResult](t)(r.Exec(ctx, a, api.ExecRequest{Command: api.Command{Argv: []string{"cat", "/proc/self/mounts"}}}))
	if len(res.Stdout) == 0 {
		t.Errorf("its mounts: %+v", res)
	}
	for line := range strings.Lines(string(res.Stdout)) {
		f := strings.Fields(line)
		if own := f[1] == "/" && f[2] == "tmpfs" || f[1] == "/init" || f[1] == "/bin" || f[1] == "/proc"; !own && !strings.HasPrefix(f[1], "/dev/") {
			t.Errorf("it has mounted %s", line)
		}
	}
	if _, err := r.Stat(ctx, a, w.file); !errors.Is(err, api.NotFound) {
		t.Errorf("this machine's file: %v", err)
	}
	for _, f := range must[*api.FileList](t)(r.ListFiles(ctx, a, "/proc")).Files {
		if pid, err := strconv.Atoi(f.Name); err == nil && pid > 50 {
			t.Errorf("it sees process %d", pid)
		}
	}
	res = must[*api.ExecResult](t)(r.Exec(ctx, a, api.ExecRequest{Command: api.Command{Argv: []string{"cat", "/proc/sys/user/max_user_namespaces"}}}))
	if string(res.Stdout) != "0\n" {
		t.Errorf("it may make %s user name spaces", res.Stdout)
	}
	res = must[*api.ExecResult](t)(r.Exec(ctx, a, api.ExecRequest{Command: api.Command{Argv: []string{"grep", "Cap", "/proc/self/status"}}}))
	want := uint64(0)
	for _, c := range jailCapabilities {
		want |= 1 << c
	}
	if n := strings.Count(string(res.Stdout), "\n"); n != 5 {
		t.Errorf("%d sets of capabilities: %s", n, res.Stdout)
	}
	for line := range strings.Lines(string(res.Stdout)) {
		f := strings.Fields(line)
		if got, err := strconv.ParseUint(f[1], 16, 64); err != nil || got&^want != 0 {
			t.Errorf("its commands may do more than is meant: %s", line)
		}
	}
}

// processesIn counts the processes of a jail. It may have ended for want of
// threads, which is an end as well.
func processesIn(ctx context.Context, r *rig, a api.Access) (n int) {
	list, err := r.ListFiles(ctx, a, "/proc")
	if err != nil {
		return 0
	}
	for _, f := range list.Files {
		if _, err := strconv.Atoi(f.Name); err == nil {
			n++
		}
	}
	return n
}

// jailBounds has a jail take as much as it gets, and end with all that it has.
func jailBounds(ctx context.Context, t *testing.T, r *rig) {
	bomb := r.create(t, api.Settings{}).Access()
	_, err := r.Exec(ctx, bomb, api.ExecRequest{Command: api.Command{
		Argv: []string{"sh", "-c", strings.Repeat("sleep 1000 & ", 300)}, TimeoutSeconds: api.Set(int64(2)),
	}})
	if n := processesIn(ctx, r, bomb); n >= int(jailLimits[unix.RLIMIT_NPROC]) {
		t.Errorf("%d processes at once (%v)", n, err)
	}
	b := r.create(t, api.Settings{})
	_, err = r.WriteFile(ctx, b.Access(), "/tmp/all", io.LimitReader(zeros{}, 4*jailDisk), api.WriteOptions{})
	if err == nil {
		t.Error("a file has more than there is space for")
	}
	sleep := api.StartRequest{Command: api.Command{Argv: []string{"sleep", "1000"}, TimeoutSeconds: api.Clear[int64]()}}
	started := 0
	for ; started < 1000; started++ {
		if _, err := r.Start(ctx, b.Access(), sleep); err != nil {
			break
		}
	}
	if started == 0 || started > 100 {
		t.Errorf("%d commands at once", started)
	}
	j := r.machine(b.ID).jail
	if err := r.Destroy(ctx, b.ID); err != nil {
		t.Error(err)
	}
	select {
	case <-j.ended:
	case <-ctx.Done():
		t.Fatal("the jail has not ended")
	}
	if err := j.first.Signal(syscall.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("its first process: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// evilTree is an archive that is to write outside of where it is unpacked.
func evilTree(t *testing.T, w *witness) io.Reader {
	var b bytes.Buffer
	a := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "up", Typeflag: tar.TypeSymlink, Linkname: w.dir},
		{Name: "up/file", Typeflag: tar.TypeReg},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: w.file},
		{Name: "../../../.." + w.file, Typeflag: tar.TypeReg},
	} {
		if err := a.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}
