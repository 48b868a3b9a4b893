package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/snapshot"
)

// Spec says what a template is to be.
type Spec struct {
	// Name is the template's, see CheckName. One that exists is replaced when
	// the build has succeeded.
	Name string
	// Source is the template's file, see Parse. Nil: Name is that of a built-in
	// template. Others cannot have those names.
	Source []byte
	// Context is the directory that COPY takes files from, and that relative
	// paths of FROM begin at. Empty: none.
	Context string
	// Confined refuses what FROM names of this machine outside of Context
	// (ErrOutside): the file is somebody else's.
	Confined bool
	// Args are values for ARG.
	Args map[string]string
	// Machine is what the machine is like. What it leaves open is as in Options,
	// or, if FROM names a template, as in that. Then nothing else is possible
	// (ErrMachine), and Kernel, Cmdline, Agent and KVM are not looked at.
	Machine Machine
}

// BuildOptions are the choices of Build. The zero value is good.
type BuildOptions struct {
	// Progress, if set, is told of each step when it begins and when it is done,
	// by the goroutine that called Build.
	Progress func(Progress)
	// Output, if set, gets what steps print as it comes, as the log does.
	Output io.Writer
	// NoCache runs all steps again; Pull gets what FROM names again.
	NoCache, Pull bool
}

// Progress is how far a build has come.
type Progress struct {
	Step, Steps int    // from 1
	Text        string // the instruction
	Done        bool   // the step has ended, well
	Cached      bool   // it need not be run again
	Elapsed     time.Duration
}

// Shown are the options of a build that w gets to see: its steps, and what they
// print.
func Shown(w io.Writer) BuildOptions {
	return BuildOptions{Output: w, Progress: func(p Progress) { fmt.Fprintln(w, p) }}
}

// String is a line.
func (p Progress) String() string {
	switch {
	case p.Cached:
		return fmt.Sprintf("[%d/%d] %s (cached)", p.Step, p.Steps, p.Text)
	case p.Done:
		return fmt.Sprintf("[%d/%d] done in %.1f s", p.Step, p.Steps, p.Elapsed.Seconds())
	}
	return fmt.Sprintf("[%d/%d] %s", p.Step, p.Steps, p.Text)
}

// StepError is a step that failed. Those before it are cached.
type StepError struct {
	Step, Steps int    // from 1
	Line        int    // of the file; 0 for what no instruction says
	Text        string // the instruction
	Code        int    // exit code of its command; -1 if there is none
	Output      string // the end of what it printed
	Err         error
}

// Error is one line, and then the end of the output.
func (e *StepError) Error() string {
	where := ""
	if e.Line > 0 {
		where = fmt.Sprintf(", line %d", e.Line)
	}
	text := fmt.Sprintf("template: step %d of %d%s: %.200s: %s", e.Step, e.Steps, where, e.Text, describe(e.Err))
	if e.Output != "" {
		text += "\n" + e.Output
	}
	return text
}

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Err }

// Build builds a template, or finds that it is built already. Steps whose
// cause has not changed since a build before, successful or not, are not run
// again, up to the first that has to be. Builds of one name take turns.
//
// What FROM says of a template, that it is one, its machine and its settings, is
// as it is when the build begins. A template that was made from another needs it
// no longer: either may be built again or removed, and the other stays.
//
// It fails with ErrSyntax, ErrName, ErrMachine, ErrContext, ErrOutside, ErrNoTool, a
// *StepError, or what images, machines and snapshots fail with. A template of that name then
// stays as it is, and so it does if ctx ends. Steps that were done are cached.
func (s *Store) Build(ctx context.Context, spec Spec, o BuildOptions) (Info, error) {
	f, err := spec.parse()
	if err != nil {
		return Info{}, err
	}
	l, err := waitLock(ctx, s.names.path(spec.Name+".lock"), exclusive)
	if err != nil {
		return Info{}, fmt.Errorf("template: build %s: %w", spec.Name, err)
	}
	defer l.unlock()
	return s.buildLocked(ctx, spec, f, o)
}

