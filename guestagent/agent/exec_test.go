package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
)

func TestExecStreamsAndExitCode(t *testing.T) {
	both(t, func(t *testing.T, c *client.Client) {
		cmd := c.CommandContext(within(t, 10*time.Second), "sh", "-c", "cat; echo err >&2; exit 3")
		var out, errOut bytes.Buffer
		cmd.Stdin = strings.NewReader("in\n")
		cmd.Stdout, cmd.Stderr = &out, &errOut
		err := cmd.Run()
		var exit *client.ExitError
		if !errors.As(err, &exit) || exit.Code != 3 || exit.Signal != 0 {
			t.Fatalf("Run: %v, want exit status 3", err)
		}
		if out.String() != "in\n" || errOut.String() != "err\n" {
			t.Errorf("stdout %q stderr %q", &out, &errOut)
		}
	})
}

func TestExecOutput(t *testing.T) {
	both(t, func(t *testing.T, c *client.Client) {
		out, err := c.Command("echo", "a b", "$HOME").Output()
		if err != nil || string(out) != "a b $HOME\n" {
			t.Errorf("Output = %q, %v", out, err)
		}
		out, err = c.Command("sh", "-c", "echo 1; echo 2 >&2").CombinedOutput()
		if err != nil || len(out) != 4 {
			t.Errorf("CombinedOutput = %q, %v", out, err)
		}
		_, err = c.Command("sh", "-c", "echo why >&2; exit 1").Output()
		var exit *client.ExitError
		if !errors.As(err, &exit) || string(exit.Stderr) != "why\n" {
			t.Errorf("Output error %#v, want stderr in it", err)
		}
	})
}

func TestExecNilStdinIsEmpty(t *testing.T) {
	c := serve(t, agent.Options{})
	out, err := c.CommandContext(within(t, 10*time.Second), "cat").Output()
	if err != nil || len(out) != 0 {
		t.Errorf("cat of nothing = %q, %v", out, err)
	}
}

func TestExecPipesInOrder(t *testing.T) {
	both(t, func(t *testing.T, c *client.Client) {
		cmd := c.CommandContext(within(t, 10*time.Second), "cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for i := range 20 { // a conversation: each answer before the next question
			line := fmt.Sprintf("line %d\n", i)
			if _, err := io.WriteString(in, line); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(line))
			if _, err := io.ReadFull(out, got); err != nil || string(got) != line {
				t.Fatalf("got %q, %v; want %q", got, err, line)
			}
		}
		in.Close()
		if rest, err := io.ReadAll(out); err != nil || len(rest) != 0 {
			t.Errorf("rest %q, %v", rest, err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("Wait: %v", err)
		}
	})
}

func TestExecEnvDirArgs(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := serve(t, agent.Options{Dir: dir})
	run := func(mod func(*client.Cmd), script string) string {
		t.Helper()
		cmd := c.Command("/bin/sh", "-c", script)
		mod(cmd)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	none := func(*client.Cmd) {}
	if got := run(none, "cd /; pwd"); got != "/" {
		t.Errorf("cd: %q", got)
	}
	if got := run(none, "pwd"); got != dir {
		t.Errorf("default directory %q after a cd elsewhere, want %q", got, dir)
	}
	if got := run(func(c *client.Cmd) { c.Dir = "sub" }, "pwd"); got != dir+"/sub" {
		t.Errorf("relative directory %q", got)
	}
	if got := run(none, "echo $HOME $TERM"); got != "/root dumb" {
		t.Errorf("default environment %q", got)
	}
	if got := run(func(c *client.Cmd) { c.Env = []string{"A=1", "B=2"}; c.ExtraEnv = []string{"B=3"} }, "echo $A$B$HOME"); got != "13" {
		t.Errorf("given environment %q", got)
	}
	if got := run(func(c *client.Cmd) { c.Env = []string{} }, "echo x$HOME"); got != "x" {
		t.Errorf("empty environment %q", got)
	}
	raw := "\xff\xfe\x01"
	if got := run(func(c *client.Cmd) { c.ExtraEnv = []string{"RAW=" + raw} }, "printf %s \"$RAW\""); got != raw {
		t.Errorf("bytes that are not UTF-8: %q", got)
	}
}

func TestExecStartErrors(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := serve(t, agent.Options{})
	for _, tc := range []struct {
		name  string
		cmd   *client.Cmd
		mod   func(*client.Cmd)
		stage client.Stage
		is    error
	}{
		{"not in PATH", c.Command("no-such-program"), nil, client.StageLookup, fs.ErrNotExist},
		{"no such file", c.Command("/no/such/program"), nil, client.StageExec, fs.ErrNotExist},
		{"not executable", c.Command(plain), nil, client.StageExec, fs.ErrPermission},
		{"a directory", c.Command(dir), nil, client.StageExec, fs.ErrPermission},
		{"no such directory", c.Command("true"), func(c *client.Cmd) { c.Dir = "/no/such/dir" }, client.StageDir, fs.ErrNotExist},
		{"directory is a file", c.Command("true"), func(c *client.Cmd) { c.Dir = plain }, client.StageDir, syscall.ENOTDIR},
		{"no such user", c.Command("true"), func(c *client.Cmd) { c.User = "nobody-knows" }, client.StageUser, fs.ErrNotExist},
		{"no such group", c.Command("true"), func(c *client.Cmd) { c.User = "0:nobody-knows" }, client.StageUser, fs.ErrNotExist},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.mod != nil {
				tc.mod(tc.cmd)
			}
			err := tc.cmd.Run()
			var start *client.StartError
			if !errors.As(err, &start) {
				t.Fatalf("error %v (%T), want a StartError", err, err)
			}
			if start.Stage != tc.stage || !errors.Is(err, tc.is) {
				t.Errorf("%v: stage %q, want %q and %v", err, start.Stage, tc.stage, tc.is)
			}
		})
	}
	// A program that itself exits with 127 did start.
	var exit *client.ExitError
	if err := c.Command("sh", "-c", "exit 127").Run(); !errors.As(err, &exit) || exit.Code != 127 {
		t.Errorf("exit 127: %v", err)
	}
}

func TestExecUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Log("not root: only the own user can be tried")
	}
	c := serve(t, agent.Options{Dir: "/"})
	cmd := c.Command("id", "-u")
	cmd.User = fmt.Sprint(os.Getuid())
	want := fmt.Sprintln(os.Getuid())
	if os.Getuid() == 0 {
		cmd.User, want = "65534:65534", "65534\n"
	}
	out, err := cmd.Output()
	if err != nil || string(out) != want {
		t.Errorf("id -u as %s = %q, %v", cmd.User, out, err)
	}
}

func TestExecSignalIsToldFromExit(t *testing.T) {
	c := serve(t, agent.Options{})
	cmd := c.CommandContext(within(t, 10*time.Second), "sh", "-c", "echo up; sleep 100; echo not reached")
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	// The whole group gets it: sh would otherwise wait for its sleep.
	if err := cmd.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if rest, _ := io.ReadAll(out); len(rest) != 0 {
		t.Errorf("more output %q", rest)
	}
	var exit *client.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Signal != syscall.SIGTERM || exit.Code != -1 {
		t.Errorf("Wait: %v, want SIGTERM", err)
	}
	if err := cmd.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
}

// TestExecTimeoutEndsSession checks that a time-out leaves nothing running:
// neither a child in another process group, nor one in another session.
func TestExecTimeoutEndsSession(t *testing.T) {
	testTimeout(t, serve(t, agent.Options{}), map[string]string{
		"command": `echo $$ >FILE`,
		"child":   `sleep 1000 & echo $! >FILE`,
		"session": `setsid sh -c 'echo $$ >FILE; exec sleep 1000' &`,
		"nested":  `setsid sh -c 'setsid sh -c "sleep 1000 & echo \$! >FILE; wait" & wait' &`,
	})
}

// TestExecTimeoutEndsDaemons is the same with a process that has left the
// session and whose parent is gone: only a cgroup knows where it came from.
func TestExecTimeoutEndsDaemons(t *testing.T) {
	c := serve(t, agent.Options{CgroupDir: cgroupDir(t)})
	for range 3 { // the cgroups are used again
		testTimeout(t, c, map[string]string{
			"command": `echo $$ >FILE`,
			"daemon":  `setsid sh -c 'sleep 1000 & echo $! >FILE'`,
		})
	}
	if err := c.Command("true").Run(); err != nil {
		t.Error(err)
	}
}

// testTimeout runs the scripts, each of which writes a pid to FILE, until a
// time-out, and checks that all these processes are gone then. Where they had
// not got so far, nothing can be told, and they get twice the time.
func testTimeout(t *testing.T, c *client.Client, scripts map[string]string) {
	t.Helper()
	for timeout := 500 * time.Millisecond; !timedOut(t, c, timeout, scripts); timeout *= 2 {
		if timeout > 20*time.Second {
			t.Fatal("the scripts do not get there")
		}
	}
}

