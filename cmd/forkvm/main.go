// Command forkvm boots virtual machines and forks them while they run.
//
// The same program is PID 1 of the guests that it starts.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/client"
	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/vmm"
)

func main() {
	agent.Main() // does not return in a guest
	ctx, sig := watchSignals(context.Background())
	code := execute(ctx, newRoot(sig))
	os.Exit(code)
}

// execute runs a command line to its end and returns the exit code. An error
// goes to standard error as one line; a guest's dying words follow.
func execute(ctx context.Context, root *cobra.Command) int {
	// What fails before a command begins is a mistake in how it was called.
	began := false
	root.PersistentPreRun = func(*cobra.Command, []string) { began = true }
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !began {
		err = &codeError{exitUsage, fmt.Errorf("%w (try: %s --help)", err, cmd.CommandPath())}
	}
	if text := err.Error(); text != "" {
		line, more, _ := strings.Cut(text, "\n") // more is the end of a guest's console
		fmt.Fprintf(root.ErrOrStderr(), "forkvm: %s%s\n%s", line, hint(err), more)
	}
	return exitCode(err)
}

func newRoot(sig *signals) *cobra.Command {
	root := &cobra.Command{
		Use:   "forkvm",
		Short: "Boot virtual machines and fork them while they run",
		Long: `forkvm boots Linux in a virtual machine, runs commands in it, and forks it while
it runs. It needs /dev/kvm and a kernel, and nothing else: 'forkvm doctor' says
what this machine has, 'forkvm kernel fetch' gets a kernel.

'forkvm run' boots a machine for one command. 'forkvm create' makes a sandbox, which a
server keeps: 'forkvm exec', 'fork', 'pause' and others are for those.

Standard output is data, standard error is progress and errors.

` + exitCodesHelp,
		Example: `  forkvm run -- uname -a
  forkvm run -it
  forkvm store create --label base -- sh -c 'echo kept >/file'
  forkvm restore base -- cat /file
  forkvm create --name work && forkvm exec work -- uname -a
  forkvm demo`,
		Args:          cobra.NoArgs,
		RunE:          showHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(newRun(sig), newRestore(sig), newStore(sig), newTemplate(),
		newServe(sig), newKey(), newCreate(), newList(), newInspect(), newExec(sig), newPS(), newLogs(), newFork(),
		newPause(), newResume(), newRename(), newRemove(), newWait(), newSnapshot(),
		newCopy(), newStats(), newEvents(), newTree(),
		newDemo(), newBench(),
		newDoctor(), newKernel(), newMan(sig), newVersion(), newDemoGuest(), newBenchFloor())
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if !c.Runnable() { // it would take any word for a question about itself
			c.Args, c.RunE = cobra.NoArgs, showHelp
		}
	}
	return root
}

func showHelp(c *cobra.Command, _ []string) error { return c.Help() }

// hint is what to try about an error, if there is something to say.
func hint(err error) string {
	var path *os.PathError
	switch {
	case errors.Is(err, api.Unauthorized):
		return " (try: setting $" + client.KeyVariable + ")"
	case errors.As(err, &path) && strings.HasPrefix(path.Path, "/dev/"):
		return " (try: forkvm doctor)"
	case errors.Is(err, context.DeadlineExceeded):
		return " (try: --console to see how far the guest came)"
	case errors.Is(err, snapshot.ErrNotFound):
		return " (try: forkvm store ls)"
	case errors.Is(err, template.ErrNotFound):
		return " (try: forkvm template ls)"
	case errors.Is(err, snapshot.ErrNoSpace):
		return " (try: forkvm store rm, forkvm store gc)"
	case errors.Is(err, vmm.ErrKernelTooBig), errors.Is(err, vmm.ErrInitrdTooBig):
		return " (try: more --memory)"
	}
	return ""
}

// jsonFlag adds --json to a command that has something to say.
func jsonFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print JSON on standard output")
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