// parse checks the spec and fills in the source.
func (spec *Spec) parse() (*File, error) {
	if err := CheckName(spec.Name); err != nil {
		return nil, err
	}
	builtin := builtins[spec.Name]
	switch {
	case spec.Source == nil && builtin == "":
		return nil, fmt.Errorf("template: %w: %s is not built, and not built in", ErrNotFound, spec.Name)
	case spec.Source == nil:
		spec.Source = []byte(builtin)
	case builtin != "":
		return nil, fmt.Errorf("template: %w: %s is a built-in template", ErrName, spec.Name)
	}
	return Parse(spec.Source)
}

// buildLocked is Build for who holds the lock of the name.
func (s *Store) buildLocked(ctx context.Context, spec Spec, f *File, o BuildOptions) (Info, error) {
	l, err := waitLock(ctx, s.path("lock"), shared)
	if err != nil {
		return Info{}, fmt.Errorf("template: build %s: %w", spec.Name, err)
	}
	defer l.unlock()
	log, err := s.newLog(spec.Name, o.Output)
	if err != nil {
		return Info{}, fmt.Errorf("template: build %s: %w", spec.Name, err)
	}
	b := &builder{store: s, spec: spec, file: f, o: o, log: log, begin: time.Now()}
	info, err := b.build(ctx)
	if err != nil {
		log.printf("%v", err)
	}
	err = errors.Join(err, log.close())
	if err != nil {
		return Info{}, prefixed(spec.Name, err)
	}
	return info, nil
}

// prefixed says whose build failed, unless the error is one of this package,
// which begins with its name.
func prefixed(name string, err error) error {
	_, step := errors.AsType[*StepError](err)
	if step || errors.Is(err, ErrSyntax) {
		return err
	}
	return fmt.Errorf("template: build %s: %w", name, err)
}

// Fetch makes the image of what FROM names, or finds that it is there, and
// returns its size in bytes. It needs no KVM: a build on another machine, which
// has the same directory, may. Output gets what programs print.
func (s *Store) Fetch(ctx context.Context, from string, output io.Writer) (int64, error) {
	l, err := waitLock(ctx, s.path("lock"), shared)
	if err != nil {
		return 0, fmt.Errorf("template: fetch %s: %w", from, err)
	}
	defer l.unlock()
	if output == nil {
		output = io.Discard
	}
	if p, err := s.parent(from, ""); err != nil {
		return 0, err
	} else if p != nil {
		return p.Base, nil // it is in the template's machine
	}
	b, err := s.bases.find(ctx, from, place{}, false, output)
	if err != nil {
		return 0, fmt.Errorf("template: fetch: %w", err)
	}
	return b.Size, nil
}

// builder is one build.
type builder struct {
	store *Store
	spec  Spec
	file  *File
	o     BuildOptions
	log   *buildLog
	begin time.Time

	context *copyContext
	parent  *Info // nil: FROM names no template
	setting setting
	base    base
	plan    plan
	keys    []key // after FROM, and after each step
	sums    []string
}

func (b *builder) steps() int { return len(b.plan.steps) + 2 }

func (b *builder) build(ctx context.Context) (Info, error) {
	var err error
	if b.context, err = openContext(b.spec.Context); err != nil {
		return Info{}, err
	}
	defer b.context.close()
	if err := b.prepare(ctx); err != nil {
		return Info{}, err
	}
	if info, ok := b.finished(ctx); ok {
		return info, nil
	}
	m, next, err := b.resume(ctx)
	if err != nil {
		return Info{}, err
	}
	defer m.close()
	for ; next < len(b.plan.steps); next++ {
		if err := b.step(ctx, m, next); err != nil {
			return Info{}, err
		}
	}
	return b.finish(ctx, m)
}

