package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
)

func newTemplate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "template",
		Short: "Build machines to fork others from",
		Long: `Build machines to fork others from: a template is a machine that was set up once and
stored. What is started from it does not boot, it goes on from there.

These need no file and are built when they are first used: base, which has only what
forkvm brings; debian; and python, which is Debian with Python, pip, pytest and git.
The last two are made of Debian's packages and need mmdebstrap, for building only.`,
	}
	cmd.AddCommand(newTemplateBuild(), newTemplateList(), newTemplateInspect(), newTemplateLog(), newTemplateRemove(), newTemplatePrune(), newTemplateFetch())
	return cmd
}

// addTemplatesFlag adds the flag that names the directory of templates.
func addTemplatesFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("templates", os.Getenv("FORKVM_TEMPLATES"),
		"`directory` of templates ($FORKVM_TEMPLATES; default forkvm/templates in $XDG_STATE_HOME or ~/.local/state)")
}

func openTemplates(dir string, m template.Machine) (*template.Store, error) {
	if dir == "" {
		var err error
		if dir, err = template.DefaultDir(); err != nil {
			return nil, err
		}
	}
	return template.Open(dir, template.Options{Machine: m})
}

// templates are what commands about templates ask: a server, or a directory.
type templates interface {
	Templates(ctx context.Context) (*api.TemplateList, error)
	Template(ctx context.Context, name string) (*api.Template, error)
	TemplateLog(ctx context.Context, name string) (io.ReadCloser, error)
	DeleteTemplate(ctx context.Context, name string) error
}

// templateDir is a directory of templates, which knows of no sandboxes.
type templateDir struct{ *template.Store }

func (d templateDir) TemplateLog(_ context.Context, name string) (io.ReadCloser, error) {
	return d.OpenLog(name)
}

func (d templateDir) DeleteTemplate(ctx context.Context, name string) error {
	err := d.Remove(ctx, name)
	if errors.Is(err, template.ErrNotFound) {
		return nil
	}
	return err
}

// templatesHelp says what commands about templates ask.
const templatesHelp = serverHelp + `
With --templates it works in a directory, and asks no server. Any number of processes may,
also while a server has it. By default that of the user's own server is forkvm/templates in
$XDG_STATE_HOME or ~/.local/state, as for 'forkvm run'.
`

// onTemplates makes do what cmd does, with the server that --server names, or in
// the directory that --templates does.
func onTemplates(cmd *cobra.Command, do func(cmd *cobra.Command, t templates, args []string) error) *cobra.Command {
	address := addServerFlag(cmd)
	dir := cmd.Flags().String("templates", "", "work in this `directory` of templates, and ask no server")
	if cmd.Long == "" {
		cmd.Long = cmd.Short + "."
	}
	cmd.Long += "\n\n" + templatesHelp
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case *dir == "":
			return withServer(cmd.Context(), *address, func(s api.Service) error { return do(cmd, s, args) })
		case cmd.Flags().Changed("server"):
			return usageError("--server and --templates: there is one place to look in")
		}
		return inDirectory(*dir, func(s *template.Store) error { return do(cmd, templateDir{s}, args) })
	}
	return cmd
}

// onDirectory makes do what cmd does, in the directory that --templates names.
func onDirectory(cmd *cobra.Command, do func(cmd *cobra.Command, store *template.Store, args []string) error) *cobra.Command {
	dir := addTemplatesFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return inDirectory(*dir, func(s *template.Store) error { return do(cmd, s, args) })
	}
	return cmd
}

func inDirectory(dir string, do func(s *template.Store) error) error {
	store, err := openTemplates(dir, template.Machine{})
	if err != nil {
		return err
	}
	defer store.Close()
	return templateError(do(store))
}

// templateError is err with the exit code that it stands for.
func templateError(err error) error {
	if errors.Is(err, template.ErrName) || errors.Is(err, template.ErrSyntax) || errors.Is(err, template.ErrMachine) {
		return &codeError{exitUsage, err}
	}
	return err
}

func newTemplateFetch() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fetch FROM",
		Short: "Make the image that templates are made from, and no more",
		Long: `Make the image that FROM in a template's file names, if it is not there, and print its
size in bytes. This needs neither KVM nor a kernel, and a build does it by itself.`,
		Args: cobra.ExactArgs(1),
	}
	asJSON := jsonFlag(cmd)
	return onDirectory(cmd, func(cmd *cobra.Command, store *template.Store, args []string) error {
		n, err := store.Fetch(cmd.Context(), args[0], os.Stderr)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), map[string]any{"from": args[0], "size": n})
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), n)
		return err
	})
}

