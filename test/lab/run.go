package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/test/lab/internal/image"
	"github.com/forkvm/forkvm/test/lab/internal/machine"
	"github.com/forkvm/forkvm/test/lab/internal/session"
)

// copyOutTime bounds copying results out after a program has ended.
const copyOutTime = 10 * time.Minute

// errProgram is wrapped by errors about the program to run.
var errProgram = errors.New("program")

// A job is a program to run, and what it needs and leaves.
type job struct {
	command  session.Command
	files    []session.Copy
	outputs  []output
	forwards []forward
	options  image.Options
	// share lets others use the machine at the same time.
	share bool
	// keep leaves the machine up.
	keep bool
	// once says that the program will not be run again, and is to leave no copy.
	once bool
}

// flags parses the flags that run and test have in common, and returns the other arguments.
func (j *job) flags(name, arguments string, args []string) ([]string, error) {
	fs := newFlags(name, arguments)
	listFlag(fs, &j.files, "file", "copy a file or folder in: `path[:path inside]`", parseFile)
	listFlag(fs, &j.outputs, "out", "copy a file or folder out afterwards: `path inside[:path]`", parseOutput)
	listFlag(fs, &j.command.Env, "env", "set an environment variable: `NAME=VALUE`", parseEnv)
	listFlag(fs, &j.forwards, "forward", "reach a TCP port inside at a port of 127.0.0.1: `hostport:port`", parseForward)
	fs.DurationVar(&j.command.Timeout, "timeout", 0, "end the program after this `time`")
	fs.StringVar(&j.command.Dir, "dir", "", "working `folder` (default: the same as here)")
	fs.BoolVar(&j.share, "share", false, "let others use the machine at the same time; it must be up already")
	fs.BoolVar(&j.keep, "keep", false, "leave the machine up, as 'lab up' does")
	machineFlags(fs, &j.options)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() == 0 {
		fs.Usage()
		return nil, errors.New("no program given")
	}
	if j.command.Dir == "" {
		dir, err := os.Getwd()
		if err != nil {
			return nil, err
		}
		j.command.Dir = dir
	}
	j.command.Stdin, j.command.Stdout, j.command.Stderr = os.Stdin, os.Stdout, os.Stderr
	j.command.Signals = &toProgram
	return fs.Args(), nil
}

func runCommand(ctx context.Context, args []string) (int, error) {
	var j job
	args, err := j.flags("run", "[flags] [--] PROGRAM [ARGS]", args)
	if err != nil {
		return 0, err
	}
	if err := j.setProgram(args); err != nil {
		return 0, err
	}
	exit, err := j.run(ctx)
	return status(exit), err
}

// setProgram finds the program on this host, as a shell would.
func (j *job) setProgram(args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: %w", exec.ErrNotFound, err)
		}
		return fmt.Errorf("%w %s: %w", errProgram, args[0], err)
	}
	if j.command.Path, err = filepath.Abs(path); err != nil {
		return err
	}
	j.command.Args = args[1:]
	return nil
}

func status(e session.Exit) int {
	if e.TimedOut {
		fmt.Fprintln(os.Stderr, "lab: the program was ended by --timeout")
		return exitTimeout
	}
	return e.Code
}

// run runs the job, here or in a machine.
func (j *job) run(ctx context.Context) (session.Exit, error) {
	here, err := direct()
	if err != nil {
		return session.Exit{}, err
	}
	if here {
		if err := j.checkDirect(); err != nil {
			return session.Exit{}, err
		}
		return runDirect(ctx, j.command)
	}
	l, err := openLab()
	if err != nil {
		return session.Exit{}, err
	}
	k, err := l.lock(ctx, j.share)
	if err != nil {
		return session.Exit{}, err
	}
	defer k.unlock()
	if j.keep && !j.share {
		if err := l.keepIfDown(j.options); err != nil {
			return session.Exit{}, err
		}
	}
	return j.runIn(ctx, l, k)
}

