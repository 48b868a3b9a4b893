package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api"
)

// period is a time in whole seconds on the command line, or never.
type period struct{ api.Opt[int64] }

func (p *period) Type() string { return "time" }

func (p *period) String() string {
	switch v := p.Value(); {
	case !p.Given():
		return ""
	case v == nil:
		return "never"
	default:
		return (time.Duration(*v) * time.Second).String()
	}
}

func (p *period) Set(s string) error {
	if s == "never" {
		p.Opt = api.Clear[int64]()
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d%time.Second != 0 {
		return fmt.Errorf("neither never nor whole seconds, such as 90s or 10m")
	}
	p.Opt = api.Set(int64(d / time.Second))
	return nil
}

// settingFlags are what a new sandbox is given.
type settingFlags struct {
	name, onTimeout     string
	env, metadata       []string
	timeout, autoDelete period
}

func addSettingFlags(cmd *cobra.Command) *settingFlags {
	s := &settingFlags{}
	f := cmd.Flags()
	f.StringVar(&s.name, "name", "", "a `name` for people; several may have the same")
	f.StringArrayVarP(&s.env, "env", "e", nil, "set `NAME=VALUE` for all commands in it, or pass NAME on from here")
	f.StringArrayVar(&s.metadata, "metadata", nil, "note `KEY=VALUE` with it")
	f.Var(&s.timeout, "timeout", "how long it may run, such as 10m, or never")
	f.StringVar(&s.onTimeout, "on-timeout", "", "what happens then: destroy or pause")
	f.Var(&s.autoDelete, "auto-delete", "how long it may be paused before it is destroyed, or never")
	return s
}

func (s *settingFlags) settings() (api.Settings, error) {
	metadata, err := pairs("--metadata", s.metadata)
	if err != nil {
		return api.Settings{}, err
	}
	env, err := pairs("--env", environment(s.env))
	return api.Settings{
		Name: s.name, Metadata: metadata, EnvVars: env, TimeoutSeconds: s.timeout.Opt,
		OnTimeout: api.OnTimeout(s.onTimeout), AutoDeleteSeconds: s.autoDelete.Opt,
	}, err
}

// pairs reads KEY=VALUE words. None is nil.
func pairs(flag string, words []string) (map[string]string, error) {
	var m map[string]string
	for _, w := range words {
		key, value, ok := strings.Cut(w, "=")
		if !ok || key == "" {
			return nil, usageError("%s %q is not KEY=VALUE", flag, w)
		}
		if m == nil {
			m = map[string]string{}
		}
		m[key] = value
	}
	return m, nil
}

func newCreate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create [--template NAME | --snapshot SNAPSHOT]",
		Short: "Create a sandbox, and print its id",
		Long: `Create a sandbox from a template, or from a snapshot of another sandbox, and print its
id. Nothing boots: it goes on from there. A built-in template is built at its first use,
which takes a while.`,
		Example: `  forkvm create --template python --name work --timeout 1h --on-timeout pause
  forkvm exec work -- python3 -V`,
		Args: cobra.NoArgs,
	}
	set := addSettingFlags(cmd)
	f := cmd.Flags()
	from := f.String("template", "", "the `name` of the template (default base)")
	snap := f.String("snapshot", "", "the `snapshot`, as 'forkvm snapshot ls' shows it")
	_ = cmd.RegisterFlagCompletionFunc("snapshot", completeSnaps(allArgs)) // the flags are there
	_ = cmd.RegisterFlagCompletionFunc("template", completeServed)
	_ = cmd.RegisterFlagCompletionFunc("on-timeout", cobra.FixedCompletions([]cobra.Completion{"destroy", "pause"}, cobra.ShellCompDirectiveNoFileComp))
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, _ []string) error {
		settings, err := set.settings()
		if err != nil {
			return err
		}
		r := api.CreateRequest{Template: *from, Settings: settings}
		if cmd.Flags().Changed("snapshot") {
			if *from != "" {
				return usageError("create: --template and --snapshot exclude each other")
			}
			if r.FromSnapshot, err = snapID(cmd.Context(), s, *snap); err != nil {
				return err
			}
		}
		b, err := s.Create(cmd.Context(), r)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), b)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), b.ID)
		return err
	})
}

func newList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List sandboxes, newest first",
		Args:  cobra.NoArgs,
	}
	f := cmd.Flags()
	states := f.StringSlice("state", nil, "only those in any of these `states`: creating, running, paused, failed and so on")
	_ = cmd.RegisterFlagCompletionFunc("state", completeStates) // the flag is there
	metadata := f.StringArray("metadata", nil, "only those with this `KEY=VALUE`")
	prefix := f.String("name", "", "only those whose name begins with this `prefix`")
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, _ []string) error {
		m, err := pairs("--metadata", *metadata)
		if err != nil {
			return err
		}
		boxes, err := allBoxes(cmd.Context(), s, api.SandboxQuery{States: asStates(*states), Metadata: m, NamePrefix: *prefix})
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), boxes)
		}
		return printBoxes(cmd.OutOrStdout(), boxes)
	})
}

var completeStates = cobra.FixedCompletions([]cobra.Completion{
	string(api.Creating), string(api.Running), string(api.Pausing), string(api.Paused), string(api.Resuming),
	string(api.Failed), string(api.Destroying),
}, cobra.ShellCompDirectiveNoFileComp)

func asStates(words []string) (states []api.State) {
	for _, w := range words {
		states = append(states, api.State(w))
	}
	return states
}

func newInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "inspect SANDBOX",
		Short:             "Show all there is to know of a sandbox, its access token too",
		Long:              "Show all there is to know of a sandbox, its access token too.\n\n" + boxesHelp,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeBoxes(1),
	}
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		b, err := findBox(cmd.Context(), s, args[0])
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), b)
		}
		return printBox(cmd.OutOrStdout(), b)
	})
}

func newFork() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fork [-n NUMBER] SANDBOX",
		Short: "Fork a sandbox as it is now, and print the ids of its children",
		Long: `Fork a sandbox as it is now, and print the ids of its children. It goes on. Memory and
disk are shared until they are written. If some children could not be made, those that could
are printed all the same, and the exit code is 125.

With --json it prints an object: children, a list of objects with sandbox or error; and
pause_seconds, how long the sandbox stood still.

` + boxesHelp,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeBoxes(1),
	}
	set := addSettingFlags(cmd)
	n := cmd.Flags().IntP("forks", "n", 1, fmt.Sprintf("number of children, 1 to %d", api.MaxForks))
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		if *n < 1 || *n > api.MaxForks {
			return usageError("fork: --forks %d is not between 1 and %d", *n, api.MaxForks)
		}
		settings, err := set.settings()
		if err != nil {
			return err
		}
		id, err := boxID(cmd.Context(), s, args[0])
		if err != nil {
			return err
		}
		f, err := s.Fork(cmd.Context(), id, api.ForkRequest{Count: *n, Settings: settings})
		if err != nil {
			return err
		}
		if *asJSON {
			err = printJSON(cmd.OutOrStdout(), f)
		}
		for _, c := range f.Children {
			switch {
			case c.Error != nil:
				err = fmt.Errorf("fork: a child: %w", c.Error)
			case !*asJSON:
				fmt.Fprintln(cmd.OutOrStdout(), c.Sandbox.ID)
			}
		}
		return err
	})
}

// onBoxes is a command that does something to each of some sandboxes, and
// prints their ids.
func onBoxes(use, short, long string, do func(cmd *cobra.Command, s api.Service, id string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use + " SANDBOX...", Short: short, Long: long + "\n\n" + boxesHelp,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: completeBoxes(allArgs),
	}
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		ids, err := boxIDs(cmd.Context(), s, args...)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := do(cmd, s, id); err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
			fmt.Fprintln(cmd.OutOrStdout(), id)
		}
		return nil
	})
}

func newPause() *cobra.Command {
	return onBoxes("pause", "Store sandboxes and free their memory, and print their ids",
		"Store sandboxes and free their memory, and print their ids. One that is paused stays so.\nWhat is done in one later resumes it.",
		func(cmd *cobra.Command, s api.Service, id string) error {
			_, err := s.Pause(cmd.Context(), id)
			return err
		})
}

func newResume() *cobra.Command {
	return onBoxes("resume", "Let paused sandboxes go on, and print their ids",
		"Let paused sandboxes go on, with new access tokens, and print their ids. One that runs\ngoes on as it is.",
		func(cmd *cobra.Command, s api.Service, id string) error {
			_, err := s.Resume(cmd.Context(), id)
			return err
		})
}

func newRemove() *cobra.Command {
	return onBoxes("rm", "Destroy sandboxes, and print their ids",
		"Destroy sandboxes, whatever they are doing, and print their ids. Their snapshots and\nforks stay. Not destroying one that is named by its whole id and is not there is no error.",
		func(cmd *cobra.Command, s api.Service, id string) error { return s.Destroy(cmd.Context(), id) })
}

func newRename() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "rename SANDBOX NAME",
		Short:             "Give a sandbox another name",
		Long:              "Give a sandbox another name.\n\n" + boxesHelp,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeBoxes(1),
	}
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		id, err := boxID(cmd.Context(), s, args[0])
		if err != nil {
			return err
		}
		_, err = s.Update(cmd.Context(), id, api.Patch{Name: &args[1]})
		return err
	})
}

func newWait() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait --state STATE SANDBOX",
		Short: "Wait until a sandbox is in a state, and print which it is",
		Long: `Wait until a sandbox is in a state, and print which it is. The exit code is 124 if it is
not in time, and 125 if the sandbox is destroyed meanwhile.

` + boxesHelp,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeBoxes(1),
	}
	states := cmd.Flags().StringSlice("state", []string{string(api.Running)}, "any of these `states`")
	_ = cmd.RegisterFlagCompletionFunc("state", completeStates) // the flag is there
	timeout := cmd.Flags().Duration("timeout", 0, "how long to wait (default for ever)")
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		if *timeout < 0 {
			return usageError("negative --timeout")
		}
		id, err := boxID(cmd.Context(), s, args[0])
		if err != nil {
			return err
		}
		b, err := waitFor(cmd, s, id, asStates(*states), *timeout)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), b)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), b.State)
		return err
	})
}

// waitFor waits in turns, each as long as a server lets one; 0 is for ever.
func waitFor(cmd *cobra.Command, s api.Service, id string, states []api.State, timeout time.Duration) (*api.Sandbox, error) {
	end := time.Now().Add(timeout)
	for {
		turn := api.MaxWait * time.Second
		if timeout > 0 {
			turn = max(min(turn, time.Until(end)), 0)
		}
		b, err := s.Wait(cmd.Context(), id, api.WaitRequest{States: states, Timeout: turn})
		if err != nil {
			return nil, err
		}
		for _, state := range states {
			if b.State == state {
				return b, nil
			}
		}
		if timeout > 0 && !time.Now().Before(end) {
			return nil, &codeError{exitTimeout, fmt.Errorf("wait: after %v it is %s", timeout, b.State)}
		}
	}
}
