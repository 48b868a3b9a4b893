package guest

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
)

// start runs an agent as an ordinary process on a Unix socket, and returns its
// inside. The agent must have stopped when the test ends.
func start(t testing.TB, o agent.Options) *Guest {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Serve(ctx, l, o) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the agent did not stop")
		}
	})
	return &Guest{Agent: client.New(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}, client.WithKeptConn(nil))} // as machines have it
}

// answering returns the inside of a machine that answers with these bytes and
// goes.
func answering(answer []byte) *Guest {
	return &Guest{Agent: client.New(func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			buf := make([]byte, 1<<16)
			if _, err := theirs.Read(buf); err == nil {
				_, _ = theirs.Write(answer)
			}
			theirs.Close()
		}()
		return ours, nil
	})}
}

// within returns a context that fails a test which hangs.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, errors.New("the test hangs"))
	t.Cleanup(cancel)
	return ctx
}

// want fails the test unless err is one of the API with this code.
func want(t testing.TB, err error, code api.Code) *api.Error {
	t.Helper()
	e, ok := err.(*api.Error)
	if !ok {
		t.Fatalf("%v (%T), want one that is %s", err, err, code)
	}
	if e.Code != code {
		t.Fatalf("%s: %v, want %s", e.Code, err, code)
	}
	return e
}

func sh(script string) api.Command { return api.Command{Argv: []string{"sh", "-c", script}} }

// background starts a script in the background.
func background(t testing.TB, g *Guest, r api.StartRequest) uint64 {
	t.Helper()
	p, err := g.Start(within(t, 30*time.Second), r)
	if err != nil {
		t.Fatal(err)
	}
	if p.ID == 0 || p.PID == 0 || !p.Background || p.Exit != nil || p.TTY != (r.TTY != nil) {
		t.Errorf("started %+v", p)
	}
	return p.ID
}
