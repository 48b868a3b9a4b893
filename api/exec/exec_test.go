package exec_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/client"
	"github.com/forkvm/forkvm/api/exec"
	"github.com/forkvm/forkvm/api/internal/apitest"
	"github.com/forkvm/forkvm/api/server"
)

var access = api.Access{ID: api.NewID(api.SandboxPrefix, apitest.Now), Token: apitest.Token}

// shell runs made-up commands.
func shell(ctx context.Context, r api.StartRequest, s api.Streams, killed <-chan struct{}) (*api.Exit, error) {
	if r.Argv[0] == "missing" {
		return nil, api.Errorf(api.SpawnFailed, "no such file")
	}
	s.Started(apitest.Process(5, r.Argv...))
	switch r.Argv[0] {
	case "cat":
		_, err := io.Copy(s.Stdout, s.Stdin)
		return &api.Exit{}, err
	case "fail":
		io.WriteString(s.Stdout, "out")
		io.WriteString(s.Stderr, "err")
		return &api.Exit{Code: 3}, nil
	case "sleep":
		select {
		case <-killed:
			return &api.Exit{Code: -1, Signal: "SIGKILL"}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "yes":
		for range 1000 {
			if _, err := fmt.Fprintln(s.Stdout, strings.Repeat("y", 1000)); err != nil {
				return nil, err
			}
		}
	}
	return &api.Exit{}, nil
}

// each runs a test over the service itself, and over HTTP.
func each(t *testing.T, f func(*testing.T, api.Service)) {
	fake := new(apitest.Fake)
	killed := make(chan struct{}, 1)
	fake.Called = func(verb string, args ...any) {
		if verb == "Control" && args[1] == (api.Control{Signal: "SIGKILL"}) {
			killed <- struct{}{}
		}
	}
	fake.OnRun = func(ctx context.Context, r api.StartRequest, s api.Streams) (*api.Exit, error) {
		if s.Stdout == nil {
			s.Stdout = io.Discard
		}
		return shell(ctx, r, s, killed)
	}
	t.Run("inside", func(t *testing.T) { f(t, fake) })
	s, _ := apitest.Serve(t, server.New(fake.Config()))
	c, err := client.New(s.URL, client.Options{Key: apitest.Key})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdle()
	t.Run("http", func(t *testing.T) { f(t, c) })
}

func TestOutput(t *testing.T) {
	each(t, func(t *testing.T, s api.Service) {
		cat := exec.Command(s, access, "cat")
		cat.Stdin = strings.NewReader("hello")
		if out, err := cat.Output(); string(out) != "hello" || err != nil || cat.Process.ID != 5 || cat.Exit.Code != 0 {
			t.Errorf("%q, %v, %+v", out, err, cat)
		}
		out, err := exec.Command(s, access, "fail").Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Code != 3 || string(out) != "out" || string(exit.Stderr) != "err" || err.Error() != "exit status 3" {
			t.Errorf("%q, %v", out, err)
		}
		if out, err := exec.Command(s, access, "fail").CombinedOutput(); string(out) != "outerr" || !errors.As(err, &exit) {
			t.Errorf("%q, %v", out, err)
		}
		missing := exec.Command(s, access, "missing")
		if err := missing.Start(); !errors.Is(err, api.SpawnFailed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestPipes(t *testing.T) {
	each(t, func(t *testing.T, s api.Service) {
		cat := exec.Command(s, access, "cat")
		in, err := cat.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cat.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cat.Start(); err != nil {
			t.Fatal(err)
		}
		io.WriteString(in, "one")
		in.Close()
		if got, err := io.ReadAll(out); string(got) != "one" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		if err := cat.Wait(); err != nil {
			t.Error(err)
		}
		if cat.Wait() != exec.ErrWaited || cat.Start() != exec.ErrStarted || exec.Command(s, access, "cat").Wait() != exec.ErrNotStarted {
			t.Error("a Cmd can be used twice, or before it starts")
		}
		yes := exec.Command(s, access, "yes")
		closed, err := yes.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		closed.Close()
		if err := yes.Run(); err != nil {
			t.Errorf("nobody reads: %v", err)
		}
	})
}

// TestContextsKill ends the context of a command that runs.
func TestContextsKill(t *testing.T) {
	each(t, func(t *testing.T, s api.Service) {
		ctx, cancel := context.WithCancel(t.Context())
		sleep := exec.CommandContext(ctx, s, access, "sleep")
		if err := sleep.Start(); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := sleep.Wait(); !errors.Is(err, context.Canceled) || sleep.Exit == nil || sleep.Exit.Signal != "SIGKILL" {
			t.Errorf("%v, %v", err, sleep.Exit)
		}
		if err := exec.CommandContext(ctx, s, access, "cat").Run(); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		if err := exec.CommandContext(ctx, s, access, "true").Run(); err != nil {
			t.Error(err)
		}
	})
}
