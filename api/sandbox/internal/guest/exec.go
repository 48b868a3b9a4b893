package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/client"
)

// killGrace is how much later than the guest the host gives up on a command
// that has a time-out: a guest which hangs does not keep it.
const killGrace = 10 * time.Second

// Exec runs a command to its end, and kills it if ctx ends before. An exit code
// other than 0 is no error. What exceeds MaxOutputBytes is read and dropped. An
// error that is [api.ExecTimeout] has the last 4 KiB of each stream in its
// details.
func (g *Guest) Exec(ctx context.Context, r api.ExecRequest) (*api.ExecResult, error) {
	if err := CheckExec(r); err != nil {
		return nil, err
	}
	if t := seconds(r.TimeoutSeconds, api.DefaultTimeout); t > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, t+killGrace, timedOut())
		defer stop()
	}
	cmd, err := g.command(ctx, r.Command)
	if err != nil {
		return nil, err
	}
	limit := int(r.MaxOutputBytes)
	if limit == 0 {
		limit = api.DefaultOutput
	}
	stdout, stderr := &capture{max: limit}, &capture{max: limit}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if len(r.Stdin) > 0 {
		cmd.Stdin = bytes.NewReader(r.Stdin)
	}
	begun := time.Now()
	exit, err := ended(ctx, cmd.Run())
	if e, ok := errors.AsType[*api.Error](err); ok && e.Code == api.ExecTimeout {
		e.Details = map[string]any{"stdout": stdout.end(), "stderr": stderr.end()}
	}
	if err != nil {
		return nil, err
	}
	return &api.ExecResult{
		Exit: *exit, Stdout: stdout.head, Stderr: stderr.head, Truncated: stdout.more || stderr.more,
		DurationSeconds: time.Since(begun).Seconds(),
	}, nil
}

func timedOut() *api.Error { return api.Errorf(api.ExecTimeout, "%w", client.ErrTimeout) }

// command makes a command of a request that was checked.
func (g *Guest) command(ctx context.Context, c api.Command) (*client.Cmd, error) {
	env := slices.Clone(g.Env)
	for _, k := range slices.Sorted(maps.Keys(c.EnvVars)) {
		env = append(env, k+"="+c.EnvVars[k])
	}
	size := commandSize(c)
	for _, kv := range g.Env {
		size += len(kv) + perString
	}
	if size > maxCommand {
		return nil, badField("argv", "more than %d bytes, with env_vars and the environment of the sandbox", maxCommand)
	}
	cmd := g.Agent.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.ExtraEnv, cmd.Dir, cmd.User = env, c.Cwd, c.User
	cmd.Timeout = seconds(c.TimeoutSeconds, api.DefaultTimeout)
	if cmd.Dir == "" {
		cmd.Dir = g.Dir
	}
	if cmd.User == "" {
		cmd.User = g.User
	}
	return cmd, nil
}

// ended says how a command ended, as the client tells by an error.
func ended(ctx context.Context, err error) (*api.Exit, error) {
	if err == nil {
		return &api.Exit{}, nil
	}
	e, ok := errors.AsType[*client.ExitError](err)
	switch {
	case !ok && errors.Is(err, client.ErrOutputLost) && ctx.Err() == nil:
		return nil, outputLost(err, &api.Exit{})
	case !ok:
		return nil, fail(ctx, err)
	case e.TimedOut:
		return nil, timedOut()
	case e.LostOutput > 0:
		return nil, outputLost(fmt.Errorf("%w: %d bytes", client.ErrOutputLost, e.LostOutput), exitOf(e))
	}
	return exitOf(e), nil
}

// outputLost is the error for who has missed output of a command that has ended.
func outputLost(err error, exit *api.Exit) error {
	e := api.Errorf(api.Conflict, "%w", err)
	e.Details = map[string]any{"exit": exit}
	return e
}

func exitOf(e *client.ExitError) *api.Exit {
	x := &api.Exit{Code: e.Code}
	if e.Signal != 0 {
		x.Signal = signalName(e.Signal)
	}
	return x
}

// signalName returns such as SIGKILL; signals without a name have their number.
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return strconv.Itoa(int(s))
}
