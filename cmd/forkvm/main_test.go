package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/cmd/forkvm/internal/doctor"
	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/kvm/kvmtest"
	"github.com/forkvm/forkvm/vmm"
)

// The test binary is forkvm under that name, and /init in its guests.
func TestMain(m *testing.M) {
	agent.Main()
	if os.Getenv(passedToMe) != "" { // as who starts a program cannot know before
		os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	}
	testscript.Main(m, map[string]func(){"forkvm": main})
}

// passedToMe in the environment says that sockets are passed to this process.
const passedToMe = "FORKVM_TEST_PASSED"

func TestScripts(t *testing.T) { runScripts(t, "testdata/script") }

// TestGuestScripts boots guests.
func TestGuestScripts(t *testing.T) {
	needGuest(t)
	runScripts(t, "testdata/guest")
}

// TestKVMScripts run guests of a few instructions.
func TestKVMScripts(t *testing.T) {
	kvmtest.OpenOrSkip(t)
	runScripts(t, "testdata/kvm")
}

// needGuest skips the test where Linux cannot be booted, unless it must be.
func needGuest(t *testing.T) {
	t.Helper()
	if os.Getenv("FORKVM_REQUIRE_KVM") == "1" {
		return
	}
	for _, c := range doctor.Run(t.Context(), doctor.Options{}) {
		if c.Status == doctor.Fail || c.Name == "kvm flavor" && c.Status != doctor.Pass {
			t.Skipf("%s: %s", c.Name, c.Detail)
		}
	}
}

// runScripts runs those of a folder, with what else is set up.
func runScripts(t *testing.T, dir string, setup ...func(*testscript.Env)) {
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code":       expectCode,
			"json":       expectJSON,
			"store":      makeStore,
			"flip":       flipByte,
			"stopserver": stopServer,
			"setenv":     setenvToFile,
		},
		Setup: func(env *testscript.Env) error {
			cache, err := initrd.CacheDir()
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			env.Setenv("elf", self) // a program for x86-64, as a kernel is
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("FORKVM_CACHE", cache) // where guest kernels are
			for _, v := range os.Environ() {
				if strings.HasPrefix(v, "FORKVM_") {
					env.Vars = append(env.Vars, v)
				}
			}
			env.Setenv("FORKVM_STORE", filepath.Join(env.WorkDir, "store"))
			env.Setenv("FORKVM_TEMPLATES", filepath.Join(env.WorkDir, "templates"))
			env.Setenv("FORKVM_STATE", filepath.Join(env.WorkDir, "state"))
			env.Defer(func() { // of a script that failed
				_ = signalServer(filepath.Join(env.WorkDir, "state"), unix.SIGKILL)
			})
			for _, f := range setup {
				f(env)
			}
			return nil
		},
	})
}

// expectCode runs a command that must end with an exit code: code N COMMAND.
func expectCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// stopServer stops the server that a command has started, and waits for its end.
func stopServer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: stopserver")
	}
	ts.Check(signalServer(ts.MkAbs("state"), unix.SIGTERM))
}

var errGoesOn = errors.New("the server goes on")

// serverOf is the process that serves a directory, and 0 if it has ended.
func serverOf(state string) (pid int, err error) {
	log, err := os.ReadFile(filepath.Join(state, "serve.log"))
	if err != nil {
		return 0, err
	}
	started := regexp.MustCompile(`listening.* pid=([0-9]+)`).FindAllStringSubmatch(string(log), -1)
	if started == nil {
		return 0, errors.New("no server was started")
	}
	pid, err = strconv.Atoi(started[len(started)-1][1])
	if err != nil {
		return 0, err
	}
	// Another process may have its number.
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || !strings.Contains(string(line), state) {
		return 0, nil
	}
	return pid, nil
}

// signalServer ends the server that a command has started for a directory.
func signalServer(state string, sig syscall.Signal) error {
	pid, err := serverOf(state)
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if again, err := serverOf(state); again != pid {
		return fmt.Errorf("process %d is no server any more: %v", pid, err)
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		return err
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000); n != 1 {
		return fmt.Errorf("%w: %v", errGoesOn, err)
	}
	return nil
}

// expectJSON checks that the last standard output is one JSON value which has
// each path: json a.0.b
func expectJSON(ts *testscript.TestScript, neg bool, paths []string) {
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &v))
	for _, path := range paths {
		if _, ok := dig(v, strings.Split(path, ".")); ok == neg {
			ts.Fatalf("%s: there is %v, want %v", path, ok, !neg)
		}
	}
}

func dig(v any, path []string) (any, bool) {
	if len(path) == 0 {
		return v, true
	}
	switch v := v.(type) {
	case map[string]any:
		next, ok := v[path[0]]
		if !ok {
			return nil, false
		}
		return dig(next, path[1:])
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i < 0 || i >= len(v) {
			return nil, false
		}
		return dig(v[i], path[1:])
	}
	return nil, false
}

