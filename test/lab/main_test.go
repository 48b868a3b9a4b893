package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/test/lab/internal/image"
)

// asProgram names what the test binary is to be in the machine.
const asProgram = "LAB_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if name := os.Getenv(asProgram); name != "" {
		if err := programs[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, name+":", err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	ctx, cancel := context.WithCancel(context.Background())
	inTime = ctx
	if limit := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); limit > 0 {
		time.AfterFunc(limit-limit/10, cancel)
	}
	code := m.Run()
	cancel()
	for _, l := range started {
		l.close()
	}
	os.Exit(code)
}

// inTime is done a while before the time of these tests is: commands that still run then are
// ended, and with them their machines, while there is somebody to do so.
var inTime context.Context

// needLab skips a test where no machine can be emulated, or fails if it must not be skipped.
func needLab(t *testing.T) {
	t.Helper()
	checked := checkOnce()
	if checked == nil {
		return
	}
	if os.Getenv(requireVariable) != "" {
		t.Fatalf("the lab cannot run here: %v", checked)
	}
	t.Skipf("the lab cannot run here: %v", checked)
}

var checkOnce = sync.OnceValue(func() error {
	var errs []error
	for _, c := range image.Checks(context.Background()) {
		errs = append(errs, c.Err)
	}
	return errors.Join(errs...)
})

// started are the labs to close when all tests are done.
var started []*testLab

// A testLab is a lab with a folder of its own, apart from that of the person who runs the tests, but
// with the same kernels.
type testLab struct {
	cache string
	// lab is the command, built without cgo as it must be.
	lab string
}

func newLab(t *testing.T) *testLab {
	t.Helper()
	needLab(t)
	l, err := makeLab()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

func makeLab() (*testLab, error) {
	kernels, err := image.KernelsDir()
	if err != nil {
		return nil, err
	}
	cache, err := os.MkdirTemp("", "lab-test-")
	if err != nil {
		return nil, err
	}
	l := &testLab{cache: cache, lab: filepath.Join(cache, "bin", "lab")}
	build := exec.CommandContext(inTime, "go", "build", "-o", l.lab, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w: %s", err, out)
	}
	return l, os.Symlink(kernels, filepath.Join(cache, "kernels"))
}

func (l *testLab) close() {
	l.commandContext(context.Background(), "down", "--now").Run()
	os.RemoveAll(l.cache)
}

// sharedLab is a lab with a machine that is up, for all tests that do it no harm.
func sharedLab(t *testing.T) *testLab {
	t.Helper()
	needLab(t)
	l, err := upOnce()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var upOnce = sync.OnceValues(func() (*testLab, error) {
	l, err := makeLab()
	if err != nil {
		return nil, err
	}
	started = append(started, l)
	if out, err := l.command("up").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("lab up: %w: %s", err, out)
	}
	return l, nil
})

// command is the lab command with its arguments.
func (l *testLab) command(args ...string) *exec.Cmd { return l.commandContext(inTime, args...) }

func (l *testLab) commandContext(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.lab, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // It ends its machine.
	cmd.WaitDelay = 10 * time.Second                                         // for who else has its output
	cmd.Env = append(os.Environ(), modeVariable+"=force", "FORKVM_CACHE="+l.cache)
	return cmd
}

// program runs one of programs in the machine.
func (l *testLab) program(name string, flags []string, args ...string) *exec.Cmd {
	all := append([]string{"run", "--env", asProgram + "=" + name}, flags...)
	return l.command(append(append(all, "--", self()), args...)...)
}

// self is the test binary.
func self() string {
	exe, err := os.Executable()
	if err != nil {
		panic(err) // On Linux it is always known.
	}
	return exe
}

// A result is how a lab command ended and what it printed.
type result struct {
	code           int
	stdout, stderr string
}

func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
}

func (r result) want(t *testing.T, code int, stdout string) {
	t.Helper()
	if r.code != code || r.stdout != stdout {
		t.Errorf("exit code %d, stdout %q; want %d, %q\nstderr: %s", r.code, clip(r.stdout), code, clip(stdout), clip(r.stderr))
	}
}

func clip(s string) string {
	const most = 4000
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// deadline bounds waiting for something in a machine that other work slows down.
const deadline = 2 * time.Minute

// lineWriter tells of each line written to it.
type lineWriter struct {
	mu    sync.Mutex
	buf   string
	lines chan string
}

func newLineWriter() *lineWriter { return &lineWriter{lines: make(chan string, 100)} }

func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf += string(b)
	for {
		line, rest, ok := strings.Cut(w.buf, "\n")
		if !ok {
			return len(b), nil
		}
		w.buf = rest
		w.lines <- line
	}
}

// next waits for a line.
func (w *lineWriter) next(t *testing.T) string {
	t.Helper()
	select {
	case line := <-w.lines:
		return line
	case <-time.After(deadline):
		t.Fatal("no line was printed")
		return ""
	}
}
