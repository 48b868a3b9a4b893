package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/test/lab/internal/inside"
)

// A Command is a program to run.
type Command struct {
	// Path is where the program is inside, Args its arguments without its name.
	Path string
	Args []string
	// Dir is its working directory, made if it is missing.
	Dir string
	// Env is added to the agent's default environment.
	Env            []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Timeout ends it. 0: never.
	Timeout time.Duration
	// Signals, if not nil, are passed on to it.
	Signals *Signals
}

// An Exit is how a program ended.
type Exit struct {
	// Code is its exit code; if a signal ended it, 128 and the signal's number.
	Code int
	// TimedOut says that Timeout ended it.
	TimedOut bool
}

// ErrStart says that a program could not be started.
var ErrStart = errors.New("session: the program cannot be started")

// SignalExit is what is added to the number of a signal that ended a program.
const SignalExit = 128

// guestCmdline is what every guest of forkvm needs on its kernel command line inside the lab, in the
// variable from which the command and the tests take it. QEMU's emulation of SVM does not intercept
// XSETBV, so KVM believes that its guests have XCR0 = 1 and loads that at every entry: a guest kernel
// that switches tasks with XSAVE would then switch only the x87 registers, and programs would find
// others' values in their XMM registers. With FXSAVE it switches them itself.
const guestCmdline = "FORKVM_CMDLINE=noxsave"

// Run runs a program to its end. Its error says that how the program ended is unknown (ErrLost if
// the connection broke) or that it did not start (ErrStart).
func (s *Session) Run(ctx context.Context, c Command) (Exit, error) {
	if err := s.Mkdir(ctx, c.Dir); err != nil {
		return Exit{}, err
	}
	cmd := s.c.CommandContext(ctx, c.Path, c.Args...)
	cmd.Dir, cmd.Timeout = c.Dir, c.Timeout
	cmd.ExtraEnv = append([]string{guestCmdline}, c.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	if err := cmd.Start(); err != nil {
		if start, ok := errors.AsType[*client.StartError](err); ok {
			return Exit{}, fmt.Errorf("%w: %w", ErrStart, start)
		}
		return Exit{}, fmt.Errorf("session: start %s: %w", c.Path, lost(err))
	}
	defer c.Signals.Deliver(func(sig os.Signal) { cmd.Signal(sig) })() // The program may have ended.
	return exitOf(c.Path, cmd.Wait())
}

func exitOf(path string, err error) (Exit, error) {
	if err == nil {
		return Exit{}, nil
	}
	exit, ok := errors.AsType[*client.ExitError](err)
	switch {
	case !ok:
		return Exit{}, fmt.Errorf("session: run %s: %w", path, lost(err))
	case exit.Signal != 0:
		return Exit{Code: SignalExit + int(exit.Signal), TimedOut: exit.TimedOut}, nil
	}
	return Exit{Code: exit.Code, TimedOut: exit.TimedOut}, nil
}

// Sync has the machine write what its file systems hold to their disks.
func (s *Session) Sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	if err := s.c.CommandContext(ctx, inside.SyncCommand[0], inside.SyncCommand[1:]...).Run(); err != nil {
		return fmt.Errorf("session: sync: %w", lost(err))
	}
	return nil
}

// Mkdir makes a folder with those above it.
func (s *Session) Mkdir(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	if err := s.c.FS().WithContext(ctx).MkdirAll(dir, 0o755); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("session: make folder %s: %w", dir, lost(err))
	}
	return nil
}
