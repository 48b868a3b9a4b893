package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/cmd/forkvm/internal/servicedemo"
)

// newServiceDemo is the demo that asks a server.
func newServiceDemo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "Go through the life of sandboxes on a server, step by step",
		Long: `Go through the life of sandboxes on a server: create one, write a file, run a command,
fork it, run a command in each fork, take a snapshot, destroy the sandbox, restore it from
the snapshot, pause it, resume it and delete the snapshot. Each step is checked. At the end
all are destroyed.

With --json it prints an object: steps, a list of objects with name, ok, ms and, if it is
not ok, error. The exit code is 1 if a step failed.`,
		Args: cobra.NoArgs,
	}
	from := cmd.Flags().String("template", "base", "the `name` of the template")
	_ = cmd.RegisterFlagCompletionFunc("template", completeServed) // the flag is there
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, _ []string) error {
		out := cmd.OutOrStdout()
		r := servicedemo.Run(cmd.Context(), s, *from, func(step servicedemo.Step) {
			if *asJSON {
				return
			}
			word := "ok"
			if !step.OK {
				word = "FAILED"
			}
			fmt.Fprintf(out, "%-6s  %-20s  %8.1f ms\n", word, step.Name, step.MS)
		})
		if *asJSON {
			if err := printJSON(out, r); err != nil {
				return err
			}
		}
		if err := r.Err(); err != nil {
			return &codeError{exitFinding, err}
		}
		return nil
	})
}
