package guest

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/client"
)

// Run starts a command with its streams connected, and returns when it has
// ended. If ctx ends before, or one of the streams fails, the command goes on in
// the background, with its input open: Attach reaches it. Controls that come
// too early, too late or that make no sense are dropped.
//
// A Write that blocks is waited for. A stdin whose Read blocks is not: it may
// still be in that Read when Run has returned, and is not read again.
func (g *Guest) Run(ctx context.Context, r api.StartRequest, s api.Streams) (*api.Exit, error) {
	if err := CheckStart(r); err != nil {
		return nil, err
	}
	c := connect(ctx, s)
	defer c.close()
	cmd, err := g.command(c.ctx, r.Command)
	if err != nil {
		return nil, err
	}
	cmd.TTY = winSize(r.TTY)
	cmd.IdleTimeout = seconds(r.IdleTimeoutSeconds, 0)
	cmd.Leave = true
	if r.Stdin {
		cmd.Stdin = c.input()
	}
	cmd.Stdout, cmd.Stderr = c.output(s.Stdout), c.output(s.Stderr)
	if err := cmd.Start(); err != nil {
		return nil, fail(c.ctx, err)
	}
	c.started(g, started(cmd, r))
	return ended(c.ctx, cmd.Wait())
}

// Start starts a command in the background. With Stdin its input stays open for
// those who attach. Without it has none, unless it has a terminal.
func (g *Guest) Start(ctx context.Context, r api.StartRequest) (*api.Process, error) {
	if err := CheckStart(r); err != nil {
		return nil, err
	}
	cmd, err := g.command(ctx, r.Command)
	if err != nil {
		return nil, err
	}
	cmd.TTY = winSize(r.TTY)
	cmd.IdleTimeout = seconds(r.IdleTimeoutSeconds, 0)
	cmd.Detach, cmd.OpenStdin = true, r.Stdin
	if err := cmd.Start(); err != nil {
		return nil, fail(ctx, err)
	}
	p := started(cmd, r)
	p.Background = true
	return &p, nil
}

func started(cmd *client.Cmd, r api.StartRequest) api.Process {
	return api.Process{
		ID: cmd.ProcessID(), PID: cmd.PID(), Argv: r.Argv, StartedAt: time.Now().UTC(), TTY: r.TTY != nil,
	}
}

func winSize(w *api.WinSize) *client.WinSize {
	if w == nil {
		return nil
	}
	return &client.WinSize{Rows: w.Rows, Cols: w.Cols}
}

// connection is what connects the streams of a caller to a command. It ends
// with its context, which a stream that fails ends too.
type connection struct {
	ctx     context.Context
	end     context.CancelCauseFunc
	streams api.Streams
	open    chan struct{} // closed when there may be output
	done    chan struct{} // closed when no input is taken any more
	control sync.WaitGroup
}

func connect(ctx context.Context, s api.Streams) *connection {
	c := &connection{streams: s, open: make(chan struct{}), done: make(chan struct{})}
	c.ctx, c.end = context.WithCancelCause(ctx)
	return c
}

// input returns the caller's input, nil if it has none.
func (c *connection) input() io.Reader {
	if c.streams.Stdin == nil {
		return nil
	}
	return &stdin{r: c.streams.Stdin, done: c.done, failed: c.end}
}

// output returns where output for a writer of the caller's goes: nil if it is to
// be discarded.
func (c *connection) output(w io.Writer) io.Writer {
	if w == nil {
		return nil
	}
	return &sink{Writer: w, open: c.open, failed: c.end}
}

// started tells the caller of a command, lets its output come and its controls
// go.
func (c *connection) started(g *Guest, p api.Process) {
	if c.streams.Started != nil {
		c.streams.Started(p)
	}
	close(c.open)
	if c.streams.Control == nil {
		return
	}
	c.control.Go(func() {
		for {
			select {
			case ctl, ok := <-c.streams.Control:
				if !ok {
					return
				}
				_ = g.Control(c.ctx, p.ID, ctl)
			case <-c.ctx.Done():
				return
			}
		}
	})
}

// close waits until nothing of the caller's is used any more, but for a Read of
// its input.
func (c *connection) close() {
	close(c.done)
	c.end(nil)
	c.control.Wait()
}
