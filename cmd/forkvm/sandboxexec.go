package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/client"
)

func newExec(sig *signals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] COMMAND [ARGUMENT]...",
		Short: "Run a command in a sandbox; exits as the command did",
		Long: `Run a command in a sandbox, with input, output and signals of this one, and exit as it
did. At a terminal and without COMMAND it is a shell. A sandbox that is paused is resumed.

With --detach it goes on in the background, and what is printed is the id of the process,
for 'forkvm logs' and 'forkvm ps'.

` + boxesHelp + "\n" + exitCodesHelp,
		Example: `  forkvm exec work -- uname -a
  forkvm exec -it work
  forkvm exec -d work -- make all`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeBoxes(1),
	}
	cmd.Flags().SetInterspersed(false)
	c := addCommandFlags(cmd)
	detach := cmd.Flags().BoolP("detach", "d", false, "leave it running in the background")
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		if err := c.check(); err != nil {
			return err
		}
		box, args := args[0], args[1:]
		switch {
		case len(args) == 0 || !strings.HasPrefix(args[0], "-"):
		case args[0] == "--":
			args = args[1:]
		default:
			return usageError("exec: flags come before the sandbox: %s", args[0])
		}
		if *detach && len(args) == 0 {
			return usageError("no command given (try: forkvm exec -d %s -- sleep 60)", box)
		}
		args, err := c.orShell(args, "forkvm exec "+box)
		if err != nil {
			return err
		}
		r, err := c.request(args)
		if err != nil {
			return err
		}
		b, err := findBox(cmd.Context(), s, box)
		if err != nil {
			return err
		}
		if *detach {
			return startDetached(cmd, s, b.Access(), r)
		}
		return commandResult(args[0], func() (*api.Exit, error) { return c.connect(cmd.Context(), s, b.Access(), sig, r) })
	})
}

// request is what the flags ask of a server.
func (c *commandFlags) request(args []string) (api.StartRequest, error) {
	env, err := pairs("--env", environment(c.env))
	r := api.StartRequest{Command: api.Command{Argv: args, EnvVars: env, Cwd: c.dir, User: c.user, TimeoutSeconds: api.Clear[int64]()}}
	if c.timeout > 0 {
		var p period
		if err := p.Set(c.timeout.String()); err != nil {
			return r, usageError("--timeout: %w", err)
		}
		r.TimeoutSeconds = p.Opt
	}
	if c.tty {
		size := api.WinSize(terminalSize())
		r.TTY = &size
	}
	return r, err
}

func startDetached(cmd *cobra.Command, s api.Service, a api.Access, r api.StartRequest) error {
	p, err := s.Start(cmd.Context(), a, r)
	if err != nil {
		return commandResult(r.Argv[0], func() (*api.Exit, error) { return nil, err })
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), p.ID)
	return err
}

// connect runs a command with the streams and signals of this process.
func (c *commandFlags) connect(ctx context.Context, s api.Service, a api.Access, sig *signals, r api.StartRequest) (*api.Exit, error) {
	var stdin io.Reader
	if c.interactive || !isTerminal(os.Stdin) {
		stdin, r.Stdin = os.Stdin, true
	}
	control, ended := make(chan api.Control), make(chan struct{})
	defer close(ended)
	send := func(c api.Control) {
		select {
		case control <- c:
		case <-ended:
		}
	}
	sig.forward(func(s os.Signal) { send(api.Control{Signal: unix.SignalName(s.(syscall.Signal))}) })
	defer sig.keep()
	if c.tty {
		restore, err := rawTerminal(stdin != nil, func(w client.WinSize) {
			size := api.WinSize(w)
			send(api.Control{Resize: &size})
		})
		if err != nil {
			return nil, err
		}
		defer restore()
	}
	return s.Run(ctx, a, r, api.Streams{Stdin: stdin, Stdout: os.Stdout, Stderr: os.Stderr, Control: control})
}

// commandResult is how a command ended, as an error with the exit code that it
// stands for.
func commandResult(name string, run func() (*api.Exit, error)) error {
	exit, err := run()
	e, _ := err.(*api.Error)
	switch {
	case e != nil && e.Code == api.ExecTimeout:
		return &codeError{exitTimeout, fmt.Errorf("%s: timed out", name)}
	case e != nil && e.Code == api.SpawnFailed && e.Details["stage"] == string(client.StageLookup) && e.Details["errno"] == "ENOENT":
		return &codeError{exitNotFound, fmt.Errorf("%s: command not found in the sandbox", name)}
	case e != nil && e.Code == api.SpawnFailed:
		return &codeError{exitNoStart, fmt.Errorf("%s: %w", name, err)}
	case err != nil:
		return err
	case exit.Signal != "":
		return &codeError{exitSignal + int(unix.SignalNum(exit.Signal)), nil}
	case exit.Code != 0:
		return &codeError{exit.Code, nil}
	}
	return nil
}

func newPS() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ps SANDBOX",
		Short: "List commands in a sandbox that run, or ended not long ago",
		Long: `List commands in a sandbox that were started by exec and run, or ended not long ago. A
sandbox that is paused is resumed.

` + boxesHelp,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeBoxes(1),
	}
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		b, err := findBox(cmd.Context(), s, args[0])
		if err != nil {
			return err
		}
		l, err := s.Processes(cmd.Context(), b.Access())
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), append([]api.Process{}, l.Processes...))
		}
		return printProcesses(cmd.OutOrStdout(), l.Processes)
	})
}

func printProcesses(w io.Writer, all []api.Process) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tPID\tSTARTED\tSTATUS\tCOMMAND")
	for _, p := range all {
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\n", p.ID, p.PID, humanize.Time(p.StartedAt), status(p), commandLine(p.Argv))
	}
	return t.Flush()
}

func status(p api.Process) string {
	switch {
	case p.Exit == nil && p.Background:
		return "runs in the background"
	case p.Exit == nil:
		return "runs"
	case p.Exit.Signal != "":
		return "ended by " + p.Exit.Signal
	}
	return fmt.Sprintf("ended with %d", p.Exit.Code)
}

// commandLine is a command on one line that is not too long.
func commandLine(argv []string) string {
	const most = 60
	var line string
	for i, a := range argv {
		if i > 0 {
			line += " "
		}
		if line += plain(a); len(line) > most {
			return fmt.Sprintf("%.*s…", most, line)
		}
	}
	return line
}

func newLogs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs SANDBOX PROCESS",
		Short: "Show what a command in the background prints, until it ends; exits as it does",
		Long: `Show what a command in the background has printed, as far as it was kept, and prints,
until it ends, and exit as it does. It goes on if this is interrupted. PROCESS is an id that
'forkvm exec -d' printed or 'forkvm ps' lists.

` + boxesHelp,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeBoxes(1),
	}
	live := cmd.Flags().Bool("live", false, "skip what it has printed before")
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		process, err := strconv.ParseUint(args[1], 10, 64)
		if err != nil || process == 0 {
			return usageError("%q is no id of a process (try: forkvm ps %s)", args[1], args[0])
		}
		b, err := findBox(cmd.Context(), s, args[0])
		if err != nil {
			return err
		}
		return commandResult("process "+args[1], func() (*api.Exit, error) {
			return s.Attach(cmd.Context(), b.Access(), process, api.Streams{Stdout: os.Stdout, Stderr: os.Stderr, Live: *live})
		})
	})
}
