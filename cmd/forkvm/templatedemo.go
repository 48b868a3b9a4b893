package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/cmd/forkvm/internal/pythondemo"
	"github.com/forkvm/forkvm/vmm"
)

// newPythonDemo is the demo that forks a template.
func newPythonDemo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "python",
		Short: "Fork the python template and run the tests of a small project in each fork",
		Long: `Build the python template if it is not there, fork it, and run the tests of a small
Python project in all forks at once. No fork boots, and none sees what another writes.

With --json it prints an object: template; build_s, how long the template's build took;
forks, a list of objects of exit_code and stdout, both pytest's, first_reply_ms, until
the agent answered the first exec, and python_ms, the first 'python3 -c pass'; and
disk_bytes_fresh_fork. The exit code is 1 if tests failed.`,
		Args: cobra.NoArgs,
	}
	dir := addTemplatesFlag(cmd)
	f := cmd.Flags()
	kvm := f.String("kvm", "/dev/kvm", "KVM `device`")
	cmdline := f.String("cmdline", os.Getenv("FORKVM_CMDLINE"), "`options` to append to the kernel command line ($FORKVM_CMDLINE)")
	forks := f.IntP("forks", "n", 4, fmt.Sprintf("number of forks, 1 to %d", vmm.MaxForks))
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *forks < 1 || *forks > vmm.MaxForks {
			return usageError("demo: --forks %d is not between 1 and %d", *forks, vmm.MaxForks)
		}
		r, err := runPythonDemo(cmd.Context(), *dir, template.Machine{Cmdline: *cmdline, KVM: *kvm}, *forks)
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
	return cmd
}

func runPythonDemo(ctx context.Context, dir string, m template.Machine, forks int) (*pythondemo.Report, error) {
	store, err := openTemplates(dir, m)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	image, info, err := store.ImageOrBuild(ctx, pythondemo.Template, buildOptions(false, false))
	if err != nil {
		return nil, err
	}
	return pythondemo.Run(ctx, image, info, forks, func(s string) { fmt.Fprintln(os.Stderr, s) })
}
