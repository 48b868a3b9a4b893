package guest

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/client"
)

// Processes lists the commands that run, and those in the background that ended
// not long ago.
func (g *Guest) Processes(ctx context.Context) (*api.ProcessList, error) {
	ps, err := g.Agent.Processes(ctx)
	if err != nil {
		return nil, fail(ctx, err)
	}
	list := &api.ProcessList{Processes: make([]api.Process, len(ps))}
	for i, p := range ps {
		list.Processes[i] = process(p)
	}
	return list, nil
}

func process(p client.Process) api.Process {
	out := api.Process{
		ID: p.ID, PID: p.PID, Argv: p.Args, StartedAt: p.Started.UTC(), TTY: p.TTY, Background: p.Detached,
	}
	if p.Exited {
		out.Exit = &api.Exit{}
		if p.Exit != nil {
			out.Exit = exitOf(p.Exit)
		}
	}
	return out
}

// Attach connects to a command in the background, and returns when it has
// ended. Output comes from as far back as it was kept, unless Live is set. If ctx
// ends before, or a stream fails, the command goes on. Who reads so slowly that
// output is lost is told so at the end: an error that is [api.Conflict] and
// [client.ErrOutputLost].
func (g *Guest) Attach(ctx context.Context, id uint64, s api.Streams) (*api.Exit, error) {
	c := connect(ctx, s)
	defer c.close()
	p := api.Process{ID: id}
	if s.Started != nil {
		var err error
		if p, err = g.process(c.ctx, id); err != nil {
			return nil, err
		}
	}
	a := client.Attachment{
		Stdin: c.input(), Stdout: c.output(s.Stdout), Stderr: c.output(s.Stderr), Live: s.Live,
		Attached: func() { c.started(g, p) },
	}
	return ended(c.ctx, g.Agent.Attach(c.ctx, id, a))
}

func (g *Guest) process(ctx context.Context, id uint64) (api.Process, error) {
	list, err := g.Processes(ctx)
	if err != nil {
		return api.Process{}, err
	}
	for _, p := range list.Processes {
		if p.ID == id {
			return p, nil
		}
	}
	return api.Process{}, fail(ctx, client.ErrNoProcess)
}

// WaitProcess returns when a command has ended. If a time-out ended it, that is
// an error that is [api.ExecTimeout].
func (g *Guest) WaitProcess(ctx context.Context, id uint64) (*api.Exit, error) {
	return ended(ctx, g.Agent.WaitProcess(ctx, id))
}

// Control signals a command with all it has started in its session, or resizes
// its terminal. SIGKILL ends what has left the session as well.
func (g *Guest) Control(ctx context.Context, id uint64, c api.Control) error {
	if err := CheckControl(c); err != nil {
		return err
	}
	if c.Resize != nil {
		return fail(ctx, g.Agent.ResizeProcess(ctx, id, *winSize(c.Resize)))
	}
	sig, _ := parseSignal(c.Signal)
	return fail(ctx, g.Agent.SignalProcess(ctx, id, sig))
}

// CheckControl tells what is wrong with a request of [Guest.Control].
func CheckControl(c api.Control) error {
	if (c.Signal == "") == (c.Resize == nil) {
		return badField("signal", "one of signal and resize is to be given")
	}
	if c.Resize != nil {
		return nil
	}
	if _, err := parseSignal(c.Signal); err != nil {
		return badField("signal", "%w", err)
	}
	return nil
}

// The first signal without a name, and the last one.
const (
	firstRealTime = 32
	lastSignal    = 64
)

var errSignal = errors.New("no signal, which is such as SIGTERM, TERM or 15")

// parseSignal reads a signal's name, with or without SIG, or its number.
func parseSignal(s string) (syscall.Signal, error) {
	if n, err := strconv.ParseUint(s, 10, 8); err == nil {
		if n < 1 || n > lastSignal || s[0] == '0' {
			return 0, errSignal
		}
		return syscall.Signal(n), nil
	}
	name := "SIG" + strings.TrimPrefix(s, "SIG")
	sig := unix.SignalNum(name)
	if sig < 1 || sig >= firstRealTime {
		return 0, errSignal
	}
	return sig, nil
}