// timedOut runs the scripts until the time-out, and tells whether all of them
// had written their pids.
func timedOut(t *testing.T, c *client.Client, timeout time.Duration, scripts map[string]string) (all bool) {
	t.Helper()
	dir := t.TempDir()
	script := ""
	for name, s := range scripts {
		script += strings.ReplaceAll(s, "FILE", filepath.Join(dir, name)) + "\n"
	}
	cmd := c.CommandContext(within(t, timeout+30*time.Second), "sh", "-c", script+"wait; sleep 1000")
	cmd.Timeout = timeout
	start := time.Now()
	if err := cmd.Run(); !errors.Is(err, client.ErrTimeout) {
		t.Fatalf("Run: %v, want ErrTimeout", err)
	}
	if d := time.Since(start); d < cmd.Timeout {
		t.Errorf("timed out after %v", d)
	}
	all = true
	for name := range scripts {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.HasSuffix(b, []byte("\n")) {
			all = false
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		awaitGone(t, strings.TrimSpace(string(b)))
	}
	return all
}

// cgroupDir returns an empty cgroup v2 directory that this process may use.
func cgroupDir(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "cgroup2" {
			continue
		}
		dir, err := os.MkdirTemp(f[1], "forkvm-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { removeCgroups(t, dir) })
		return dir
	}
	lacks(t, "a cgroup v2 hierarchy that this user may write to")
	return ""
}

func removeCgroups(t *testing.T, dir string) {
	subs, err := filepath.Glob(filepath.Join(dir, "*/cgroup.procs"))
	if err != nil {
		t.Error(err)
	}
	for _, s := range subs {
		t.Errorf("agent left cgroup %s", filepath.Dir(s))
		_ = os.Remove(filepath.Dir(s))
	}
	if err := os.Remove(dir); err != nil {
		t.Error(err)
	}
}

// lacks skips a test for want of something that the machine does not have, or
// fails it where everything has to be there.
func lacks(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("FORKVM_REQUIRE_KVM") == "1" {
		t.Fatalf("this machine lacks %s", what)
	}
	t.Skipf("this machine lacks %s", what)
}

// awaitGone waits until a process is dead or a zombie.
func awaitGone(t *testing.T, pid string) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || bytes.Contains(b, []byte(") Z ")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %s lives on: %s", pid, b)
		}
		runtime.Gosched()
	}
}

func TestExecCancelKills(t *testing.T) {
	both(t, func(t *testing.T, c *client.Client) {
		ctx, cancel := context.WithCancel(within(t, 20*time.Second))
		// The command never reads its input, which is more than fits: the agent
		// must notice all the same that its client is gone.
		cmd := c.CommandContext(ctx, "sh", "-c", "echo $$; exec sleep 1000")
		cmd.Stdin = io.LimitReader(rand.Reader, 8<<20)
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 32)
		n, err := out.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := cmd.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("Wait: %v, want context.Canceled", err)
		}
		awaitGone(t, strings.TrimSpace(string(buf[:n])))
	})
}

