package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/probe"
	"github.com/forkvm/forkvm/test/lab/internal/session"
)

// modeVariable overrides the choice between this host's KVM and a machine.
const modeVariable = "FORKVM_LAB"

// requireVariable makes the tests of the lab fail where they cannot run.
const requireVariable = "FORKVM_REQUIRE_LAB"

// direct tells whether this host's own KVM is to be used.
func direct() (bool, error) {
	switch mode := os.Getenv(modeVariable); mode {
	case "force":
		return false, nil
	case "direct":
		return true, nil
	case "":
		return hasHardwareKVM(), nil
	default:
		return false, fmt.Errorf("%s=%q: it may be force, direct or empty", modeVariable, mode)
	}
}

// hasHardwareKVM tells whether /dev/kvm may be used and runs guests on hardware. A KVM with which
// anything goes wrong is not good enough.
func hasHardwareKVM() bool {
	s, err := kvm.Open("")
	if err != nil {
		return false
	}
	defer s.Close()
	info, err := probe.Flavor(s)
	return err == nil && !info.Emulated
}

// runDirect runs a command on this host.
func runDirect(ctx context.Context, c session.Command) (session.Exit, error) {
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Dir, cmd.Env = c.Dir, append(os.Environ(), c.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	if err := cmd.Start(); err != nil {
		return session.Exit{}, fmt.Errorf("%w: %w", session.ErrStart, err)
	}
	stop := c.Signals.Deliver(func(sig os.Signal) { cmd.Process.Signal(sig) }) // The program may have ended.
	err := cmd.Wait()
	stop()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code := exit.ExitCode()
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			code = session.SignalExit + int(status.Signal())
		}
		return session.Exit{Code: code, TimedOut: errors.Is(ctx.Err(), context.DeadlineExceeded)}, nil
	}
	return session.Exit{}, err
}
