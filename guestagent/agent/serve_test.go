package agent_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
)

// serve starts an agent as an ordinary process on a Unix socket and returns a
// client of it. The agent is stopped, and must have stopped, before the test
// ends.
func serve(t testing.TB, o agent.Options) *client.Client {
	t.Helper()
	return client.New(dialer(serveSocket(t, o)))
}

func serveSocket(t testing.TB, o agent.Options) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, o)
	return path
}

func serveOn(t testing.TB, l net.Listener, o agent.Options) {
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
			t.Error("Serve did not return")
		}
	})
}

func dialer(path string) client.Dialer {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}

// pipes is a listener of connections that buffer nothing: whatever relies on a
// buffer blocks on them.
type pipes struct {
	conns  chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func newPipes() *pipes {
	ctx, cancel := context.WithCancel(context.Background())
	return &pipes{make(chan net.Conn), ctx, cancel}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- b:
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

// servePipes is serve on connections that buffer nothing.
func servePipes(t testing.TB, o agent.Options) *client.Client {
	t.Helper()
	t.TempDir() // so that the agent is gone before the test's directories are
	p := newPipes()
	serveOn(t, p, o)
	return client.New(p.dial)
}

// within returns a context that fails a test which hangs.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// both runs a test over a socket and over connections without buffers.
func both(t *testing.T, f func(t *testing.T, c *client.Client)) {
	t.Run("unix", func(t *testing.T) { f(t, serve(t, agent.Options{})) })
	t.Run("pipe", func(t *testing.T) { f(t, servePipes(t, agent.Options{})) })
}
