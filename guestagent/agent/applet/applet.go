package applet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/core"
)

// stdio is the standard streams of a command.
type stdio struct {
	in  io.Reader
	out *bufio.Writer // to raw; flushed when the command ends
	raw io.Writer
	err io.Writer
}

// exitCode is an error that is an exit code and needs no words.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// entry is one command: one of ours, or one of u-root's.
type entry struct {
	name string
	run  func(s *stdio, args []string) error // args without the name
	core func() core.Command

	// alone commands need a process that was started for them, with timers as
	// exact as usual: they start programs with code that does not know of
	// TimerSlack, draw random names, or are about time.
	alone bool
}

// lookup returns the command of this name, or nil.
func lookup(name string) *entry {
	i, ok := slices.BinarySearchFunc(table[:], name, func(e entry, n string) int { return strings.Compare(e.name, n) })
	if !ok {
		return nil
	}
	return &table[i]
}

// Find returns the command of this name, or nil. It takes the command line
// with the name, and returns the exit code.
func Find(name string) func(args []string) int {
	e := lookup(name)
	if e == nil {
		return nil
	}
	return func(args []string) int {
		s := &stdio{in: os.Stdin, out: bufio.NewWriter(os.Stdout), raw: os.Stdout, err: os.Stderr}
		return e.exec(s, args[1:])
	}
}

// TimerSlack, if not 0, is what the programs that a command starts get as
// PR_SET_TIMERSLACK of prctl(2), in nanoseconds. It is set before the command is
// run in a process whose timers are not as exact as usual.
var TimerSlack uintptr

// Shares reports whether there is a command of this name that may run in a
// process which was started before anybody asked for it, and whose timers are
// not exact.
func Shares(name string) bool {
	e := lookup(name)
	return e != nil && !e.alone
}

// Warm does what most commands do, to no effect, so that the next finds the
// memory for it in place.
func Warm() {
	s := &stdio{in: strings.NewReader(""), out: bufio.NewWriter(io.Discard), raw: io.Discard, err: io.Discard}
	lookup("echo").exec(s, []string{"-n", "warm"})
}

// exec runs the command and returns its exit code.
func (e *entry) exec(s *stdio, args []string) int {
	var err error
	if e.core != nil {
		cmd := e.core()
		cmd.SetIO(s.in, s.out, s.err)
		err = cmd.RunContext(context.Background(), args...)
	} else {
		err = e.run(s, args)
	}
	if flushErr := s.out.Flush(); err == nil {
		err = flushErr
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	if err != nil {
		fmt.Fprintf(s.err, "%s: %v\n", e.name, err)
		return 1
	}
	return 0
}

// Names returns the names of all commands, in order.
func Names() []string {
	names := make([]string, len(table))
	for i, e := range table {
		names[i] = e.name
	}
	return names
}

// Install makes a link in dir to the program for each command whose name is
// not taken there.
func Install(program, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, e := range table {
		if err := os.Symlink(program, filepath.Join(dir, e.name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// options is a parsed command line.
type options struct {
	set  map[byte]string // the flags that were given, with their values
	args []string        // the rest
}

func (o *options) has(flag byte) bool { _, ok := o.set[flag]; return ok }

// parse parses flags as getopt(3) does: a colon in spec follows a flag that
// takes a value.
func parse(args []string, spec string) (*options, error) {
	o := &options{set: make(map[byte]string)}
	for len(args) > 0 {
		a := args[0]
		if len(a) < 2 || a[0] != '-' {
			break
		}
		args = args[1:]
		if a == "--" {
			break
		}
		for a = a[1:]; a != ""; {
			flag := a[0]
			a = a[1:]
			i := strings.IndexByte(spec, flag)
			if i < 0 || flag == ':' {
				return nil, fmt.Errorf("unknown option -%c", flag)
			}
			if i+1 == len(spec) || spec[i+1] != ':' {
				o.set[flag] = ""
				continue
			}
			if a == "" {
				if len(args) == 0 {
					return nil, fmt.Errorf("option -%c needs a value", flag)
				}
				a, args = args[0], args[1:]
			}
			o.set[flag], a = a, ""
		}
	}
	o.args = args
	return o, nil
}

// eachInput calls f with each named file, or with standard input if there are
// none; "-" is standard input as well.
func eachInput(s *stdio, files []string, f func(name string, r io.Reader) error) error {
	if len(files) == 0 {
		return f("-", s.in)
	}
	for _, name := range files {
		if name == "-" {
			if err := f(name, s.in); err != nil {
				return err
			}
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		err = f(name, file)
		file.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// eachLine calls f with each line of r, without its newline, until it returns
// false.
func eachLine(r io.Reader, f func(line string) bool) error {
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadString('\n')
		if line != "" && !f(strings.TrimSuffix(line, "\n")) {
			return nil
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

var errUsage = errors.New("wrong number of arguments")
