package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/vmm"
)

// commandFlags say how a command runs in a guest.
type commandFlags struct {
	interactive, tty bool
	env              []string
	dir, user        string
	timeout          time.Duration
}

func addCommandFlags(cmd *cobra.Command) *commandFlags {
	c := &commandFlags{}
	f := cmd.Flags()
	f.BoolVarP(&c.interactive, "interactive", "i", false, "pass standard input on even if it is a terminal")
	f.BoolVarP(&c.tty, "tty", "t", false, "give the command a terminal")
	f.StringArrayVarP(&c.env, "env", "e", nil, "set `NAME=VALUE` for the command, or pass NAME on from here")
	f.StringVarP(&c.dir, "workdir", "w", "", "`directory` in the guest to run the command in")
	f.StringVarP(&c.user, "user", "u", "", "`user[:group]` in the guest to run the command as")
	f.DurationVar(&c.timeout, "timeout", 0, "how long the command may run, such as 30s; its exit code is then 124")
	return c
}

func (c *commandFlags) check() error {
	if c.timeout < 0 {
		return usageError("negative --timeout")
	}
	return nil
}

// orShell is the command line to run: where there is none, and at a terminal,
// a shell. usage is how to give one.
func (c *commandFlags) orShell(args []string, usage string) ([]string, error) {
	if len(args) > 0 {
		return args, nil
	}
	if !isTerminal(os.Stdin) {
		return nil, usageError("no command given (try: %s -- uname -a)", usage)
	}
	c.interactive, c.tty = true, true
	return []string{"sh"}, nil
}

// run runs the command to its end, with the streams of this process but for
// stdout, and with the signals that this process gets.
func (c *commandFlags) run(ctx context.Context, vm *vmm.VM, sig *signals, stdout io.Writer, args []string) error {
	cmd := vm.CommandContext(ctx, args[0], args[1:]...)
	cmd.ExtraEnv = environment(c.env)
	cmd.Dir, cmd.User, cmd.Timeout = c.dir, c.user, c.timeout
	cmd.Stdout, cmd.Stderr = stdout, os.Stderr
	if c.interactive || !isTerminal(os.Stdin) {
		cmd.Stdin = os.Stdin
	}
	if c.tty {
		size := terminalSize()
		cmd.TTY = &size
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	sig.forward(func(s os.Signal) { _ = cmd.Signal(s) }) // it fails once the command has ended
	defer sig.keep()
	if c.tty {
		restore, err := rawTerminal(cmd.Stdin != nil, func(w client.WinSize) {
			_ = cmd.Resize(w) // it fails once the command has ended
		})
		if err != nil {
			return err
		}
		defer restore()
	}
	return because(ctx, vm, cmd.Wait())
}

// because is err, or how the machine ended if that is what err came of: a
// guest that powers off cuts the connection before it is off.
func because(ctx context.Context, vm *vmm.VM, err error) error {
	if !errors.Is(err, client.ErrDisconnected) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if outcome, ended := errors.AsType[*vmm.Outcome](vm.Wait(ctx)); ended {
		return outcome
	}
	return err
}

// ranToEnd tells of the error of a command whether the command was started and
// has ended, well or not.
func ranToEnd(err error) bool {
	_, exited := errors.AsType[*client.ExitError](err)
	return err == nil || exited
}

// commandError is err with the exit code that it stands for. A command that
// ended by itself needs no words.
func commandError(name string, err error) error {
	exit, exited := errors.AsType[*client.ExitError](err)
	start, refused := errors.AsType[*client.StartError](err)
	switch {
	case exited && exit.TimedOut:
		return &codeError{exitTimeout, fmt.Errorf("%s: timed out", name)}
	case exited && exit.Signal != 0:
		return &codeError{exitSignal + int(exit.Signal), nil}
	case exited:
		return &codeError{exit.Code, nil}
	case refused && start.Stage == client.StageLookup && errors.Is(start, fs.ErrNotExist):
		return &codeError{exitNotFound, fmt.Errorf("%s: command not found in the guest", name)}
	case refused:
		return &codeError{exitNoStart, fmt.Errorf("%s: %s", name, start.Message)}
	}
	return err
}

// environment fills in the values of variables that are passed on.
func environment(vars []string) []string {
	var env []string
	for _, v := range vars {
		if strings.Contains(v, "=") {
			env = append(env, v)
		} else if value, ok := os.LookupEnv(v); ok {
			env = append(env, v+"="+value)
		}
	}
	return env
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