func TestExecLeftOverChildDoesNotHoldExit(t *testing.T) {
	c := serve(t, agent.Options{})
	pidFile := filepath.Join(t.TempDir(), "pid")
	start := time.Now()
	out, err := c.CommandContext(within(t, 20*time.Second), "sh", "-c", "sleep 30 & echo $! >"+pidFile+"; echo done").Output()
	if err != nil || string(out) != "done\n" {
		t.Fatalf("Output = %q, %v", out, err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	fmt.Sscan(string(b), &pid)
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the child left behind was killed: %v", err)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

// TestExecAllOutputBeforeExit checks that nothing a command wrote is lost when
// it exits right afterwards.
func TestExecAllOutputBeforeExit(t *testing.T) {
	c := serve(t, agent.Options{})
	for _, tty := range []*client.WinSize{nil, {Rows: 24, Cols: 80}} {
		for i := range 30 {
			cmd := c.CommandContext(within(t, 20*time.Second), "sh", "-c", "sleep 100 & seq 1 3000; kill $! ; exit 7")
			cmd.TTY = tty
			out, err := cmd.Output()
			var exit *client.ExitError
			if !errors.As(err, &exit) || exit.Code != 7 {
				t.Fatal(err)
			}
			lines := strings.Fields(string(out))
			if len(lines) != 3000 || lines[2999] != "3000" {
				t.Fatalf("round %d tty %v: %d lines, last %q", i, tty != nil, len(lines), lines[max(0, len(lines)-1)])
			}
		}
	}
}

func TestExecTTY(t *testing.T) {
	c := serve(t, agent.Options{})
	cmd := c.CommandContext(within(t, 20*time.Second), "sh", "-c", "tty >/dev/null && echo tty; stty size; trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.05; done")
	cmd.TTY = &client.WinSize{Rows: 33, Cols: 44}
	out, _ := cmd.StdoutPipe()
	cmd.Stdin = neverReader{}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	readUntil(t, out, "tty\r\n33 44\r\nready\r\n")
	if err := cmd.Resize(client.WinSize{Rows: 55, Cols: 66}); err != nil {
		t.Fatal(err)
	}
	readUntil(t, out, "55 66\r\n")
	var exit *client.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Code != 5 {
		t.Errorf("Wait: %v", err)
	}
}

// neverReader is an input that never comes.
type neverReader struct{}

func (neverReader) Read([]byte) (int, error) { select {} }

// readUntil reads exactly want.
func readUntil(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got[:n], err, want)
	}
}

func TestExecTTYInput(t *testing.T) {
	c := serve(t, agent.Options{})
	cmd := c.CommandContext(within(t, 20*time.Second), "cat")
	cmd.TTY = &client.WinSize{Rows: 24, Cols: 80}
	cmd.Stdin = strings.NewReader("hello\n")
	out, err := cmd.Output()
	if err != nil || !strings.HasPrefix(string(out), "hello\r\nhello\r\n") {
		t.Errorf("cat on a terminal = %q, %v", out, err)
	}
}

func TestExecConcurrent(t *testing.T) {
	c := serve(t, agent.Options{})
	ctx := within(t, 60*time.Second)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			cmd := c.CommandContext(ctx, "sh", "-c", fmt.Sprintf("read x; echo $x %d; exit %d", i, i%7))
			cmd.Stdin = strings.NewReader(fmt.Sprintf("in%d\n", i))
			out, err := cmd.Output()
			if want := fmt.Sprintf("in%d %d\n", i, i); string(out) != want {
				t.Errorf("output %q, want %q (%v)", out, want, err)
			}
			var exit *client.ExitError
			code := 0
			if errors.As(err, &exit) {
				code = exit.Code
			} else if err != nil {
				t.Error(err)
			}
			if code != i%7 {
				t.Errorf("exit code %d, want %d", code, i%7)
			}
		})
	}
	wg.Wait()
	if ps, err := c.Processes(ctx); err != nil || len(ps) != 0 {
		t.Errorf("left over: %v, %v", ps, err)
	}
}

func TestExecBusy(t *testing.T) {
	c := serve(t, agent.Options{MaxProcs: 1})
	ctx := within(t, 20*time.Second)
	cmd := c.CommandContext(ctx, "cat")
	in, _ := cmd.StdinPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.CommandContext(ctx, "true").Run(); !errors.Is(err, client.ErrBusy) {
		t.Errorf("second command: %v, want ErrBusy", err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := c.CommandContext(ctx, "true").Run(); err != nil {
		t.Errorf("after the first: %v", err)
	}
}

// TestExecLargeStreams moves 100 MiB in and out again, and checks the sums and
// that memory stayed flat.
func TestExecLargeStreams(t *testing.T) {
	const size = 100 << 20
	c := serve(t, agent.Options{})
	sent, got := sha256.New(), sha256.New()
	cmd := c.CommandContext(within(t, 120*time.Second), "cat")
	cmd.Stdin = io.TeeReader(io.LimitReader(&noise{}, size), sent)
	heap := watchHeap(t)
	cmd.Stdout = io.MultiWriter(got, heap)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Error("checksums differ")
	}
	heap.check(t, size)
}

// noise is a fast endless input that does not repeat within a frame.
type noise struct{ n uint32 }

func (z *noise) Read(b []byte) (int, error) {
	for i := range b {
		z.n = z.n*1664525 + 1013904223
		b[i] = byte(z.n >> 24)
	}
	return len(b), nil
}

// heapWatch measures the heap, of client and agent together, as data passes.
type heapWatch struct {
	base, peak uint64
	n, next    int64
}

func watchHeap(t *testing.T) *heapWatch {
	return &heapWatch{base: liveHeap()}
}

func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (h *heapWatch) Write(b []byte) (int, error) {
	if h.n += int64(len(b)); h.n >= h.next {
		h.next += 10 << 20
		h.peak = max(h.peak, liveHeap())
	}
	return len(b), nil
}

func (h *heapWatch) check(t *testing.T, size int64) {
	t.Helper()
	if h.n != size {
		t.Errorf("%d bytes came, want %d", h.n, size)
	}
	if grown := int64(h.peak) - int64(h.base); grown > 8<<20 {
		t.Errorf("heap grew by %d KiB", grown>>10)
	}
}
