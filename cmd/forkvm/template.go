package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/initrd"
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

// onTemplates makes do what cmd does, with the templates that --templates
// names.
func onTemplates(cmd *cobra.Command, do func(cmd *cobra.Command, store *template.Store, args []string) error) *cobra.Command {
	dir := addTemplatesFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		store, err := openTemplates(*dir, template.Machine{})
		if err != nil {
			return err
		}
		defer store.Close()
		return templateError(do(cmd, store, args))
	}
	return cmd
}

// templateError is err with the exit code that it stands for.
func templateError(err error) error {
	if errors.Is(err, template.ErrName) || errors.Is(err, template.ErrSyntax) || errors.Is(err, template.ErrMachine) {
		return &codeError{exitUsage, err}
	}
	return err
}

// templateBuildFlags say what to build.
type templateBuildFlags struct {
	file, name, kernel, cmdline, kvm string
	memory, disk                     byteSize
	cpus                             int
	args                             []string
	noCache, pull                    bool
}

func newTemplateBuild() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "build -t NAME [flags] [CONTEXT]",
		Short: "Build a template",
		Long: `Build a template as a file says, which is a subset of a Containerfile:

  FROM        base, debian, python, another template, a path (a directory, a tar archive,
              an image layout, what docker save writes), or a reference to an image of a
              registry, which is name:latest where there is a template of its name
  RUN         a line for /bin/sh, or a JSON list of words
  COPY        [--chown=USER[:GROUP]] SOURCE... DESTINATION, out of the CONTEXT directory
  ENV, WORKDIR, USER   for what follows, and for commands in forks
  ARG         a variable for what follows; --build-arg sets it
  CMD         a command that is captured running
  HEALTHCHECK CMD      what tells that it is ready; it is run every 2 s for up to 10 min

The file is CONTEXT/Containerfile or CONTEXT/Dockerfile unless -f names another. Steps
that are still the same as in a build before are not run again. Without file and
CONTEXT, the name is that of a built-in template.

What is made from another template does not boot but goes on from there, with the same
memory, disk, CPUs and kernel, and needs it no longer once it is built.

What steps print goes to standard error, and to a log: 'forkvm template log'.`,
		Example: `  forkvm template build -t web --build-arg VERSION=2 .
  forkvm template build -t python
  forkvm run --template web -- curl localhost:8080`,
		Args: cobra.MaximumNArgs(1),
	}
	b := &templateBuildFlags{memory: 512 << 20, disk: 4 << 30}
	f := cmd.Flags()
	f.StringVarP(&b.name, "tag", "t", "", "`name` of the template")
	f.StringVarP(&b.file, "file", "f", "", "the `file` that says how; - is standard input")
	f.StringArrayVar(&b.args, "build-arg", nil, "set `NAME=VALUE` for ARG, or pass NAME on from here")
	f.Var(&b.memory, "memory", "guest memory, such as 512M or 4G")
	f.Var(&b.disk, "disk", "size of the disk for what the guest writes; it takes what is written")
	f.IntVar(&b.cpus, "cpus", 1, "virtual CPUs")
	f.StringVar(&b.kernel, "kernel", "", "guest `kernel`, as for 'forkvm run'")
	f.StringVar(&b.cmdline, "cmdline", os.Getenv("FORKVM_CMDLINE"), "`options` to append to the kernel command line ($FORKVM_CMDLINE)")
	f.StringVar(&b.kvm, "kvm", "/dev/kvm", "KVM `device`")
	f.BoolVar(&b.noCache, "no-cache", false, "run all steps again")
	f.BoolVar(&b.pull, "pull", false, "get what FROM names again")
	asJSON := jsonFlag(cmd)
	return onTemplates(cmd, func(cmd *cobra.Command, store *template.Store, args []string) error {
		b.forget(cmd)
		spec, err := b.spec(cmd.Context(), cmd.InOrStdin(), args)
		if err != nil {
			return err
		}
		info, err := store.Build(cmd.Context(), spec, buildOptions(os.Stderr, b.noCache, b.pull))
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), info)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), info.Name)
		return err
	})
}

// forget leaves open what was not asked for: a template that is made from
// another has it from there, and the defaults are the library's.
func (b *templateBuildFlags) forget(cmd *cobra.Command) {
	asked := cmd.Flags().Changed
	if !asked("memory") {
		b.memory = 0
	}
	if !asked("disk") {
		b.disk = 0
	}
	if !asked("cpus") {
		b.cpus = 0
	}
}

