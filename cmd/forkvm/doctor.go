package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/cmd/forkvm/internal/doctor"
)

func newDoctor() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can do for forkvm, and what to do about the rest",
		Long: `Check everything that booting and forking a guest needs. PASS is fine, WARN limits
something, FAIL keeps guests from booting or forking, SKIP could not be looked at.
It needs no privilege, and changes nothing except that an installed kernel may be
unpacked into the cache.

The exit code is 1 if a check failed, and 0 otherwise.`,
		Args: cobra.NoArgs,
	}
	var o doctor.Options
	cmd.Flags().StringVar(&o.KVM, "kvm", "/dev/kvm", "KVM `device`")
	cmd.Flags().StringVar(&o.Kernel, "kernel", "", "guest `kernel` to look for, as run takes it")
	asJSON := jsonFlag(cmd)
	verbose := cmd.Flags().BoolP("verbose", "v", false, "show every capability of KVM")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		checks := doctor.Run(cmd.Context(), o)
		worst := doctor.Worst(checks)
		var err error
		if *asJSON {
			err = printJSON(cmd.OutOrStdout(), diagnosis{worst, checks})
		} else {
			err = printChecks(cmd.OutOrStdout(), checks, *verbose)
		}
		if err == nil && worst == doctor.Fail {
			err = &codeError{exitFinding, nil}
		}
		return err
	}
	return cmd
}

// diagnosis is what doctor --json prints.
type diagnosis struct {
	Status doctor.Status  `json:"status"` // the worst of the checks
	Checks []doctor.Check `json:"checks"`
}

// printChecks prints a line a check, and what to do below. Capabilities that
// are there are only counted unless verbose.
func printChecks(w io.Writer, checks []doctor.Check, verbose bool) error {
	present, counted := 0, false
	for _, c := range checks {
		if c.Group == "capability" && c.Status == doctor.Pass {
			present++
		}
	}
	for _, c := range checks {
		if c.Group == "capability" && c.Status == doctor.Pass && !verbose {
			if counted {
				continue
			}
			counted = true
			c.Name, c.Detail = "capabilities", fmt.Sprintf("%d of KVM's that forkvm uses are there", present)
		}
		if _, err := fmt.Fprintf(w, "%-4s  %-20s  %s\n", c.Status, c.Name, c.Detail); err != nil {
			return err
		}
		if c.Fix != "" {
			fmt.Fprintf(w, "%28sfix: %s\n", "", c.Fix)
		}
	}
	return nil
}
