package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/guestagent/proto"
)

// TestLeave checks that a command whose client leaves goes on, that its output
// is divided between that client and the next without a gap, and that its input
// is still open.
func TestLeave(t *testing.T) {
	both(t, func(t *testing.T, c *client.Client) {
		ctx, cancel := context.WithCancelCause(within(t, 30*time.Second))
		why := errors.New("enough")
		cmd := c.CommandContext(ctx, "sh", "-c", "seq 1 20000; echo ready >&2; read x; echo got $x; exit 9")
		cmd.Leave = true
		in, _ := io.Pipe()
		cmd.Stdin = in
		var first, rest bytes.Buffer
		cmd.Stdout = &after{w: &first, n: 1000, do: func() { cancel(why) }}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); !errors.Is(err, why) {
			t.Fatalf("Wait: %v, want %v", err, why)
		}
		err := c.Attach(within(t, 30*time.Second), cmd.ProcessID(), client.Attachment{Stdin: strings.NewReader("in\n"), Stdout: &rest})
		var exit *client.ExitError
		if !errors.As(err, &exit) || exit.Code != 9 {
			t.Errorf("Attach: %v, want exit status 9", err)
		}
		var want bytes.Buffer
		for i := range 20000 {
			want.WriteString(strconv.Itoa(i+1) + "\n")
		}
		want.WriteString("got in\n")
		if got := first.String() + rest.String(); got != want.String() {
			t.Errorf("%d bytes, then %d: not the %d that were printed", first.Len(), rest.Len(), want.Len())
		}
	})
}

// after writes to w, and calls do once n bytes were written.
type after struct {
	w  io.Writer
	n  int
	do func()
}

func (a *after) Write(b []byte) (int, error) {
	if a.n > 0 {
		if a.n -= len(b); a.n <= 0 {
			a.do()
		}
	}
	return a.w.Write(b)
}

// TestLeaveAtTheEnd has clients leave when their commands end: each is told
// either how, or can still find it.
func TestLeaveAtTheEnd(t *testing.T) {
	c := serve(t, agent.Options{})
	for i := range 100 {
		ctx, cancel := context.WithCancel(within(t, 30*time.Second))
		cmd := c.CommandContext(ctx, "sh", "-c", "echo x; exit 9")
		cmd.Leave = true
		var out, rest bytes.Buffer
		cmd.Stdout = &after{w: &out, n: 1, do: cancel}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		if errors.Is(err, context.Canceled) {
			err = c.Attach(within(t, 30*time.Second), cmd.ProcessID(), client.Attachment{Stdout: &rest})
		}
		cancel()
		var exit *client.ExitError
		if !errors.As(err, &exit) || exit.Code != 9 || out.String()+rest.String() != "x\n" {
			t.Fatalf("%d: %q and %q, %v", i, &out, &rest, err)
		}
	}
}

// TestLeaveByBrokenInput checks that input which fails, as that of a client's
// client does, is not the end of the input.
func TestLeaveByBrokenInput(t *testing.T) {
	c := serve(t, agent.Options{})
	broken := errors.New("broken")
	cmd := c.CommandContext(within(t, 30*time.Second), "cat")
	cmd.Leave = true
	cmd.Stdin = io.MultiReader(strings.NewReader("a"), failing{broken})
	if err := cmd.Run(); !errors.Is(err, broken) {
		t.Fatalf("Run: %v", err)
	}
	var out bytes.Buffer
	err := c.Attach(within(t, 30*time.Second), cmd.ProcessID(), client.Attachment{Stdin: strings.NewReader("b"), Stdout: &out})
	if err != nil || !strings.HasSuffix(out.String(), "b") {
		t.Errorf("Attach: %q, %v", &out, err)
	}
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// TestLeaveStuckClient checks that a client which leaves, and takes no output,
// is not waited for for ever, and loses its command nothing.
func TestLeaveStuckClient(t *testing.T) {
	path := serveSocket(t, agent.Options{})
	nc, err := dialer(path)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	req, _ := proto.Encode(proto.ExecRequest{Path: "sh", Args: []proto.Text{"sh", "-c", "head -c 3000000 /dev/zero; echo end"}})
	if _, err := nc.Write(append(rawHandshake(proto.OpExec, string(req)), frame(proto.TypeLeave, "")...)); err != nil {
		t.Fatal(err)
	}
	c := client.New(dialer(path))
	ctx := within(t, 30*time.Second)
	var id uint64
	for id == 0 { // until it is in the background, which no event tells others
		ps, err := c.Processes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(ps) == 1 && ps[0].Detached {
			id = ps[0].ID
		}
	}
	nc.Close()
	var out bytes.Buffer
	if err := c.Attach(ctx, id, client.Attachment{Stdout: &out}); err != nil && !errors.Is(err, client.ErrOutputLost) {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), "\x00end\n") {
		t.Errorf("%d bytes, without the end", out.Len())
	}
}

