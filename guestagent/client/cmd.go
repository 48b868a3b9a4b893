package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// MaxOutput is the most bytes of each stream that [Cmd.Output] and
// [Cmd.CombinedOutput] return.
const MaxOutput = 64 << 20

// WinSize is the size of a terminal in characters.
type WinSize = proto.WinSize

// Cmd is a command in the guest, in the shape of exec.Cmd. It cannot be reused
// after it was started.
//
// The command is executed as it is: no shell sees it unless one is named. It
// runs in a session of its own. When it ends, so does its output, even if
// children that it left behind hold its streams open; they live on.
//
// The loss of the connection ends the command with all its processes. But in a
// fork of the machine, where connections do not outlive the fork, the command
// goes on in the background: [Client.Attach] reaches it by its ProcessID.
type Cmd struct {
	// Path is the program. If it has no slash the agent looks it up in the
	// PATH that the command will have.
	Path string
	// Args is the command line, including Path as Args[0].
	Args []string
	// Env is the environment. Nil: the agent's default, which has PATH, HOME,
	// USER and TERM. ExtraEnv is set on top of either.
	Env, ExtraEnv []string
	// Dir is the working directory. Empty: the agent's default directory, the
	// same for each command.
	Dir string
	// User is whom the command runs as: a name or number of the guest's, with
	// or without ":group". Empty: as the agent, that is root.
	User string
	// Stdin is read until its end, or until the command ends. Nil: none.
	Stdin io.Reader
	// Stdout and Stderr get the output as it comes. Nil: it is discarded. A
	// writer that blocks in the end blocks the command. If they are the same
	// comparable value, one Write is called at a time.
	Stdout, Stderr io.Writer
	// TTY, if not nil, gives the command a terminal of this size. Everything
	// it prints then comes by Stdout.
	TTY *WinSize
	// Timeout, if not 0, is when the agent kills the command with all its
	// processes; Wait then returns an error that is ErrTimeout.
	Timeout time.Duration
	// IdleTimeout, if not 0, does the same when the command has printed nothing,
	// or nothing that was taken, for that long.
	IdleTimeout time.Duration
	// Leave has the command go on in the background, where [Client.Attach]
	// reaches it, when ctx is done after Start or Stdin fails: Wait returns the
	// cause. Its input stays open. What was printed before was written by then, and
	// what comes after is kept.
	Leave bool
	// Detach makes the command outlive this client: it runs in the background
	// and Start does not stay connected. Streams are not connected; with
	// OpenStdin its input stays open for clients that attach.
	Detach, OpenStdin bool

	client  *Client
	ctx     context.Context
	id      uint64
	pid     int
	pipes   []io.Closer // the command's ends of pipes, closed when it has ended
	result  chan error  // how it ended, once
	started bool
	waited  bool
}

// Command returns a Cmd to run the named program.
func (c *Client) Command(name string, arg ...string) *Cmd {
	return c.CommandContext(context.Background(), name, arg...)
}

// CommandContext is like Command; the command is killed when ctx is done, and
// Wait then returns the cause of that.
func (c *Client) CommandContext(ctx context.Context, name string, arg ...string) *Cmd {
	return &Cmd{client: c, ctx: ctx, Path: name, Args: append([]string{name}, arg...)}
}

// Run starts the command and waits for it.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Start starts the command. An error that is a *[StartError] says why the
// guest could not.
func (c *Cmd) Start() error {
	if c.started {
		return errors.New("client: exec: already started")
	}
	c.started = true
	cn, err := c.start()
	if err != nil {
		closeAll(c.pipes)
		return err
	}
	c.result = make(chan error, 1)
	if c.Detach {
		c.client.done(cn, proto.OpExec)
		return nil
	}
	go func() {
		free, err := cn.run(streams{c.Stdin, c.Stdout, c.Stderr})
		if free {
			c.client.done(cn, proto.OpExec)
		} else {
			cn.close()
		}
		closeAll(c.pipes)
		c.result <- err
	}()
	return nil
}

func (c *Cmd) start() (*conn, error) {
	if c.Detach && (c.Stdin != nil || c.Stdout != nil || c.Stderr != nil) {
		return nil, errors.New("client: exec: a detached command has no streams; attach to it")
	}
	cn, err := c.client.start(c.ctx, proto.OpExec, &proto.ExecRequest{
		Path: proto.Text(c.Path), Args: proto.Texts(c.Args), Env: proto.Texts(c.Env), ExtraEnv: proto.Texts(c.ExtraEnv),
		Dir: proto.Text(c.Dir), User: c.User, TTY: c.TTY, Timeout: c.Timeout,
		Stdin: c.Stdin != nil || c.Detach && c.OpenStdin, Detach: c.Detach,
		IdleTimeout: c.IdleTimeout,
	})
	if err != nil {
		return nil, err
	}
	var reply proto.Started
	if err := cn.reply(&reply); err != nil {
		cn.close()
		return nil, fmt.Errorf("client: exec %s: %w", c.Path, err)
	}
	c.id, c.pid = reply.ID, reply.PID
	if c.Leave && !c.Detach {
		cn.leaves()
	}
	return cn, nil
}

// ProcessID returns the number by which the agent knows the command; it stays
// valid for other clients of the same machine. It is 0 before Start.
func (c *Cmd) ProcessID() uint64 { return c.id }

