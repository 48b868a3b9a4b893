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
	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/vmm"
)

// runFlags are those of run beyond the machine's.
type runFlags struct {
	machine          *machineFlags
	stats            bool
	interactive, tty bool
	env, files       []string
	dir, user        string
	timeout          time.Duration
}

func newRun(sig *signals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [flags] [-- COMMAND ARGS...]",
		Short: "Boot a machine, run a command in it, and power it off",
		Long: `Boot a machine, run a command in it with this program's standard streams, end with
its exit code, and power the machine off. No shell reads the command unless it is
one. Without a command, and at a terminal, run a shell. Standard input is passed on
if it is no terminal, or with -i.

Signals to forkvm go to the command; the third of a kind ends the machine.

` + exitCodesHelp,
		Example: `  forkvm run -- uname -a
  echo hello | forkvm run -- tr a-z A-Z
  forkvm run -it --memory 1G --cpus 2
  forkvm run --file ./prog:/bin/prog --timeout 10s -- prog`,
		Args: cobra.ArbitraryArgs,
	}
	r := &runFlags{machine: addMachineFlags(cmd)}
	f := cmd.Flags()
	f.SetInterspersed(false) // flags after COMMAND are the command's
	f.BoolVarP(&r.interactive, "interactive", "i", false, "pass standard input on even if it is a terminal")
	f.BoolVarP(&r.tty, "tty", "t", false, "give the command a terminal")
	f.StringArrayVarP(&r.env, "env", "e", nil, "set `NAME=VALUE` for the command, or pass NAME on from here")
	f.StringVarP(&r.dir, "workdir", "w", "", "`directory` in the guest to run the command in")
	f.StringVarP(&r.user, "user", "u", "", "`user[:group]` in the guest to run the command as")
	f.DurationVar(&r.timeout, "timeout", 0, "how long the command may run, such as 30s; its exit code is then 124")
	f.StringArrayVar(&r.files, "file", nil, "put a file of this machine into the guest: `HOST:GUEST`")
	f.BoolVar(&r.stats, "stats", false, "show times and counts of exits on standard error at the end")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return r.run(cmd.Context(), sig, args) }
	return cmd
}

func (r *runFlags) run(ctx context.Context, sig *signals, args []string) error {
	if len(args) == 0 {
		if !isTerminal(os.Stdin) {
			return usageError("run: no command given (try: forkvm run -- uname -a)")
		}
		args, r.interactive, r.tty = []string{"sh"}, true, true
	}
	if r.timeout < 0 {
		return usageError("run: negative --timeout")
	}
	files, err := parseFiles(r.files)
	if err != nil {
		return err
	}
	vm, err := r.machine.boot(ctx, os.Stderr, initrd.Config{HostFiles: files})
	if err != nil {
		return err
	}
	defer vm.Close()
	err = r.command(ctx, vm, sig, args)
	if r.stats {
		printStats(os.Stderr, vm)
	}
	return err
}

// command runs the command to its end with the streams of this process.
func (r *runFlags) command(ctx context.Context, vm *vmm.VM, sig *signals, args []string) error {
	cmd := vm.CommandContext(ctx, args[0], args[1:]...)
	cmd.ExtraEnv = environment(r.env)
	cmd.Dir, cmd.User, cmd.Timeout = r.dir, r.user, r.timeout
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if r.interactive || !isTerminal(os.Stdin) {
		cmd.Stdin = os.Stdin
	}
	if r.tty {
		size := terminalSize()
		cmd.TTY = &size
	}
	if err := cmd.Start(); err != nil {
		return commandError(args[0], err)
	}
	sig.forward(func(s os.Signal) { _ = cmd.Signal(s) }) // it fails once the command has ended
	if r.tty {
		restore, err := rawTerminal(cmd)
		if err != nil {
			return err
		}
		defer restore()
	}
	return commandError(args[0], because(ctx, vm, cmd.Wait()))
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

// commandError is err with the exit code that it stands for. A command that
// ended by itself needs no words.
func commandError(name string, err error) error {
	exit, exited := errors.AsType[*client.ExitError](err)
	start, refused := errors.AsType[*client.StartError](err)
	switch {
	case exited && exit.TimedOut:
		return &codeError{exitTimeout, fmt.Errorf("run: %s: timed out", name)}
	case exited && exit.Signal != 0:
		return &codeError{exitSignal + int(exit.Signal), nil}
	case exited:
		return &codeError{exit.Code, nil}
	case refused && start.Stage == client.StageLookup && errors.Is(start, fs.ErrNotExist):
		return &codeError{exitNotFound, fmt.Errorf("run: %s: command not found in the guest", name)}
	case refused:
		return &codeError{exitNoStart, fmt.Errorf("run: %s: %s", name, start.Message)}
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

func printStats(w io.Writer, vm *vmm.VM) {
	t, s := vm.Timings(), vm.Stats()
	fmt.Fprintf(w, "create %v, load %v, first entry after %v, agent ready after %v\n",
		t.Create.Round(time.Microsecond), t.Load.Round(time.Microsecond),
		t.StateReady.Round(time.Microsecond), t.AgentReady.Round(time.Microsecond))
	fmt.Fprintf(w, "exits: port read %d, port write %d, mmio read %d, mmio write %d, interrupted %d, other %d\n",
		s.PIORead, s.PIOWrite, s.MMIORead, s.MMIOWrite, s.Interrupted, s.Other)
	fmt.Fprintf(w, "accesses that no device answered: read %d, write %d\n", s.UnmatchedRead, s.UnmatchedWrite)
}
