package client

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// maxListed bounds what Processes and ReadDir return: a hostile guest could
// go on for ever.
const maxListed = 1 << 20

// Process describes a command of the agent's.
type Process struct {
	ID       uint64   // its ProcessID
	PID      int      // in the guest
	Args     []string // its command line, cut at about 1 KiB
	Started  time.Time
	Detached bool // it outlives its client
	TTY      bool
	// Exited says that the command has ended, and Exit how: nil for success.
	Exited bool
	Exit   *ExitError
}

// Processes lists the commands that run, and those in the background that
// ended not long ago, in the order they were started.
func (c *Client) Processes(ctx context.Context) ([]Process, error) {
	cn, err := c.start(ctx, proto.OpList, nil)
	if err != nil {
		return nil, err
	}
	defer cn.close()
	var out []Process
	err = cn.items(func(item []byte) error {
		var p proto.Process
		if err := decode(item, &p); err != nil {
			return err
		}
		if len(out) >= maxListed {
			return fmt.Errorf("%w: endless list", ErrProtocol)
		}
		out = append(out, process(p))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("client: processes: %w", err)
	}
	return out, nil
}

func process(p proto.Process) Process {
	out := Process{
		ID: p.ID, PID: p.PID, Args: proto.Strings(p.Args), Started: p.Started,
		Detached: p.Detached, TTY: p.TTY, Exited: p.Exit != nil,
	}
	if p.Exit != nil {
		out.Exit = exitError(*p.Exit)
	}
	return out
}

// Attachment is how [Client.Attach] connects to a command's streams.
type Attachment struct {
	// Stdin is the command's input from now on; its end is the end of the
	// command's input. Nil: the input stays as it is.
	Stdin io.Reader
	// Stdout and Stderr get the output, from as far back as the agent has
	// kept it. Nil: it is discarded.
	Stdout, Stderr io.Writer
	// Live skips what was kept.
	Live bool
	// Attached, if not nil, is called before the first output, once it is clear
	// that there is such a command.
	Attached func()
}

// Attach connects to a command in the background until it has ended, and then
// returns as [Cmd.Wait] does. When ctx is done it merely disconnects. Several
// clients may be attached at once. A client that reads too slowly does not
// stop the command: it misses output, and Attach then returns [ErrOutputLost],
// or an *[ExitError] that has LostOutput.
func (c *Client) Attach(ctx context.Context, id uint64, a Attachment) error {
	cn, err := c.start(ctx, proto.OpAttach, proto.ProcessRequest{ID: id, Stdin: a.Stdin != nil, Live: a.Live})
	if err != nil {
		return err
	}
	defer cn.close()
	if err := cn.reply(nil); err != nil {
		return fmt.Errorf("client: attach: %w", err)
	}
	if a.Attached != nil {
		a.Attached()
	}
	_, err = cn.run(streams{a.Stdin, a.Stdout, a.Stderr})
	if _, ok := err.(*ExitError); !ok && err != nil {
		return fmt.Errorf("client: attach: %w", err)
	}
	return err
}

// WaitProcess waits for a command, in the background or not, and returns as
// [Cmd.Wait] does.
func (c *Client) WaitProcess(ctx context.Context, id uint64) error {
	cn, err := c.start(ctx, proto.OpWait, proto.ProcessRequest{ID: id})
	if err != nil {
		return err
	}
	defer cn.close()
	t, payload, err := cn.next()
	if err == nil && t != proto.TypeExit {
		err = unexpected(t)
	}
	var exit proto.Exit
	if err == nil {
		err = decode(payload, &exit)
	}
	if err != nil {
		return fmt.Errorf("client: wait: %w", err)
	}
	if err := exitError(exit); err != nil {
		return err
	}
	return nil
}

// SignalProcess sends a signal to a command and what it has started in its session;
// SIGKILL ends what has left that as well. It fails
// with os.ErrProcessDone if the command has ended.
func (c *Client) SignalProcess(ctx context.Context, id uint64, sig os.Signal) error {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("client: signal: %v is no signal of Linux", sig)
	}
	return c.call(ctx, proto.OpSignal, proto.ProcessRequest{ID: id, Signal: int(s)}, nil)
}

// ResizeProcess changes the size of a command's terminal.
func (c *Client) ResizeProcess(ctx context.Context, id uint64, size WinSize) error {
	return c.call(ctx, proto.OpResize, proto.ProcessRequest{ID: id, Size: size}, nil)
}
