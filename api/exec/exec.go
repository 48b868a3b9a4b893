// Package exec runs commands in sandboxes in the shape of [os/exec]:
//
//	out, err := exec.Command(service, sandbox.Access(), "uname", "-a").Output()
//
// What differs: paths are the sandbox's, no environment comes along, a command
// is killed after a minute unless TimeoutSeconds says otherwise, and pipes are to
// be read to their end, or closed, for Wait to return.
package exec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/forkvm/forkvm/api"
)

// killWithin is how long a command that is killed may take to end, before it is
// left behind.
const killWithin = 10 * time.Second

// maxStderr is how much of the standard error an ExitError has, in bytes.
const maxStderr = 32 << 10

// Cmd is a command to be run in a sandbox, once. Fields are set before it
// starts.
type Cmd struct {
	api.Command

	TTY    *api.WinSize // a terminal of this size; all output is Stdout's then
	Stdin  io.Reader    // nil: none
	Stdout io.Writer    // nil: discarded
	Stderr io.Writer    // nil: discarded; if it is Stdout, writes take turns

	// Process is the process once Start has returned nil, and Exit how it ended
	// once Wait has returned, nil if that is not known.
	Process *api.Process
	Exit    *api.Exit

	service api.Commands
	access  api.Access
	ctx     context.Context
	pipes   []io.Closer // closed when the command has ended
	errs    *prefix     // of an Output
	done    chan struct{}
	err     error // of the run, once done is closed
	waited  bool
	unwatch func() bool // ends the wait for ctx
}

// ExitError is a command that ended with another exit code than 0, or by a
// signal.
type ExitError struct {
	api.Exit
	// Stderr is the beginning of the standard error, if Output ran the command
	// and it went nowhere else.
	Stderr []byte
}

// Error implements error.
func (e *ExitError) Error() string {
	if e.Signal != "" {
		return "signal: " + e.Signal
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// Errors of Cmds that are not used as they are to be.
var (
	ErrStarted    = errors.New("exec: already started")
	ErrNotStarted = errors.New("exec: not started")
	ErrWaited     = errors.New("exec: Wait was called before")
)

// Command returns a command that runs name, with what follows as its arguments,
// in the sandbox of the access.
func Command(s api.Commands, a api.Access, name string, arg ...string) *Cmd {
	return CommandContext(context.Background(), s, a, name, arg...)
}

// CommandContext is Command, and kills the command if ctx ends before it does.
// Start and Wait return the error of ctx then.
func CommandContext(ctx context.Context, s api.Commands, a api.Access, name string, arg ...string) *Cmd {
	c := &Cmd{service: s, access: a, ctx: ctx}
	c.Argv = append([]string{name}, arg...)
	return c
}

// String is the command as it is run, for people to read.
func (c *Cmd) String() string { return fmt.Sprintf("%q", c.Argv) }

// Run starts the command and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Start starts the command, and returns when it runs.
func (c *Cmd) Start() error {
	if c.done != nil {
		return ErrStarted
	}
	c.done = make(chan struct{})
	if err := c.ctx.Err(); err != nil {
		c.closePipes()
		return err
	}
	if c.Stderr != nil && same(c.Stdout, c.Stderr) {
		turns := &turns{w: c.Stdout}
		c.Stdout, c.Stderr = turns, turns
	}
	started := make(chan api.Process, 1)
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx))
	go func() {
		defer cancel()
		c.Exit, c.err = c.service.Run(ctx, c.access, c.request(), c.streams(started))
		c.closePipes()
		close(c.done)
	}()
	select {
	case p := <-started:
		c.Process = &p
	case <-c.done:
		select {
		case p := <-started:
			c.Process = &p
		default:
			return c.err
		}
	case <-c.ctx.Done():
		cancel()
		<-c.done
		select {
		case p := <-started:
			c.Process = &p
			c.kill(cancel)
		default:
		}
		return c.ctx.Err()
	}
	c.unwatch = context.AfterFunc(c.ctx, func() { c.kill(cancel) })
	return nil
}

func (c *Cmd) request() api.StartRequest {
	return api.StartRequest{Command: c.Command, TTY: c.TTY, Stdin: c.Stdin != nil}
}

func (c *Cmd) streams(started chan<- api.Process) api.Streams {
	return api.Streams{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Started: func(p api.Process) {
		select {
		case started <- p:
		default:
		}
	}}
}

// kill ends the command, and otherwise the wait for it.
func (c *Cmd) kill(cancel context.CancelFunc) {
	ctx, done := context.WithTimeout(context.WithoutCancel(c.ctx), killWithin)
	defer done()
	if err := c.Signal(ctx, "SIGKILL"); err == nil {
		select {
		case <-c.done:
			return
		case <-ctx.Done():
		}
	}
	cancel()
}

// Wait waits for the end of the command, which has been started. If it did not
// end with exit code 0 the error is an [*ExitError].
func (c *Cmd) Wait() error {
	if c.done == nil {
		return ErrNotStarted
	}
	if c.waited {
		return ErrWaited
	}
	c.waited = true
	<-c.done
	if c.unwatch != nil {
		c.unwatch()
	}
	switch {
	case c.ctx.Err() != nil && (c.err != nil || c.Exit.Signal != ""):
		return c.ctx.Err()
	case c.err != nil:
		return c.err
	case c.Exit.Code != 0 || c.Exit.Signal != "":
		e := &ExitError{Exit: *c.Exit}
		if c.errs != nil {
			e.Stderr = c.errs.b
		}
		return e
	}
	return nil
}

// Signal sends a signal, such as SIGTERM, to the command and all it has started.
func (c *Cmd) Signal(ctx context.Context, signal string) error {
	return c.control(ctx, api.Control{Signal: signal})
}

// Resize changes the size of the terminal.
func (c *Cmd) Resize(ctx context.Context, size api.WinSize) error {
	return c.control(ctx, api.Control{Resize: &size})
}

func (c *Cmd) control(ctx context.Context, what api.Control) error {
	if c.Process == nil {
		return ErrNotStarted
	}
	return c.service.Control(ctx, c.access, c.Process.ID, what)
}

// Output runs the command and returns its standard output.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("exec: Stdout is set")
	}
	var out bytes.Buffer
	c.Stdout = &out
	if c.Stderr == nil {
		c.errs = new(prefix)
		c.Stderr = c.errs
	}
	err := c.Run()
	return out.Bytes(), err
}

// CombinedOutput runs the command and returns its standard output and error.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("exec: Stdout or Stderr is set")
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// StdinPipe returns what is written to the command. Closing it is the end of the
// input.
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	if c.Stdin != nil || c.done != nil {
		return nil, errors.New("exec: Stdin is set, or the command has started")
	}
	r, w := io.Pipe()
	c.Stdin = r
	c.pipes = append(c.pipes, r)
	return w, nil
}

// StdoutPipe returns what the command prints. It is read to its end, or closed.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.outputPipe(&c.Stdout) }

// StderrPipe returns the standard error of the command, as StdoutPipe does.
func (c *Cmd) StderrPipe() (io.ReadCloser, error) { return c.outputPipe(&c.Stderr) }

func (c *Cmd) outputPipe(to *io.Writer) (io.ReadCloser, error) {
	if *to != nil || c.done != nil {
		return nil, errors.New("exec: the stream is set, or the command has started")
	}
	r, w := io.Pipe()
	*to = pipe{w}
	c.pipes = append(c.pipes, w)
	return r, nil
}

func (c *Cmd) closePipes() {
	for _, p := range c.pipes {
		p.Close()
	}
}