func newTemplateList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List templates",
		Long: `List templates, and those that are built in and can be built. With --json it is a list
of objects.`,
		Args: cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	return onTemplates(cmd, func(cmd *cobra.Command, t templates, _ []string) error {
		list, err := t.Templates(cmd.Context())
		if list == nil {
			return err
		}
		if *asJSON {
			return errors.Join(printJSON(cmd.OutOrStdout(), list.Templates), err)
		}
		return errors.Join(printTemplates(cmd.OutOrStdout(), list.Templates), err)
	})
}

func newTemplateInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "inspect NAME",
		Short:             "Show what is known of a template",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeTemplates(1),
	}
	asJSON := jsonFlag(cmd)
	return onTemplates(cmd, func(cmd *cobra.Command, t templates, args []string) error {
		found, err := t.Template(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), found)
		}
		return printTemplate(cmd.OutOrStdout(), found)
	})
}

func newTemplateLog() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "log NAME",
		Short:             "Show what the last build of a template printed, successful or not",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeTemplates(1),
	}
	asJSON := jsonFlag(cmd)
	return onTemplates(cmd, func(cmd *cobra.Command, t templates, args []string) error {
		log, err := t.TemplateLog(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		defer log.Close()
		if !*asJSON {
			_, err = io.Copy(cmd.OutOrStdout(), log)
			return err
		}
		text, err := io.ReadAll(log)
		if err != nil {
			return err
		}
		return printJSON(cmd.OutOrStdout(), map[string]string{"name": args[0], "log": string(text)})
	})
}

func newTemplateRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove templates, and print their names",
		Long: `Remove templates, with the cached steps that no other template was made of, and
print their names. If any of the names is wrong, none is removed. A server keeps a template
while there are sandboxes or snapshots that go back to one of its name, whoever has them.
A directory knows of none: what was started from its templates goes on.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeTemplates(allArgs),
	}
	return onTemplates(cmd, func(cmd *cobra.Command, t templates, args []string) error {
		for _, name := range args {
			_, err := t.Template(cmd.Context(), name)
			if errors.Is(err, template.ErrNotFound) || errors.Is(err, template.ErrName) || errors.Is(err, api.NotFound) || errors.Is(err, api.BadRequest) {
				return err
			}
		}
		for _, name := range args {
			if err := t.DeleteTemplate(cmd.Context(), name); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), name)
		}
		return nil
	})
}

func newTemplatePrune() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Free the space of what no template needs",
		Long: `Free the space of what no template needs: cached steps of builds that failed or were
changed since, images that templates were made from, and what was left by programs that
were killed. With --json it prints an object of steps, snapshots and bases, which are
counts. It works in a directory, also while a server has it.`,
		Args: cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	return onDirectory(cmd, func(cmd *cobra.Command, store *template.Store, _ []string) error {
		p, err := store.Prune(cmd.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), p)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d steps, %d snapshots and %d images removed\n", p.Steps, p.Snapshots, p.Bases)
		return err
	})
}

// completeTemplates completes the first max arguments as names of templates, of a
// server that runs or of a directory.
func completeTemplates(max int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= max {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if cmd.Flag("server") != nil && cmd.Flag("templates").Value.String() == "" {
			return completeServed(cmd, args, word)
		}
		return templateNames(cmd), cobra.ShellCompDirectiveNoFileComp
	}
}

// templateNames are those of the templates in the directory of --templates.
func templateNames(cmd *cobra.Command) (names []cobra.Completion) {
	dir := cmd.Flag("templates").Value.String()
	if dir == "" {
		dir, _ = template.DefaultDir()
	}
	if _, err := os.Stat(dir); err != nil {
		return nil // opening the store would make it
	}
	store, err := template.Open(dir, template.Options{})
	if err != nil {
		return nil
	}
	defer store.Close()
	infos, _ := store.List() // there is nobody to tell of an error
	for _, i := range infos {
		names = append(names, cobra.CompletionWithDesc(i.Name, "from "+i.From))
	}
	return names
}
