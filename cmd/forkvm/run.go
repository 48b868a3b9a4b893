package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/vmm"
)

func newRun(sig *signals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [flags] [-- COMMAND ARGS...]",
		Short: "Boot a machine, run a command in it, and power it off",
		Long: `Boot a machine, run a command in it with this program's standard streams, end with
its exit code, and power the machine off. With --template nothing boots: the machine is
a fork of one that was set up before, see 'forkvm template'. No shell reads the command unless it is
one. Without a command, and at a terminal, run a shell. Standard input is passed on
if it is no terminal, or with -i.

With --save the machine is stored before that, as the command left it and whatever
its exit code: 'forkvm restore' goes on from there.

Signals to forkvm go to the command; the third of a kind ends the machine.

` + exitCodesHelp,
		Example: `  forkvm run -- uname -a
  echo hello | forkvm run -- tr a-z A-Z
  forkvm run -it --memory 1G --cpus 2 --save=mine
  forkvm run --file ./prog:/bin/prog --timeout 10s -- prog
  forkvm run --template python -- python3 -c 'print(6 * 7)'`,
		Args: cobra.ArbitraryArgs,
	}
	m, g := addMachineFlags(cmd), addGuestFlags(cmd)
	files, t := addFileFlag(cmd), addTemplateFlags(cmd)
	cmd.Flags().SetInterspersed(false) // flags after COMMAND are the command's
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		files, err := parseFiles(*files)
		if err != nil {
			return err
		}
		if err := t.check(cmd); err != nil {
			return err
		}
		return g.run(cmd.Context(), sig, args, "forkvm run", func(ctx context.Context) (*vmm.VM, error) {
			if t.name != "" {
				return t.start(ctx, m, g.command)
			}
			return t.bootWithDisk(ctx, m, initrd.Config{HostFiles: files})
		})
	}
	return cmd
}

// guestFlags say what is done with a machine that lives for one command.
type guestFlags struct {
	command *commandFlags
	save    *saveFlags
	stats   bool
}

func addGuestFlags(cmd *cobra.Command) *guestFlags {
	g := &guestFlags{command: addCommandFlags(cmd), save: addSaveFlags(cmd)}
	cmd.Flags().BoolVar(&g.stats, "stats", false, "show times and counts of exits on standard error at the end")
	return g
}

// run runs a command in the machine that start starts. usage is how to give
// a command.
func (g *guestFlags) run(ctx context.Context, sig *signals, args []string, usage string, start func(context.Context) (*vmm.VM, error)) error {
	args, err := g.command.orShell(args, usage)
	if err != nil {
		return err
	}
	if err := g.command.check(); err != nil {
		return err
	}
	store, err := g.save.open()
	if err != nil {
		return err
	}
	if store != nil {
		defer store.Close()
	}
	vm, err := start(ctx)
	if err != nil {
		return err
	}
	defer vm.Close()
	err = g.command.run(ctx, vm, sig, os.Stdout, args)
	if g.stats {
		printStats(os.Stderr, vm)
	}
	if store != nil && ranToEnd(err) {
		if err := g.save.snapshot(ctx, vm, store); err != nil {
			return err
		}
	}
	return commandError(args[0], err)
}

func printStats(w io.Writer, vm *vmm.VM) {
	t, s := vm.Timings(), vm.Stats()
	fmt.Fprintf(w, "create %v, load %v, first entry after %v, agent ready after %v\n",
		t.Create.Round(time.Microsecond), t.Load.Round(time.Microsecond),
		t.StateReady.Round(time.Microsecond), t.AgentReady.Round(time.Microsecond))
	fmt.Fprintf(w, "exits: port read %d, port write %d, mmio read %d, mmio write %d, interrupted %d, other %d\n",
		s.PIORead, s.PIOWrite, s.MMIORead, s.MMIOWrite, s.Interrupted, s.Other)
	fmt.Fprintf(w, "accesses that no device answered: read %d, write %d\n", s.UnmatchedRead, s.UnmatchedWrite)
}
