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

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/initrd"
)

// templateBuildFlags say what to build.
type templateBuildFlags struct {
	file, name, kernel, cmdline, kvm string
	memory, disk                     byteSize
	cpus                             int
	args                             []string
	noCache, pull                    bool

	// What check reads: the file that says how, and where the context is, if there
	// is one.
	source []byte
	dir    string
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

A server gets all of the CONTEXT but for what its .dockerignore names, as files that belong to
nobody, and for FROM the paths in it and no others. It takes the key of an administrator.

What steps print goes to standard error, and to a log: 'forkvm template log'.`,
		Example: `  forkvm template build -t web --build-arg VERSION=2 .
  forkvm template build -t python
  forkvm run --template web -- curl localhost:8080`,
		Args: cobra.MaximumNArgs(1),
	}
	b := &templateBuildFlags{memory: 512 << 20, disk: 4 << 30}
	f := cmd.Flags()
	f.StringVarP(&b.name, "tag", "t", "", "`name` of the template")
	_ = cmd.RegisterFlagCompletionFunc("tag", completeTemplates(allArgs)) // the flag is there
	f.StringVarP(&b.file, "file", "f", "", "the `file` that says how; - is standard input")
	f.StringArrayVar(&b.args, "build-arg", nil, "set `NAME=VALUE` for ARG, or pass NAME on from here")
	f.Var(&b.memory, "memory", "guest memory, such as 512M or 4G")
	f.Var(&b.disk, "disk", "size of the disk for what the guest writes; it takes what is written")
	f.IntVar(&b.cpus, "cpus", 1, "virtual CPUs")
	f.StringVar(&b.kernel, "kernel", "", "guest `kernel`, as for 'forkvm run'; with --templates")
	f.StringVar(&b.cmdline, "cmdline", os.Getenv("FORKVM_CMDLINE"), "`options` to append to the kernel command line ($FORKVM_CMDLINE); with --templates")
	f.StringVar(&b.kvm, "kvm", "/dev/kvm", "KVM `device`; with --templates")
	f.BoolVar(&b.noCache, "no-cache", false, "run all steps again")
	f.BoolVar(&b.pull, "pull", false, "get what FROM names again")
	asJSON := jsonFlag(cmd)
	onTemplates(cmd, func(cmd *cobra.Command, t templates, _ []string) error {
		made, err := b.build(cmd.Context(), t)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), made)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), made.Name)
		return err
	})
	build := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := b.check(cmd, args); err != nil { // before a server is started
			return err
		}
		return build(cmd, args)
	}
	return cmd
}

// ofDirectory are flags that say what a server says itself.
var ofDirectory = []string{"kernel", "cmdline", "kvm"}

// check finds out what is to be built.
func (b *templateBuildFlags) check(cmd *cobra.Command, args []string) (err error) {
	if b.name == "" {
		return usageError("no name given (try: -t NAME)")
	}
	for _, name := range ofDirectory {
		if cmd.Flags().Changed(name) && !cmd.Flags().Changed("templates") {
			return usageError("--%s goes with --templates: a server has its own ('forkvm serve --help')", name)
		}
	}
	b.forget(cmd)
	if len(args) == 0 && b.file == "" && template.Builtin(b.name) {
		return nil
	}
	b.dir = "."
	if len(args) > 0 {
		b.dir = args[0]
	}
	b.source, err = b.read(cmd.InOrStdin())
	return err
}

// build builds where the flags say.
func (b *templateBuildFlags) build(ctx context.Context, t templates) (*api.Template, error) {
	if d, ok := t.(templateDir); ok {
		spec, err := b.spec(ctx)
		if err != nil {
			return nil, err
		}
		info, err := d.Build(ctx, spec, buildOptions(b.noCache, b.pull))
		made := info.Template()
		return &made, err
	}
	made, err := b.ask(ctx, t.(api.Service))
	if e, ok := errors.AsType[*api.Error](err); ok && e.Details["step"] != nil {
		err = &codeError{exitFailure, err} // what was asked for makes sense
	}
	return made, err
}

// buildOptions shows a build on standard error.
func buildOptions(noCache, pull bool) template.BuildOptions {
	o := template.Shown(os.Stderr)
	o.NoCache, o.Pull = noCache, pull
	return o
}

// ask has a server build, and sends it the context directory, if there is one.
func (b *templateBuildFlags) ask(ctx context.Context, s api.Service) (*api.Template, error) {
	r := api.BuildRequest{
		Name: b.name, File: string(b.source), Args: b.values(), NoCache: b.noCache, Pull: b.pull,
		VCPUs: b.cpus, MemoryBytes: int64(b.memory), DiskBytes: int64(b.disk),
	}
	if b.dir == "" {
		return s.BuildTemplate(ctx, r, nil, os.Stderr)
	}
	archive, w := io.Pipe()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		w.CloseWithError(template.Pack(ctx, b.dir, w))
	}()
	made, err := s.BuildTemplate(ctx, r, archive, os.Stderr)
	archive.CloseWithError(io.ErrClosedPipe) // ends the packing, if it was not read to its end
	<-packed
	return made, err
}

func (b *templateBuildFlags) values() map[string]string {
	values := map[string]string{}
	for _, a := range environment(b.args) {
		name, value, _ := strings.Cut(a, "=")
		values[name] = value
	}
	return values
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

// spec is what the flags ask for of a directory.
func (b *templateBuildFlags) spec(ctx context.Context) (template.Spec, error) {
	spec := template.Spec{Name: b.name, Source: b.source, Context: b.dir, Args: b.values(), Machine: template.Machine{
		Cmdline: b.cmdline, VCPUs: b.cpus, Memory: int64(b.memory), Disk: int64(b.disk), KVM: b.kvm,
	}}
	var err error
	spec.Machine.Kernel, err = initrd.FindKernel(ctx, b.kernel)
	return spec, err
}

// read reads the template's file, and no more of it than one can have.
func (b *templateBuildFlags) read(stdin io.Reader) ([]byte, error) {
	if b.file == "-" {
		return io.ReadAll(io.LimitReader(stdin, template.MaxFile+1))
	}
	names := []string{b.file}
	if b.file == "" {
		names = []string{filepath.Join(b.dir, "Containerfile"), filepath.Join(b.dir, "Dockerfile")}
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
	return nil, usageError("there is no Containerfile in %s (try: -f FILE)", b.dir)
}