// prepare finds out what is to be done, and makes the base.
func (b *builder) prepare(ctx context.Context) (err error) {
	from, err := b.file.from(b.spec.Args)
	if err != nil {
		return err
	}
	if err := b.file.checkArgs(b.spec.Args); err != nil {
		return err
	}
	b.log.printf("FROM %s", from)
	begin, err := b.prepareFrom(ctx, from)
	if err != nil {
		return err
	}
	if b.plan, err = b.file.plan(b.base.Config, b.spec.Args); err != nil {
		return err
	}
	b.keys, b.sums, err = b.plan.keys(ctx, b.context, begin)
	return err
}

// prepareFrom finds what FROM names, or makes it, and returns its key.
func (b *builder) prepareFrom(ctx context.Context, from string) (key, error) {
	p, err := b.store.parent(from, b.spec.Name)
	if err != nil {
		return "", err
	}
	if p != nil {
		return parentKey(p.Snapshot), b.inherit(p)
	}
	in := place{b.spec.Context, b.spec.Confined}
	if isPath(from) {
		if _, err := in.path(from); err != nil { // before anything else is done for it
			return "", fmt.Errorf("FROM %s: %w", from, err)
		}
	}
	b.setting, err = b.store.machines.prepare(ctx, b.spec.Machine.withDefaults(b.store.opts.Machine))
	if err != nil {
		return "", err
	}
	b.base, err = b.store.bases.find(ctx, from, in, b.o.Pull, b.log)
	if err != nil {
		return "", err
	}
	if b.base.Sum == "" {
		b.setting.Disk = 0
	}
	return b.setting.ingredients(b.base).key(), nil
}

func (s setting) ingredients(from base) ingredients {
	return ingredients{
		kernel: s.kernel, initramfs: sumText(string(s.initramfs)), base: from.Sum, cmdline: s.Cmdline,
		vcpus: s.VCPUs, memory: s.Memory, disk: s.Disk,
	}
}

// final is the key of the template.
func (b *builder) final() key { return b.plan.final(b.keys[len(b.keys)-1], b.spec.Name) }

// finished is the template if it is there and is what is to be built.
func (b *builder) finished(ctx context.Context) (Info, bool) {
	info, err := b.store.Get(b.spec.Name)
	if err != nil || info.Key != string(b.final()) || b.o.NoCache {
		return Info{}, false
	}
	if _, err := b.store.machines.stat(ctx, info.Snapshot); err != nil {
		return Info{}, false
	}
	for k := range b.steps() {
		b.cached(k)
	}
	b.log.drop()
	return info, true
}

// text is the instruction of a step, from 0.
func (b *builder) text(k int) string {
	switch {
	case k == 0:
		return "FROM " + b.base.From
	case k <= len(b.plan.steps):
		return b.plan.steps[k-1].text
	}
	return "capture"
}

func (b *builder) cached(k int) {
	b.tell(Progress{Step: k + 1, Text: b.text(k), Done: true, Cached: true})
}

func (b *builder) tell(p Progress) {
	p.Steps = b.steps()
	b.log.printf("%s", p)
	if b.o.Progress != nil {
		b.o.Progress(p)
	}
}

// do runs a step, from 0, and tells of it.
func (b *builder) do(k int, fn func(out io.Writer) error) error {
	b.tell(Progress{Step: k + 1, Text: b.text(k)})
	begin := time.Now()
	end := &tail{}
	if err := fn(io.MultiWriter(b.log, end)); err != nil {
		e := &StepError{Step: k + 1, Steps: b.steps(), Text: b.text(k), Code: -1, Output: end.lines(), Err: err}
		if exit, ok := errors.AsType[*client.ExitError](err); ok {
			e.Code = exit.Code
		}
		if k > 0 && k <= len(b.plan.steps) {
			e.Line = b.plan.steps[k-1].line
		}
		return e
	}
	b.tell(Progress{Step: k + 1, Text: b.text(k), Done: true, Elapsed: time.Since(begin)})
	return nil
}

