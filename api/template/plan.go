package template

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// How the check of a start command is run.
const (
	checkEvery = 2 * time.Second
	checkFor   = 10 * time.Minute
)

// guestPath is the PATH of commands in a guest unless something sets it.
const guestPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/forkvm/bin"

// maxEnv is how much environment a template may have, in bytes.
const maxEnv = 256 << 10

// Config is what commands in machines of a template get: see Info.Command.
type Config struct {
	// Env is the environment besides the guest's own, as NAME=VALUE.
	Env []string `json:"env,omitempty"`
	// Workdir is the directory; empty: the guest's default.
	Workdir string `json:"workdir,omitempty"`
	// User is whom they run as; empty: root.
	User string `json:"user,omitempty"`
	// Cmd is the template's start command, which runs in its machines already,
	// or else what the template or the container image it was made of has for
	// one.
	Cmd []string `json:"cmd,omitempty"`
}

// plan is what a file says for a given base, with all variables replaced.
type plan struct {
	steps  []step
	config Config
	start  []string // nil: nothing
	check  []string // nil: nothing
}

type stepKind string

const (
	stepRun     stepKind = "run"
	stepCopy    stepKind = "copy"
	stepWorkdir stepKind = "workdir"
)

// step is what changes the machine.
type step struct {
	kind stepKind
	line int
	text string // the instruction as it was written

	argv    []string // run
	sources []string // copy
	dest    string   // copy, workdir: an absolute path
	intoDir bool     // copy: dest is a directory
	chown   string   // copy

	env       []string // in force: of the template, and arguments
	dir, user string   // in force
}

// planner goes through a file and keeps what is in force.
type planner struct {
	given map[string]string // build arguments
	args  map[string]string // of them, and of defaults, those declared
	env   *environ
	plan  plan
}

// from is what the file is based on.
func (f *File) from(args map[string]string) (string, error) {
	p := planner{given: args, args: map[string]string{}, env: newEnviron(nil)}
	for k := range f.instructions {
		in := &f.instructions[k]
		if in.name == "FROM" {
			from, err := p.word(in, in.words[0])
			if err == nil && from == "" {
				err = in.fail("an empty name")
			}
			return from, err
		}
		if err := p.arg(in); err != nil {
			return "", err
		}
	}
	return "", &SyntaxError{Msg: "no FROM"}
}

// plan says what is to be done on a base that brings config along.
func (f *File) plan(base Config, args map[string]string) (plan, error) {
	p := planner{given: args, args: map[string]string{}, env: newEnviron(base.Env)}
	p.plan.config = base
	if err := f.checkArgs(args); err != nil {
		return plan{}, err
	}
	for k := range f.instructions {
		if err := p.add(&f.instructions[k]); err != nil {
			return plan{}, err
		}
	}
	p.plan.config.Env = p.env.list()
	if p.plan.start != nil {
		p.plan.config.Cmd = p.plan.start
	}
	return p.plan, nil
}

