package agent_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
)

// TestResetKeepsCommands checks that the commands of a machine that was forked
// go on in the fork, where their connections break, and can be attached to.
func TestResetKeepsCommands(t *testing.T) {
	for range 3 {
		dir := t.TempDir()
		l, err := net.Listen("unix", filepath.Join(dir, "agent"))
		if err != nil {
			t.Fatal(err)
		}
		br := &breaking{Listener: l}
		serveOn(t, br, agent.Options{KeepOnReset: true})
		c := client.New(dialer(filepath.Join(dir, "agent")))
		ctx := within(t, 20*time.Second)
		fifo := filepath.Join(dir, "fifo")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := c.CommandContext(ctx, "sh", "-c", "echo before; read x <"+fifo+"; echo after $x; exit 9")
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		readUntil(t, out, "before\n")
		br.reset(syscall.ECONNRESET)
		if _, err := io.ReadAll(out); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); !errors.Is(err, client.ErrDisconnected) {
			t.Errorf("Wait: %v, want ErrDisconnected", err)
		}
		if err := os.WriteFile(fifo, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
		var rest bytes.Buffer
		attach(t, c, cmd.ProcessID(), &rest)
		if rest.String() != "after go\n" {
			t.Errorf("output after the reset %q", &rest)
		}
	}
}

// attach waits until the agent has taken the process to the background, which
// it does when it notices the reset, and attaches to it.
func attach(t *testing.T, c *client.Client, id uint64, out io.Writer) {
	t.Helper()
	ctx := within(t, 20*time.Second)
	for {
		err := c.Attach(ctx, id, client.Attachment{Stdout: out})
		var exit *client.ExitError
		switch {
		case errors.Is(err, client.ErrState):
			continue // not noticed yet
		case !errors.As(err, &exit) || exit.Code != 9:
			t.Errorf("Attach: %v, want exit status 9", err)
		}
		return
	}
}

// TestEndKillsCommands is the counterpart: a client that closes its connection
// takes its commands along.
func TestEndKillsCommands(t *testing.T) {
	path := serveSocket(t, agent.Options{KeepOnReset: true})
	var conn net.Conn
	c := client.New(func(ctx context.Context) (net.Conn, error) {
		nc, err := dialer(path)(ctx)
		conn = nc
		return nc, err
	})
	cmd := c.CommandContext(within(t, 20*time.Second), "sh", "-c", "echo $$; exec sleep 1000")
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 32)
	n, err := out.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	awaitGone(t, strings.TrimSpace(string(buf[:n])))
	if err := cmd.Wait(); !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("Wait: %v", err)
	}
}
