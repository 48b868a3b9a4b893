package agent_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
)

// spareGuest is an agent that has spares, and commands which they can become.
type spareGuest struct {
	*client.Client
	t    *testing.T
	bin  string       // where the commands are
	pids func() []int // of the spares, the next first
}

func serveWithSpares(t *testing.T) *spareGuest {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g := &spareGuest{t: t, bin: t.TempDir()}
	for _, name := range []string{"echo", "cat", "env", "pwd", "sh", "true", "sleep"} {
		if err := os.Symlink(self, filepath.Join(g.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serve func() error
	g.pids, serve = agent.ServeWithSpares(ctx, l, agent.Options{}, self)
	done := make(chan error, 1)
	go func() { done <- serve() }()
	t.Cleanup(func() {
		pids := g.pids()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		for _, pid := range pids {
			if exists("/proc/" + strconv.Itoa(pid)) {
				t.Errorf("spare %d was left behind", pid)
			}
		}
	})
	g.Client = client.New(dialer(path))
	return g
}

// spare waits for all spares and returns the process id of the next.
func (g *spareGuest) spare() int {
	g.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		if pids := g.pids(); len(pids) == agent.MaxSpares {
			return pids[0]
		}
		if time.Now().After(deadline) {
			g.t.Fatal("no spares")
		}
	}
}

// command is one that the spare is to become.
func (g *spareGuest) command(name string, arg ...string) *client.Cmd {
	cmd := g.CommandContext(within(g.t, 20*time.Second), filepath.Join(g.bin, name), arg...)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	return cmd
}

// output runs a command and fails the test if the spare did not become it.
func (g *spareGuest) output(cmd *client.Cmd) (string, error) {
	g.t.Helper()
	pid := g.spare()
	out, err := cmd.Output()
	if cmd.PID() != pid {
		g.t.Errorf("%q ran as process %d, the spare is %d", cmd.Args, cmd.PID(), pid)
	}
	return string(out), err
}

// TestSpareIsTheCommand checks that a command which a spare became cannot be
// told from one that was started.
func TestSpareIsTheCommand(t *testing.T) {
	g := serveWithSpares(t)
	want := func(cmd *client.Cmd, want string) {
		t.Helper()
		if out, err := g.output(cmd); err != nil || out != want {
			t.Errorf("%q: %q, %v, want %q", cmd.Args, out, err, want)
		}
	}
	want(g.command("echo", "a", "b c"), "a b c\n")
	want(g.command("cat"), "")
	shown, err := g.output(g.command("cat", "/proc/self/cmdline"))
	if err != nil || strings.TrimRight(shown, "\x00") != filepath.Join(g.bin, "cat")+"\x00/proc/self/cmdline" {
		t.Errorf("shown command line: %q, %v", shown, err)
	}
	want(g.command("cat", "/proc/self/comm"), "cat\n")

	cmd := g.command("cat")
	cmd.Stdin = strings.NewReader(strings.Repeat("input ", 100_000))
	want(cmd, strings.Repeat("input ", 100_000))

	cmd = g.command("pwd")
	cmd.Dir = "/usr"
	want(cmd, "/usr\n")

	cmd = g.command("env")
	cmd.Env, cmd.ExtraEnv = []string{"A=1", "B==", "C="}, []string{"A=2"}
	out, err := g.output(cmd)
	got := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []string{"A=2", "B==", "C="}) {
		t.Errorf("environment %q, %v", got, err)
	}
	var exit *client.ExitError
	if _, err := g.output(g.command("sh", "-c", "echo oops >&2; exit 7")); !errors.As(err, &exit) || exit.Code != 7 || string(exit.Stderr) != "oops\n" {
		t.Errorf("exit: %v", err)
	}
	stat, err := g.output(g.command("cat", "/proc/self/stat"))
	f := strings.Fields(stat) // pid (comm) state ppid pgrp session
	if err != nil || len(f) < 6 || f[4] != f[0] || f[5] != f[0] {
		t.Errorf("it leads neither group nor session: %q, %v", stat, err)
	}
}

// TestSpareStartsProgramsWithExactTimers checks that the timers of programs are
// as exact as usual though those of the shell that starts them are not.
func TestSpareStartsProgramsWithExactTimers(t *testing.T) {
	g := serveWithSpares(t)
	for _, cmd := range []*client.Cmd{
		g.command("sh", "-c", "/bin/cat /proc/self/timerslack_ns"),
		g.command("env", "/bin/cat", "/proc/self/timerslack_ns"),
	} {
		if out, err := g.output(cmd); err != nil || out != "50000\n" {
			t.Errorf("%q: %q, %v", cmd.Args[1:], out, err)
		}
	}
}

// TestSpareInTheBackground checks that a command which a spare became outlives
// its client, can be attached to and killed.
func TestSpareInTheBackground(t *testing.T) {
	g := serveWithSpares(t)
	pid := g.spare()
	cmd := g.command("sh", "-c", "echo one; read x; echo $x; sleep 1000")
	cmd.Detach, cmd.OpenStdin = true, true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if cmd.PID() != pid {
		t.Errorf("process %d, the spare is %d", cmd.PID(), pid)
	}
	ctx := within(t, 20*time.Second)
	var out strings.Builder
	done := make(chan error, 1)
	go func() {
		done <- g.Attach(ctx, cmd.ProcessID(), client.Attachment{Stdin: strings.NewReader("two\n"), Stdout: &out})
	}()
	ps, err := g.Processes(ctx)
	if err != nil || len(ps) != 1 || ps[0].PID != pid || !ps[0].Detached || ps[0].Args[1] != "-c" {
		t.Errorf("list: %+v, %v", ps, err)
	}
	awaitChild(t, pid)
	if err := g.SignalProcess(ctx, cmd.ProcessID(), syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	var exit *client.ExitError
	if err := <-done; !errors.As(err, &exit) || exit.Signal != syscall.SIGKILL || out.String() != "one\ntwo\n" {
		t.Errorf("attach: %v, %q", err, &out)
	}
}

// awaitChild waits until a process has started another.
func awaitChild(t *testing.T, pid int) {
	t.Helper()
	name := "/proc/" + strconv.Itoa(pid)
	tasks, err := os.ReadDir(name + "/task")
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		for _, task := range tasks {
			if b, _ := os.ReadFile(name + "/task/" + task.Name() + "/children"); len(b) > 0 {
				return
			}
		}
	}
	t.Fatal("no child")
}

// TestDeadSpare checks that commands do without a spare that somebody killed,
// and that the next spare is none the worse.
func TestDeadSpare(t *testing.T) {
	g := serveWithSpares(t)
	g.spare()
	dead := g.pids()
	for _, pid := range dead {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for exists("/proc/" + strconv.Itoa(pid)) { // it is collected at once
		}
	}
	cmd := g.CommandContext(within(t, 20*time.Second), "/bin/echo", "hi")
	if out, err := cmd.Output(); err != nil || string(out) != "hi\n" {
		t.Errorf("a program: %q, %v", out, err)
	}
	own := g.command("echo", "hi")
	own.Env = append(own.Env, asCommand+"=1")
	if out, err := own.Output(); err != nil || string(out) != "hi\n" || slices.Contains(dead, own.PID()) {
		t.Errorf("a command: %q, %v", out, err)
	}
	if out, err := g.output(g.command("echo", "again")); err != nil || out != "again\n" {
		t.Errorf("the next spare: %q, %v", out, err)
	}
}

// TestManyCommandsShareNoSpare starts more commands at once than there are
// spares.
func TestManyCommandsShareNoSpare(t *testing.T) {
	g := serveWithSpares(t)
	g.spare()
	pids := make(chan int, 20)
	for i := range cap(pids) {
		go func() {
			cmd := g.command("echo", strconv.Itoa(i))
			cmd.Env = append(cmd.Env, asCommand+"=1")
			if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != strconv.Itoa(i) {
				t.Errorf("%d: %q, %v", i, out, err)
			}
			pids <- cmd.PID()
		}()
	}
	seen := make(map[int]bool)
	for range cap(pids) {
		pid := <-pids
		if seen[pid] {
			t.Errorf("two commands were process %d", pid)
		}
		seen[pid] = true
	}
}