// spec is what the flags and arguments ask for.
func (b *templateBuildFlags) spec(ctx context.Context, stdin io.Reader, args []string) (template.Spec, error) {
	spec := template.Spec{Name: b.name, Args: map[string]string{}}
	if b.name == "" {
		return spec, usageError("no name given (try: -t NAME)")
	}
	for _, a := range environment(b.args) {
		name, value, _ := strings.Cut(a, "=")
		spec.Args[name] = value
	}
	spec.Machine = template.Machine{
		Cmdline: b.cmdline, VCPUs: b.cpus, Memory: int64(b.memory), Disk: int64(b.disk), KVM: b.kvm,
	}
	var err error
	if spec.Machine.Kernel, err = initrd.FindKernel(ctx, b.kernel); err != nil {
		return spec, err
	}
	if len(args) == 0 && b.file == "" && template.Builtin(b.name) {
		return spec, nil
	}
	spec.Context = "."
	if len(args) > 0 {
		spec.Context = args[0]
	}
	spec.Source, err = b.source(stdin, spec.Context)
	return spec, err
}

// source reads the template's file, and no more of it than one can have.
func (b *templateBuildFlags) source(stdin io.Reader, dir string) ([]byte, error) {
	if b.file == "-" {
		return io.ReadAll(io.LimitReader(stdin, template.MaxFile+1))
	}
	names := []string{b.file}
	if b.file == "" {
		names = []string{filepath.Join(dir, "Containerfile"), filepath.Join(dir, "Dockerfile")}
	}
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) && b.file == "" {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return io.ReadAll(io.LimitReader(f, template.MaxFile+1))
	}
	return nil, usageError("there is no Containerfile in %s (try: -f FILE)", dir)
}

// buildOptions shows a build on w.
func buildOptions(w io.Writer, noCache, pull bool) template.BuildOptions {
	return template.BuildOptions{NoCache: noCache, Pull: pull, Output: w, Progress: func(p template.Progress) {
		switch {
		case p.Cached:
			fmt.Fprintf(w, "[%d/%d] %s (cached)\n", p.Step, p.Steps, p.Text)
		case p.Done:
			fmt.Fprintf(w, "[%d/%d] done in %.1f s\n", p.Step, p.Steps, p.Elapsed.Seconds())
		default:
			fmt.Fprintf(w, "[%d/%d] %s\n", p.Step, p.Steps, p.Text)
		}
	}}
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
	return onTemplates(cmd, func(cmd *cobra.Command, store *template.Store, args []string) error {
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
		Short: "List templates that are built",
		Long: `List templates that are built. With --json it is a list of objects as 'template
inspect --json' shows them.`,
		Args: cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	return onTemplates(cmd, func(cmd *cobra.Command, store *template.Store, _ []string) error {
		infos, err := store.List()
		if *asJSON {
			return errors.Join(printJSON(cmd.OutOrStdout(), append([]template.Info{}, infos...)), err)
		}
		return errors.Join(printTemplates(cmd.OutOrStdout(), infos), err)
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
	return onTemplates(cmd, func(cmd *cobra.Command, store *template.Store, args []string) error {
		info, err := store.Get(args[0])
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), info)
		}
		return printTemplate(cmd.OutOrStdout(), info)
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
	return onTemplates(cmd, func(cmd *cobra.Command, store *template.Store, args []string) error {
		log, err := store.Log(args[0])
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), map[string]string{"name": args[0], "log": string(log)})
		}
		_, err = cmd.OutOrStdout().Write(log)
		return err
	})
}

func newTemplateRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove templates, and print their names",
		Long: `Remove templates, with the cached steps that no other template was made of, and
print their names. If any of the names is wrong, none is removed. Machines that were
started from them go on.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeTemplates(allArgs),
	}
	return onTemplates(cmd, func(cmd *cobra.Command, store *template.Store, args []string) error {
		for _, name := range args {
			if _, err := store.Get(name); errors.Is(err, template.ErrNotFound) || errors.Is(err, template.ErrName) {
				return err
			}
		}
		for _, name := range args {
			if err := store.Remove(cmd.Context(), name); err != nil {
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
counts.`,
		Args: cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	return onTemplates(cmd, func(cmd *cobra.Command, store *template.Store, _ []string) error {
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

// completeTemplates completes the first max arguments as names of templates.
func completeTemplates(max int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= max {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return templateNames(cmd), cobra.ShellCompDirectiveNoFileComp
	}
}

// templateNames are those of the templates that are built.
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
