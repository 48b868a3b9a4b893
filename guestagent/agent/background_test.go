package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
)

// spawn starts a command in the background.
func spawn(t *testing.T, c *client.Client, mod func(*client.Cmd), script string) uint64 {
	t.Helper()
	cmd := c.CommandContext(within(t, 30*time.Second), "sh", "-c", script)
	cmd.Detach = true
	if mod != nil {
		mod(cmd)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd.ProcessID()
}

func TestBackgroundListWaitAttach(t *testing.T) {
	both(t, func(t *testing.T, c *client.Client) {
		ctx := within(t, 30*time.Second)
		id := spawn(t, c, func(c *client.Cmd) { c.OpenStdin = true }, "echo up; echo err >&2; read x; echo got $x; exit 4")
		ps, err := c.Processes(ctx)
		if err != nil || len(ps) != 1 || ps[0].ID != id || !ps[0].Detached || ps[0].Exited || ps[0].Args[0] != "sh" {
			t.Fatalf("Processes = %+v, %v", ps, err)
		}
		// One client watches from the start, one waits, a third gives the input.
		var wg sync.WaitGroup
		var out, errOut bytes.Buffer
		var watchErr, waitErr error
		wg.Go(func() { watchErr = c.Attach(ctx, id, client.Attachment{Stdout: &out, Stderr: &errOut}) })
		wg.Go(func() { waitErr = c.WaitProcess(ctx, id) })
		inputErr := c.Attach(ctx, id, client.Attachment{Stdin: strings.NewReader("in\n")})
		wg.Wait()
		for i, err := range []error{watchErr, waitErr, inputErr} {
			var exit *client.ExitError
			if !errors.As(err, &exit) || exit.Code != 4 {
				t.Errorf("client %d: %v, want exit status 4", i, err)
			}
		}
		if out.String() != "up\ngot in\n" || errOut.String() != "err\n" {
			t.Errorf("watched %q and %q", &out, &errOut)
		}
		// It stays listed, and its output can still be had.
		ps, err = c.Processes(ctx)
		if err != nil || len(ps) != 1 || !ps[0].Exited || ps[0].Exit.Code != 4 {
			t.Errorf("Processes at the end = %+v, %v", ps, err)
		}
		out.Reset()
		if err := c.Attach(ctx, id, client.Attachment{Stdout: &out}); err == nil || out.String() != "up\ngot in\n" {
			t.Errorf("Attach at the end: %q, %v", &out, err)
		}
		out.Reset()
		if err := c.Attach(ctx, id, client.Attachment{Stdout: &out, Live: true}); err == nil || out.Len() != 0 {
			t.Errorf("live Attach at the end: %q, %v", &out, err)
		}
	})
}

func TestBackgroundOutlivesClients(t *testing.T) {
	c := serve(t, agent.Options{})
	id := spawn(t, c, nil, "echo up; exec sleep 1000")
	ctx, cancel := context.WithCancel(within(t, 20*time.Second))
	out := &firstWrite{seen: make(chan struct{})}
	attached := make(chan error, 1)
	go func() { attached <- c.Attach(ctx, id, client.Attachment{Stdout: out}) }()
	<-out.seen
	cancel()
	if err := <-attached; !errors.Is(err, context.Canceled) {
		t.Errorf("Attach: %v", err)
	}
	ctx = within(t, 20*time.Second)
	if ps, err := c.Processes(ctx); err != nil || len(ps) != 1 || ps[0].Exited {
		t.Fatalf("Processes = %+v, %v", ps, err)
	}
	if err := c.SignalProcess(ctx, id, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var exit *client.ExitError
	if err := c.WaitProcess(ctx, id); !errors.As(err, &exit) || exit.Signal != syscall.SIGKILL {
		t.Errorf("WaitProcess: %v", err)
	}
	if err := c.SignalProcess(ctx, id, syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
}

// firstWrite tells when something was first written to it.
type firstWrite struct {
	once sync.Once
	seen chan struct{}
}

func (w *firstWrite) Write(b []byte) (int, error) {
	w.once.Do(func() { close(w.seen) })
	return len(b), nil
}

func TestBackgroundKeepsLastOutput(t *testing.T) {
	c := serve(t, agent.Options{KeepOutput: 1000})
	id := spawn(t, c, nil, "seq 1 10000")
	ctx := within(t, 20*time.Second)
	if err := c.WaitProcess(ctx, id); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := c.Attach(ctx, id, client.Attachment{Stdout: &out})
	if !errors.Is(err, client.ErrOutputLost) {
		t.Errorf("Attach: %v, want ErrOutputLost", err)
	}
	if out.Len() != 1000 || !strings.HasSuffix(out.String(), "\n9999\n10000\n") {
		t.Errorf("kept %d bytes, ending in %q", out.Len(), out.String()[max(0, out.Len()-20):])
	}
}

func TestBackgroundTimeout(t *testing.T) {
	c := serve(t, agent.Options{})
	id := spawn(t, c, func(c *client.Cmd) { c.Timeout = 50 * time.Millisecond }, "sleep 1000")
	if err := c.WaitProcess(within(t, 20*time.Second), id); !errors.Is(err, client.ErrTimeout) {
		t.Errorf("WaitProcess: %v, want ErrTimeout", err)
	}
}

func TestBackgroundTTY(t *testing.T) {
	c := serve(t, agent.Options{})
	ctx := within(t, 20*time.Second)
	id := spawn(t, c, func(c *client.Cmd) { c.TTY = &client.WinSize{Rows: 10, Cols: 20} }, "stty -echo; echo ready; read x; stty size; echo $x")
	var out bytes.Buffer
	ready := &firstWrite{seen: make(chan struct{})}
	in, feed := io.Pipe()
	attached := make(chan error, 1)
	go func() {
		attached <- c.Attach(ctx, id, client.Attachment{Stdin: in, Stdout: io.MultiWriter(&out, ready)})
	}()
	<-ready.seen
	if err := c.ResizeProcess(ctx, id, client.WinSize{Rows: 30, Cols: 40}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(feed, "typed")
	if err := <-attached; err != nil {
		t.Errorf("Attach: %v", err)
	}
	if want := "ready\r\n30 40\r\ntyped\r\n"; out.String() != want {
		t.Errorf("output %q, want %q", &out, want)
	}
}

func TestProcessErrors(t *testing.T) {
	c := serve(t, agent.Options{})
	ctx := within(t, 20*time.Second)
	if err := c.WaitProcess(ctx, 99); !errors.Is(err, client.ErrNoProcess) {
		t.Errorf("wait for nothing: %v", err)
	}
	id := spawn(t, c, nil, "exec sleep 1000")
	if err := c.ResizeProcess(ctx, id, client.WinSize{}); !errors.Is(err, client.ErrState) {
		t.Errorf("resize without a terminal: %v", err)
	}
	if err := c.Attach(ctx, id, client.Attachment{Stdin: strings.NewReader("x")}); !errors.Is(err, client.ErrState) {
		t.Errorf("input that is not open: %v", err)
	}
	fore := c.CommandContext(ctx, "sleep", "1000")
	if err := fore.Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.Attach(ctx, fore.ProcessID(), client.Attachment{}); !errors.Is(err, client.ErrState) {
		t.Errorf("attach to a foreground command: %v", err)
	}
	if err := fore.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := fore.Wait(); err == nil {
		t.Error("killed command succeeded")
	}
}

func TestBackgroundFinishedAreForgotten(t *testing.T) {
	c := serve(t, agent.Options{})
	ctx := within(t, 30*time.Second)
	var first uint64
	for i := range 40 {
		id := spawn(t, c, nil, "true")
		if i == 0 {
			first = id
		}
		if err := c.WaitProcess(ctx, id); err != nil && !errors.Is(err, client.ErrNoProcess) {
			t.Fatal(err)
		}
	}
	ps, err := c.Processes(ctx)
	if err != nil || len(ps) > 33 {
		t.Errorf("%d processes listed, %v", len(ps), err)
	}
	if err := c.WaitProcess(ctx, first); !errors.Is(err, client.ErrNoProcess) {
		t.Errorf("the first is still known: %v", err)
	}
}
