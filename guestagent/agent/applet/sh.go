package applet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// sh is a shell: -c COMMAND [NAME [ARG…]], FILE [ARG…], or standard input,
// with a prompt on a terminal. Of the flags that set(1) knows it takes -e, -u
// and -x.
func sh(s *stdio, args []string) error {
	var set []string
	command, hasCommand := "", false
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		flags := args[0][1:]
		args = args[1:]
		for _, f := range flags {
			switch f {
			case 'c':
				hasCommand = true
			case 'e', 'u', 'x':
				set = append(set, "-"+string(f))
			case 'i', 'l', 's':
			default:
				return fmt.Errorf("unknown option -%c", f)
			}
		}
	}
	name := "sh"
	var src io.Reader = s.in
	switch {
	case hasCommand:
		if len(args) == 0 {
			return errors.New("-c needs a command")
		}
		command, args = args[0], args[1:]
		src = strings.NewReader(command)
		if len(args) > 0 {
			name, args = args[0], args[1:]
		}
	case len(args) > 0:
		f, err := os.Open(args[0])
		if err != nil {
			fmt.Fprintln(s.err, "sh:", err)
			return exitCode(127)
		}
		defer f.Close()
		src, name, args = f, args[0], args[1:]
	}
	interactive := src == io.Reader(os.Stdin) && isTerminal(os.Stdin)
	in := s.in
	if src == s.in && !interactive {
		in = nil // the script itself, all of which is read before it runs
	}
	j := newJobs()
	r, err := interp.New(
		interp.StdIO(in, s.raw, s.err),
		interp.Params(append(append(set, "--"), args...)...),
		interp.CallHandler(callCommand),
		interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return j.handle }),
	)
	if err != nil {
		return err
	}
	if interactive {
		return interact(s, r)
	}
	return runScript(s, r, j, src, name)
}

// callCommand has the interpreter run as commands what it knows as builtins
// but does not have.
func callCommand(_ context.Context, args []string) ([]string, error) {
	if args[0] == "kill" {
		args = append([]string{killProgram}, args[1:]...)
	}
	return args, nil
}

// runScript runs a whole script. A syntax error is found before any of it
// runs.
func runScript(s *stdio, r *interp.Runner, j *jobs, src io.Reader, name string) error {
	prog, err := syntax.NewParser().Parse(src, name)
	if err != nil {
		fmt.Fprintln(s.err, err)
		return exitCode(2)
	}
	j.mark(prog)
	err = r.Run(context.Background(), prog)
	j.settle()
	return shellExit(err)
}

func shellExit(err error) error {
	if status, ok := errors.AsType[interp.ExitStatus](err); ok {
		return exitCode(status)
	}
	return err
}

// interact reads commands from a terminal. Ctrl-C is the running command's,
// which is in the same process group; the shell itself lives on.
func interact(s *stdio, r *interp.Runner) error {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT, syscall.SIGQUIT)
	prompt := func(p string) {
		fmt.Fprint(s.out, p)
		s.out.Flush()
	}
	prompt("# ")
	var last error
	parser := syntax.NewParser()
	for {
		again := false
		for stmts, err := range parser.InteractiveSeq(os.Stdin) {
			if err != nil {
				fmt.Fprintln(s.err, err)
				again = true
				break
			}
			if parser.Incomplete() {
				prompt("> ")
				continue
			}
			for _, stmt := range stmts {
				last = shellExit(r.Run(context.Background(), stmt))
				if r.Exited() {
					return last
				}
			}
			prompt("# ")
		}
		if !again {
			return last
		}
		parser = syntax.NewParser()
		prompt("# ")
	}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
