package agent_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
)

// keptClient is a client that keeps a connection, and what it does with it.
type keptClient struct {
	*client.Client
	mu    sync.Mutex
	conns []net.Conn
	idle  map[net.Conn]bool
}

func newKeptClient(path string) *keptClient {
	k := &keptClient{idle: make(map[net.Conn]bool)}
	dial := func(ctx context.Context) (net.Conn, error) {
		nc, err := dialer(path)(ctx)
		if err == nil {
			k.mu.Lock()
			k.conns = append(k.conns, nc)
			k.mu.Unlock()
		}
		return nc, err
	}
	k.Client = client.New(dial, client.WithKeptConn(func(nc net.Conn, idle bool) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.idle[nc] = idle
	}))
	return k
}

// want checks how many connections were made so far and how many are idle.
func (k *keptClient) want(t *testing.T, what string, made, idle int) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	for _, is := range k.idle {
		if is {
			n++
		}
	}
	if len(k.conns) != made || n != idle {
		t.Errorf("%s: %d connections were made, want %d; %d are idle, want %d", what, len(k.conns), made, n, idle)
	}
}

// TestOperationsShareAConnection checks that operations which follow one another
// need one connection, however they end, and those at the same time more.
func TestOperationsShareAConnection(t *testing.T) {
	path := serveSocket(t, agent.Options{Machine: &fakeMachine{}})
	k := newKeptClient(path)
	ctx := within(t, 30*time.Second)
	id := identity(1)
	id.WallClock = time.Time{} // that of the host
	if _, err := k.Renew(ctx, id); err != nil {
		t.Fatal(err)
	}
	k.want(t, "renewal", 1, 1)
	for range 3 {
		if out, err := k.CommandContext(ctx, "echo", "hi").Output(); err != nil || string(out) != "hi\n" {
			t.Errorf("echo: %q, %v", out, err)
		}
	}
	var exit *client.ExitError
	if err := k.CommandContext(ctx, "sh", "-c", "echo lots of it >&2; exit 3").Run(); !errors.As(err, &exit) || exit.Code != 3 {
		t.Errorf("exit 3: %v", err)
	}
	if _, err := k.FS().Stat("/"); err != nil {
		t.Error(err)
	}
	bg := k.CommandContext(ctx, "sleep", "1000")
	bg.Detach = true
	if err := bg.Start(); err != nil {
		t.Error(err)
	}
	if err := bg.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	k.want(t, "one after another", 1, 1)

	long := k.CommandContext(ctx, "sh", "-c", "read x; exit 4")
	in, err := long.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := long.Start(); err != nil {
		t.Fatal(err)
	}
	k.want(t, "a command that goes on", 1, 0)
	if err := k.CommandContext(ctx, "true").Run(); err != nil {
		t.Error(err)
	}
	k.want(t, "one beside it", 2, 1)
	in.Close()
	if err := long.Wait(); !errors.As(err, &exit) || exit.Code != 4 {
		t.Errorf("exit 4: %v", err)
	}
	// It had input, more of which could be on its way.
	k.want(t, "the one that went on", 2, 1)

	// Operations that fail, and those whose end says nothing, end theirs.
	if _, err := k.FS().Stat("/no/such/file"); err == nil {
		t.Error("no error")
	}
	k.want(t, "a failure", 2, 0)
	if err := k.CommandContext(ctx, "true").Run(); err != nil {
		t.Error(err)
	}
	if _, err := k.FS().ReadDir("/"); err != nil {
		t.Error(err)
	}
	k.want(t, "a list", 4, 1)
}

// TestKeptConnectionThatDied checks that operations do without it.
func TestKeptConnectionThatDied(t *testing.T) {
	path := serveSocket(t, agent.Options{})
	k := newKeptClient(path)
	ctx := within(t, 30*time.Second)
	if err := k.CommandContext(ctx, "true").Run(); err != nil {
		t.Fatal(err)
	}
	k.conns[0].Close()
	if out, err := k.CommandContext(ctx, "echo", "hi").Output(); err != nil || string(out) != "hi\n" {
		t.Errorf("echo: %q, %v", out, err)
	}
	k.want(t, "after its death", 2, 1)
}

// TestCancelledOperationEndsItsConnection checks that an operation which a
// context ended leaves no connection for others.
func TestCancelledOperationEndsItsConnection(t *testing.T) {
	path := serveSocket(t, agent.Options{})
	k := newKeptClient(path)
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		cmd := k.CommandContext(ctx, "sh", "-c", "echo started; exec sleep 1000")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		readUntil(t, out, "started\n")
		cancel()
		if err := cmd.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("Wait: %v", err)
		}
		if out, err := k.CommandContext(within(t, 20*time.Second), "echo", "hi").Output(); err != nil || string(out) != "hi\n" {
			t.Errorf("afterwards: %q, %v", out, err)
		}
	}
}

// TestNextOperationBeforeTheEnd sends another operation while a command runs,
// which ends the command.
func TestNextOperationBeforeTheEnd(t *testing.T) {
	path := serveSocket(t, agent.Options{})
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := nc.Write(append(execHandshake("sleep", "1000"), execHandshake("true")...)); err != nil {
		t.Fatal(err)
	}
	if code := lastError(t, nc); code != "bad_request" {
		t.Errorf("error %q", code)
	}
	awaitNone(t, client.New(dialer(path)))
}