// resume makes the machine of the last step that is cached, or the first one.
// next is the step to go on with.
func (b *builder) resume(ctx context.Context) (m machine, next int, err error) {
	for k := len(b.keys) - 1; k >= 0 && !b.o.NoCache; k-- {
		var st stepRecord
		if b.store.steps.read(string(b.keys[k])+".json", &st) != nil {
			continue
		}
		m, err := b.store.machines.restore(ctx, st.Snapshot)
		if unusable(err) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		for c := range k + 1 {
			b.cached(c)
		}
		return m, k, nil
	}
	err = b.do(0, func(io.Writer) error {
		if m, err = b.first(ctx); err != nil {
			return err
		}
		if err := b.keep(ctx, m, 0); err != nil {
			return errors.Join(err, m.close())
		}
		return nil
	})
	return m, 0, err
}

// first makes the machine that the first step changes.
func (b *builder) first(ctx context.Context) (machine, error) {
	if b.parent != nil {
		return b.goOn(ctx)
	}
	image := ""
	if b.base.Sum != "" {
		image = b.store.bases.image(b.base)
	}
	return b.store.machines.boot(ctx, b.setting, image)
}

// keep stores what step k, from 0, came to.
func (b *builder) keep(ctx context.Context, m machine, k int) error {
	info, err := m.save(ctx, fmt.Sprintf("%s, step %d", b.spec.Name, k+1))
	if err != nil {
		return err
	}
	return b.store.steps.write(string(b.keys[k])+".json", stepRecord{Snapshot: info.ID, Text: b.text(k), Created: info.Created})
}

// step runs step k of the plan.
func (b *builder) step(ctx context.Context, m machine, k int) error {
	s := b.plan.steps[k]
	return b.do(k+1, func(out io.Writer) error {
		var err error
		switch s.kind {
		case stepRun:
			err = m.run(ctx, command{argv: s.argv, env: s.env, dir: s.dir, user: s.user}, out)
		case stepCopy:
			err = b.copy(ctx, m.files(ctx), s, b.sums[k])
		case stepWorkdir:
			err = m.files(ctx).MkdirAll(s.dest, 0o755)
		}
		if err != nil {
			return err
		}
		return b.keep(ctx, m, k+1)
	})
}

// finish starts what is to be captured running, and captures it.
func (b *builder) finish(ctx context.Context, m machine) (Info, error) {
	var stored snapshot.Info
	err := b.do(b.steps()-1, func(out io.Writer) (err error) {
		if err := b.start(ctx, m, out); err != nil {
			return err
		}
		stored, err = b.capture(ctx, m)
		return err
	})
	if err != nil {
		return Info{}, err
	}
	info := b.info(stored)
	old, _ := b.store.Get(b.spec.Name) // there need not be one
	if err := b.store.names.write(b.spec.Name+".json", info); err != nil {
		return Info{}, err
	}
	b.log.only()
	b.store.letGo(b.spec.Name)
	// What is not needed any more costs space and nothing else: Prune gets it.
	if old.Snapshot != "" {
		_ = b.store.machines.delete(ctx, old.Snapshot)
	}
	return info, nil
}

func (b *builder) info(stored snapshot.Info) Info {
	info := Info{
		Name: b.spec.Name, Snapshot: stored.ID, Key: string(b.final()), Created: stored.Created,
		From: b.base.From, Source: string(b.spec.Source), Config: b.plan.config,
		Memory: b.setting.Memory, Disk: b.setting.Disk, VCPUs: b.setting.VCPUs, Kernel: stored.Kernel.Version,
		Base: b.base.Size, Stored: stored.Stored, BuildSeconds: time.Since(b.begin).Seconds(), Log: b.log.path,
	}
	if b.parent != nil {
		info.Parent = b.parent.Snapshot
	}
	for _, k := range b.keys {
		info.Steps = append(info.Steps, string(k))
	}
	return info
}