// PID returns the command's process id in the guest. It is 0 before Start.
func (c *Cmd) PID() int { return c.pid }

// Wait waits until the command has ended and its output was copied. Its error
// is an *[ExitError] if the command exited with another code than 0 or was
// ended by a signal; that is [ErrTimeout] as well if its time-out was why.
func (c *Cmd) Wait() error {
	if c.result == nil || c.waited {
		return errors.New("client: exec: not started, or already waited for")
	}
	c.waited = true
	if c.Detach {
		return c.client.WaitProcess(c.ctx, c.id)
	}
	err := <-c.result
	if _, ok := err.(*ExitError); !ok && err != nil {
		return fmt.Errorf("client: exec %s: %w", c.Path, err)
	}
	return err
}

// Output runs the command and returns its standard output. Without a Stderr,
// an *[ExitError] gets the end of its standard error.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("client: exec: Stdout already set")
	}
	out := &bounded{max: MaxOutput}
	c.Stdout = out
	var tail *tailWriter
	if c.Stderr == nil {
		tail = &tailWriter{max: 32 << 10}
		c.Stderr = tail
	}
	err := c.Run()
	if e, ok := errors.AsType[*ExitError](err); ok && tail != nil {
		e.Stderr = tail.buf
	}
	return out.result(err)
}

// CombinedOutput runs the command and returns its standard output and error.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("client: exec: Stdout or Stderr already set")
	}
	out := &bounded{max: MaxOutput}
	c.Stdout, c.Stderr = out, out
	return out.result(c.Run())
}

// StdinPipe returns a pipe to the command's standard input. Closing it ends
// the input.
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	if c.started || c.Stdin != nil {
		return nil, errors.New("client: exec: started, or Stdin already set")
	}
	r, w := io.Pipe()
	c.Stdin = r
	c.pipes = append(c.pipes, r)
	return w, nil
}

// StdoutPipe returns a pipe from the command's standard output. It ends when
// the command does. Wait waits until it was read to its end, or closed.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.outputPipe(&c.Stdout) }

// StderrPipe returns a pipe from the command's standard error, see StdoutPipe.
func (c *Cmd) StderrPipe() (io.ReadCloser, error) { return c.outputPipe(&c.Stderr) }

func (c *Cmd) outputPipe(to *io.Writer) (io.ReadCloser, error) {
	if c.started || *to != nil {
		return nil, errors.New("client: exec: started, or the stream is already set")
	}
	r, w := io.Pipe()
	*to = w
	c.pipes = append(c.pipes, w)
	return r, nil
}

// Signal sends a signal to the command, see [Client.SignalProcess]. It fails with
// os.ErrProcessDone if the command has ended.
func (c *Cmd) Signal(sig os.Signal) error {
	if c.result == nil {
		return errors.New("client: exec: not started")
	}
	err := c.client.SignalProcess(c.ctx, c.id, sig)
	if errors.Is(err, ErrNoProcess) {
		err = os.ErrProcessDone // it did exist
	}
	return err
}

// Resize changes the size of the command's terminal.
func (c *Cmd) Resize(size WinSize) error {
	if c.result == nil {
		return errors.New("client: exec: not started")
	}
	return c.client.ResizeProcess(c.ctx, c.id, size)
}

// ExitError says that a command ended without success.
type ExitError struct {
	// Code is the exit code, -1 if a signal ended the command.
	Code int
	// Signal is the signal that ended the command, 0 if it exited.
	Signal syscall.Signal
	// TimedOut says that the agent killed the command for its time-out.
	TimedOut bool
	// Stderr is the end of the command's standard error, from Output only.
	Stderr []byte
	// LostOutput is how many bytes of output an attached client missed.
	LostOutput int64
}

// Error implements error.
func (e *ExitError) Error() string {
	switch {
	case e.TimedOut:
		return ErrTimeout.Error()
	case e.Signal != 0:
		return "signal: " + e.Signal.String()
	}
	return "exit status " + strconv.Itoa(e.Code)
}

// Is reports whether target is ErrTimeout and the command timed out.
func (e *ExitError) Is(target error) bool { return target == ErrTimeout && e.TimedOut }

// exitError returns nil for success.
func exitError(x proto.Exit) *ExitError {
	if x.Code == 0 && x.Signal == 0 && !x.TimedOut {
		return nil
	}
	return &ExitError{Code: x.Code, Signal: syscall.Signal(x.Signal), TimedOut: x.TimedOut}
}

func closeAll(cs []io.Closer) {
	for _, c := range cs {
		c.Close()
	}
}

// bounded keeps the first max bytes written to it. Output is a guest's, which
// may never end.
type bounded struct {
	bytes.Buffer
	max  int
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.max-b.Len())
	b.over = b.over || n < len(p)
	b.Buffer.Write(p[:n])
	return len(p), nil
}

// result returns what was kept, and an error if that is not all.
func (b *bounded) result(err error) ([]byte, error) {
	if b.over && err == nil {
		err = fmt.Errorf("client: exec: more than %d bytes of output: %w", b.max, ErrTooLarge)
	}
	return b.Bytes(), err
}

// tailWriter keeps the last max bytes written to it.
type tailWriter struct {
	buf []byte
	max int
}

func (t *tailWriter) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.max; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}
