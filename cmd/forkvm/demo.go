package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/cmd/forkvm/internal/demo"
	"github.com/forkvm/forkvm/cmd/forkvm/internal/doctor"
	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/probe"
	"github.com/forkvm/forkvm/vmm"
)

func newDemo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Boot a machine, fork it while it runs, and show that each child goes its own way",
		Long: `Boot a machine, start a process in it that counts in memory, write a file, and fork
the machine. Then run a command in every child and in the parent at once, and check:
each child has the parent's counter, as it was at the fork, and its file; each counts
on and writes the file for itself; no two draw the same random bytes; the parent
carries on and nothing of its own has changed.

The exit code is 1 if any of this does not hold.`,
		Args: cobra.NoArgs,
	}
	m := addMachineFlags(cmd)
	forks := cmd.Flags().IntP("forks", "n", 8, fmt.Sprintf("number of children, 1 to %d", vmm.MaxForks))
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *forks < 1 || *forks > vmm.MaxForks {
			return usageError("demo: --forks %d is not between 1 and %d", *forks, vmm.MaxForks)
		}
		r, err := runDemo(cmd.Context(), m, *forks)
		if err != nil {
			return err
		}
		if *asJSON {
			err = printJSON(cmd.OutOrStdout(), r)
		} else {
			err = r.Print(cmd.OutOrStdout())
		}
		if err == nil && r.Err() != nil {
			err = &codeError{exitFinding, r.Err()}
		}
		return err
	}
	cmd.AddCommand(newPythonDemo(), newServiceDemo())
	return cmd
}

func runDemo(ctx context.Context, m *machineFlags, forks int) (*demo.Report, error) {
	progress := func(s string) { fmt.Fprintln(os.Stderr, s) }
	flavor, err := kvmFlavor(m.kvm)
	if err != nil {
		return nil, err
	}
	progress("booting a machine")
	vm, err := m.boot(ctx, os.Stderr, initrd.Config{Agent: "/proc/self/exe"})
	if err != nil {
		return nil, err
	}
	defer vm.Close()
	info, err := vm.Agent().Hello(ctx)
	if err != nil {
		return nil, err
	}
	r, err := demo.Run(ctx, vm, forks, progress)
	if err != nil {
		return nil, err
	}
	r.KVM, r.Kernel = flavor, info.Kernel
	return r, nil
}

// newDemoGuest is the half of the demo that runs in its machines.
func newDemoGuest() *cobra.Command {
	return &cobra.Command{
		Use:    demo.GuestCommand,
		Hidden: true,
		RunE:   func(cmd *cobra.Command, args []string) error { return demo.Guest(args, cmd.OutOrStdout()) },
	}
}

// kvmFlavor says what kind of KVM the machines run on.
func kvmFlavor(path string) (string, error) {
	sys, err := kvm.Open(path)
	if err != nil {
		return "", err
	}
	defer sys.Close()
	info, err := probe.Flavor(sys)
	return doctor.Flavor(info), err
}