// checkArgs refuses arguments that the file does not declare.
func (f *File) checkArgs(args map[string]string) error {
	declared := map[string]bool{}
	for _, in := range f.instructions {
		if in.name == "ARG" {
			name, _, _ := strings.Cut(in.words[0], "=")
			declared[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		switch {
		case !declared[name]:
			return &SyntaxError{Msg: fmt.Sprintf("no ARG takes the build argument %.40q", name)}
		case strings.ContainsRune(args[name], 0) || len(args[name]) > maxWord:
			return &SyntaxError{Msg: fmt.Sprintf("build argument %s: a NUL byte or more than %d bytes", name, maxWord)}
		}
	}
	return nil
}

func (p *planner) add(in *instruction) error {
	switch in.name {
	case "ARG":
		return p.arg(in)
	case "ENV":
		return p.setEnv(in)
	case "USER":
		return p.user(in)
	case "WORKDIR":
		return p.workdir(in)
	case "COPY":
		return p.copy(in)
	case "RUN":
		p.step(in, step{kind: stepRun, argv: in.argv})
	case "CMD":
		p.plan.start = in.argv
	case "HEALTHCHECK":
		p.plan.check = in.argv
	}
	return nil
}

// step adds a step with what is in force.
func (p *planner) step(in *instruction, s step) {
	s.line, s.text = in.line, in.text
	for _, name := range slices.Sorted(maps.Keys(p.args)) {
		if _, set := p.env.values[name]; !set { // as in Docker, ENV hides ARG
			s.env = append(s.env, name+"="+p.args[name])
		}
	}
	s.env = append(s.env, p.env.list()...)
	s.dir, s.user = p.plan.config.Workdir, p.plan.config.User
	p.plan.steps = append(p.plan.steps, s)
}

// word is a word with its variables replaced.
func (p *planner) word(in *instruction, w string) (string, error) {
	s, err := expand(w, func(name string) (string, bool) {
		if v, ok := p.env.values[name]; ok {
			return v, true
		}
		if v, ok := p.args[name]; ok {
			return v, true
		}
		if name == "PATH" {
			return guestPath, true
		}
		return "", false
	})
	switch {
	case err != nil:
		return "", in.fail("%v", err)
	case strings.ContainsRune(s, 0):
		return "", in.fail("a word with a NUL byte")
	}
	return s, nil
}

func (p *planner) arg(in *instruction) error {
	name, def, hasDefault := strings.Cut(in.words[0], "=")
	if v, ok := p.given[name]; ok {
		p.args[name] = v
		return nil
	}
	if !hasDefault {
		return nil
	}
	v, err := p.word(in, def)
	if err == nil {
		p.args[name] = v
	}
	return err
}

// setEnv replaces variables by what they were before the instruction.
func (p *planner) setEnv(in *instruction) error {
	var values []string
	for _, pair := range in.pairs {
		v, err := p.word(in, pair[1])
		if err != nil {
			return err
		}
		values = append(values, v)
	}
	for k, pair := range in.pairs {
		if p.env.set(pair[0], values[k]); p.env.size > maxEnv {
			return in.fail("more than %d bytes of environment", maxEnv)
		}
	}
	return nil
}

func (p *planner) user(in *instruction) error {
	user, err := p.word(in, in.words[0])
	if err == nil && user == "" {
		err = in.fail("an empty name")
	}
	p.plan.config.User = user
	return err
}

func (p *planner) workdir(in *instruction) error {
	dir, err := p.word(in, in.words[0])
	if err != nil {
		return err
	}
	if dir == "" {
		return in.fail("an empty path")
	}
	p.plan.config.Workdir = p.absolute(dir)
	p.step(in, step{kind: stepWorkdir, dest: p.plan.config.Workdir})
	return nil
}

func (p *planner) copy(in *instruction) error {
	var words []string
	for _, w := range in.words {
		s, err := p.word(in, w)
		if err != nil {
			return err
		}
		if s == "" {
			return in.fail("an empty path")
		}
		words = append(words, s)
	}
	owner, err := p.word(in, in.chown)
	if err != nil {
		return err
	}
	sources, dest := words[:len(words)-1], words[len(words)-1]
	if len(sources) > 1 && !isDirectory(dest) {
		return in.fail("several sources need a destination that ends in a slash")
	}
	p.step(in, step{kind: stepCopy, sources: sources, dest: p.absolute(dest), intoDir: isDirectory(dest), chown: owner})
	return nil
}

// absolute is a path of the guest from its root.
func (p *planner) absolute(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join("/", p.plan.config.Workdir, name)
}

// environ is an environment: names in the order they were first set.
type environ struct {
	names  []string
	values map[string]string
	size   int // in bytes
}

func newEnviron(list []string) *environ {
	e := &environ{values: map[string]string{}}
	for _, v := range list {
		name, value, _ := strings.Cut(v, "=")
		e.set(name, value)
	}
	return e
}

func (e *environ) set(name, value string) {
	old, ok := e.values[name]
	if !ok {
		e.names = append(e.names, name)
		e.size += len(name) + 1
	}
	e.values[name] = value
	e.size += len(value) - len(old)
}

// list is the environment as NAME=VALUE.
func (e *environ) list() []string {
	var list []string
	for _, name := range e.names {
		list = append(list, name+"="+e.values[name])
	}
	return list
}