func TestByteSize(t *testing.T) {
	for in, want := range map[string]byteSize{
		"1": 1, "64k": 64 << 10, "256M": 256 << 20, "4G": 4 << 30, "4gib": 4 << 30, "3MB": 3 << 20, "12b": 12,
	} {
		var b byteSize
		if err := b.Set(in); err != nil || b != want {
			t.Errorf("Set(%q): %d, %v; want %d", in, b, err, want)
		}
		var again byteSize
		if err := again.Set(b.String()); err != nil || again != b {
			t.Errorf("%d prints as %q, which is %d, %v", b, b.String(), again, err)
		}
	}
	for _, in := range []string{"", "M", "-1M", "0", "1T", "1.5G", "9223372036854775807G", "1 M", "M1"} {
		var b byteSize
		if err := b.Set(in); err == nil {
			t.Errorf("Set(%q) took it as %d", in, b)
		}
	}
}

func TestWriteFileIsWholeOrNotThere(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	broken := errors.New("broken")
	err := writeFile(name, 0o640, func(w io.Writer) error {
		fmt.Fprint(w, "half")
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	err = writeFile(name, 0o640, func(w io.Writer) error {
		_, err := fmt.Fprint(w, "whole")
		return err
	})
	if got, readErr := os.ReadFile(name); err != nil || string(got) != "whole" {
		t.Errorf("wrote %q, %v, %v", got, err, readErr)
	}
	if info, err := os.Stat(name); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// TestWriteFileDoesNotReplaceADevice: /dev/null must not become a file.
func TestWriteFileDoesNotReplaceADevice(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		got, _ := os.ReadFile(pipe)
		read <- string(got)
	}()
	err := writeFile(pipe, 0o600, func(w io.Writer) error {
		_, err := fmt.Fprint(w, "through")
		return err
	})
	if got := await(t, read, "bytes in the pipe"); err != nil || got != "through" {
		t.Errorf("read %q, %v", got, err)
	}
	if info, err := os.Stat(pipe); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("it is now %v, %v", info.Mode(), err)
	}
}

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("anything"), 125},
		{usageError("what?"), 2},
		{fmt.Errorf("vmm: %w: Memory: odd", vmm.ErrConfig), 2},
		{fmt.Errorf("boot: %w", interrupted{syscall.SIGTERM}), 143},
		{commandError("c", nil), 0},
		{commandError("c", fmt.Errorf("exec: %w", &client.ExitError{Code: 42})), 42},
		{commandError("c", &client.ExitError{Code: -1, Signal: syscall.SIGKILL}), 137},
		{commandError("c", &client.ExitError{Code: -1, Signal: syscall.SIGKILL, TimedOut: true}), 124},
		{commandError("c", &client.StartError{Stage: client.StageLookup, Errno: syscall.ENOENT}), 127},
		{commandError("c", &client.StartError{Stage: client.StageLookup, Errno: syscall.EACCES}), 126},
		{commandError("c", &client.StartError{Stage: client.StageDir, Errno: syscall.ENOENT}), 126},
		{commandError("c", errors.New("machine ended")), 125},
	} {
		if got := exitCode(test.err); got != test.want {
			t.Errorf("%v: exit code %d, want %d", test.err, got, test.want)
		}
	}
}

// await fails the test if nothing comes in time.
func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatal("no " + what)
		panic("not reached")
	}
}

func raise(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), sig); err != nil {
		t.Fatal(err)
	}
}

func TestSignals(t *testing.T) {
	ctx, sig := watchSignals(t.Context())
	got := make(chan os.Signal)
	sig.forward(func(s os.Signal) { got <- s })
	for range 2 {
		raise(t, syscall.SIGHUP)
		if s := await(t, got, "signal"); s != syscall.SIGHUP {
			t.Fatalf("got %v", s)
		}
		if ctx.Err() != nil {
			t.Fatal("a forwarded signal ended the context")
		}
	}
	raise(t, syscall.SIGHUP)
	await(t, got, "third signal")
	await(t, ctx.Done(), "end after the third signal")
	if code := exitCode(context.Cause(ctx)); code != 129 {
		t.Errorf("exit code %d, want 129", code)
	}
}

func TestSignalAfterCommand(t *testing.T) {
	ctx, sig := watchSignals(t.Context())
	sig.forward(func(s os.Signal) { t.Errorf("a command that has ended got %v", s) })
	sig.keep()
	raise(t, syscall.SIGHUP)
	await(t, ctx.Done(), "end after a signal")
	if code := exitCode(context.Cause(ctx)); code != 129 {
		t.Errorf("exit code %d, want 129", code)
	}
}

func TestSignalBeforeCommand(t *testing.T) {
	ctx, _ := watchSignals(t.Context())
	raise(t, syscall.SIGHUP)
	await(t, ctx.Done(), "end after a signal")
	if code := exitCode(context.Cause(ctx)); code != 129 {
		t.Errorf("exit code %d, want 129", code)
	}
}

// TestGuestSignal sends a signal to forkvm that ends the command in the guest.
func TestGuestSignal(t *testing.T) {
	needGuest(t)
	cmd := exec.CommandContext(t.Context(), "forkvm", "run", "--", "sh", "-c", "echo started; exec sleep 600")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "started\n" {
		t.Errorf("printed %q, %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 143 {
		t.Errorf("ended with %v, want exit code 143", err)
	}
}

// setenvToFile sets a variable to what a file has:
//
//	setenv NAME FILE
func setenvToFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: setenv NAME FILE")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
}