// TestLeaveOldAgent checks what becomes of a command of an agent that knows of
// no Leave: it ends, as it does when its client goes.
func TestLeaveOldAgent(t *testing.T) {
	ours, theirs := net.Pipe()
	c := client.New(func(context.Context) (net.Conn, error) { return ours, nil })
	ctx, cancel := context.WithCancel(within(t, 30*time.Second))
	go func() {
		r, w := proto.NewReader(theirs), proto.NewWriter(theirs)
		_, _, _ = r.Next()
		_ = w.WriteValue(proto.TypeReply, proto.Started{ID: 1})
		cancel()
		typ, _, _ := r.Next()
		_ = w.WriteValue(proto.TypeError, &proto.Error{Code: proto.CodeBadRequest, Message: fmt.Sprintf("unexpected %v", typ)})
		theirs.Close()
	}()
	cmd := c.CommandContext(ctx, "x")
	cmd.Leave = true
	if err := cmd.Run(); err == nil {
		t.Error("it went well")
	}
}

// TestLeaveOnlyOwn checks that leaving is for who started a command.
func TestLeaveOnlyOwn(t *testing.T) {
	path := serveSocket(t, agent.Options{})
	c := client.New(dialer(path))
	id := spawn(t, c, nil, "exec sleep 1000")
	for _, op := range []proto.Op{proto.OpAttach, proto.OpWait} {
		nc, err := dialer(path)(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = nc.Write(append(rawHandshake(op, fmt.Sprintf(`{"id":%d}`, id)), frame(proto.TypeLeave, "")...))
		r := proto.NewReader(nc)
		typ, _, err := r.Next()
		for err == nil && typ == proto.TypeReply {
			typ, _, err = r.Next()
		}
		if err == nil && typ != proto.TypeError {
			t.Errorf("%s: a %v frame", op, typ)
		}
		nc.Close()
	}
}

// TestIdleTimeout checks that a command may print for longer than its idle
// time-out, but not print nothing for so long.
func TestIdleTimeout(t *testing.T) {
	c := serve(t, agent.Options{})
	// It prints without a pause for three times as long, and then nothing.
	const idle = 800 * time.Millisecond
	cmd := c.CommandContext(within(t, 60*time.Second), "cat")
	cmd.IdleTimeout = idle
	start := time.Now()
	in := &talker{until: start.Add(3 * idle), end: t.Context().Done()}
	cmd.Stdin = in
	var out lastWrite
	cmd.Stdout = &out
	if err := cmd.Run(); !errors.Is(err, client.ErrTimeout) {
		t.Errorf("Run: %v", err)
	}
	if talked := out.at.Sub(start); talked < 2*idle {
		t.Errorf("printed for %v only", talked)
	}
	// In the background there is nobody but the agent to see to it.
	id := spawn(t, c, func(c *client.Cmd) { c.IdleTimeout = 50 * time.Millisecond }, "sleep 1000")
	if err := c.WaitProcess(within(t, 20*time.Second), id); !errors.Is(err, client.ErrTimeout) {
		t.Errorf("WaitProcess: %v", err)
	}
}

// talker is an input that comes without a pause until an instant, and ends only
// with the test.
type talker struct {
	until time.Time
	end   <-chan struct{}
}

func (k *talker) Read(p []byte) (int, error) {
	if time.Now().After(k.until) {
		<-k.end
		return 0, io.EOF
	}
	clear(p)
	return len(p), nil
}

// lastWrite is when something was last written to it.
type lastWrite struct{ at time.Time }

func (w *lastWrite) Write(p []byte) (int, error) {
	w.at = time.Now()
	return len(p), nil
}