// checkDirect refuses what only makes sense in a machine of its own. What a disk is for may be in
// its folder on this host.
func (j *job) checkDirect() error {
	moved := false
	for _, d := range j.options.Disks {
		list, err := os.ReadDir(d.Guest)
		moved = moved || err != nil || len(list) == 0
	}
	for _, t := range j.options.Trees {
		moved = moved || t.Host != t.Guest
	}
	for _, c := range j.files {
		moved = moved || c.Host != c.Guest
	}
	for _, o := range j.outputs {
		moved = moved || o.host != o.guest
	}
	for _, f := range j.forwards {
		moved = moved || f.host != f.guest
	}
	if moved {
		return fmt.Errorf("this host's own KVM is used, so files, disks and ports are where they are: "+
			"give no other places for them, or set %s=force", modeVariable)
	}
	return nil
}

// runIn runs the job in the machine.
func (j *job) runIn(ctx context.Context, l *lab, k *lock) (exit session.Exit, err error) {
	err = l.use(ctx, k, j.options, func(ctx context.Context, m *machine.Machine, s *session.Session) error {
		if err := j.prepare(ctx, l, s); err != nil {
			return err
		}
		exit, err = j.inside(ctx, m, s)
		return err
	})
	return exit, err
}

func (j *job) inside(ctx context.Context, m *machine.Machine, s *session.Session) (session.Exit, error) {
	for _, f := range j.forwards {
		if err := m.Forward(ctx, f.host, f.guest); err != nil {
			return session.Exit{}, err
		}
		defer m.Unforward(context.WithoutCancel(ctx), f.host)
	}
	// The kernels are at the same path inside, which the program there cannot know.
	cache, err := initrd.CacheDir()
	if err != nil {
		return session.Exit{}, err
	}
	command := j.command
	command.Env = append([]string{"FORKVM_CACHE=" + cache}, command.Env...)
	exit, err := s.Run(ctx, command)
	if err != nil {
		return exit, err
	}
	if j.once {
		if err := s.Remove(ctx, j.command.Path); err != nil {
			return exit, err
		}
	}
	err = j.copyOut(ctx, s)
	if err != nil && exit.Code != 0 && !failed(err) {
		// That the program failed is why, and the better answer.
		fmt.Fprintln(os.Stderr, "lab:", err)
		err = nil
	}
	return exit, err
}

// prepare brings in what the program needs.
func (j *job) prepare(ctx context.Context, l *lab, s *session.Session) error {
	k, err := l.lockFiles(ctx)
	if err != nil {
		return err
	}
	defer k.unlock()
	if err := j.makeFolders(ctx, s); err != nil {
		return err
	}
	return j.copyIn(ctx, s)
}

// copyIn brings the program, its libraries and files, and kernels that the machine has not seen.
func (j *job) copyIn(ctx context.Context, s *session.Session) error {
	files := append([]session.Copy{{Host: j.command.Path, Guest: j.command.Path}}, j.files...)
	for _, f := range files {
		libraries, err := session.Libraries(f.Host)
		if err != nil {
			return err
		}
		files = append(files, libraries...)
	}
	kernels, err := newKernels(ctx, s)
	if err != nil {
		return err
	}
	return s.CopyIn(ctx, append(files, kernels...)...)
}

// makeFolders makes the folders for what will be copied out, as they are here.
func (j *job) makeFolders(ctx context.Context, s *session.Session) error {
	for _, o := range j.outputs {
		dir := o.guest
		if info, err := os.Stat(o.host); err != nil || !info.IsDir() {
			dir = filepath.Dir(dir)
		}
		if err := s.Mkdir(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

func (j *job) copyOut(ctx context.Context, s *session.Session) error {
	ctx, cancel := context.WithTimeout(ctx, copyOutTime)
	defer cancel()
	for _, o := range j.outputs {
		if o.optional {
			exists, err := s.Exists(ctx, o.guest)
			if err != nil {
				return err
			}
			if !exists {
				continue
			}
		}
		if err := s.CopyOut(ctx, o.guest, o.host); err != nil {
			return err
		}
	}
	return nil
}

// newKernels returns the cached guest kernels that the machine lacks. Their folders are published
// as a whole and never change, so a folder's time says whether it is there.
func newKernels(ctx context.Context, s *session.Session) ([]session.Copy, error) {
	dir, err := image.KernelsDir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var missing []session.Copy
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") || s.SameTime(ctx, path) {
			continue
		}
		missing = append(missing, session.Copy{Host: path, Guest: path})
	}
	return missing, nil
}
