package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
)

// watched is a buffer that says when it has some text.
type watched struct {
	text string
	seen chan struct{}

	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func watchFor(text string) *watched { return &watched{text: text, seen: make(chan struct{})} }

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	had := strings.Contains(w.buf.String(), w.text)
	w.buf.Write(b)
	if !had && strings.Contains(w.buf.String(), w.text) {
		close(w.seen)
	}
	return len(b), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

func TestRunStreams(t *testing.T) {
	g := start(t, agent.Options{})
	var out, errOut bytes.Buffer
	exit, err := g.Run(within(t, 30*time.Second), api.StartRequest{Command: sh("cat; echo err >&2; exit 3"), Stdin: true},
		api.Streams{Stdin: strings.NewReader("in\n"), Stdout: &out, Stderr: &errOut})
	if err != nil || *exit != (api.Exit{Code: 3}) || out.String() != "in\n" || errOut.String() != "err\n" {
		t.Errorf("%v, %v, %q, %q", exit, err, &out, &errOut)
	}
}

// TestRunWithoutStdin: input that was not announced does not come.
func TestRunWithoutStdin(t *testing.T) {
	g := start(t, agent.Options{})
	for _, s := range []io.Reader{nil, strings.NewReader("in\n")} {
		var out bytes.Buffer
		exit, err := g.Run(within(t, 30*time.Second), api.StartRequest{Command: sh("cat")}, api.Streams{Stdin: s, Stdout: &out})
		if err != nil || exit.Code != 0 || out.Len() != 0 {
			t.Errorf("%v, %v, %q", exit, err, &out)
		}
	}
}

// TestRunStartedFirst: the caller knows of the process before it has output.
func TestRunStartedFirst(t *testing.T) {
	g := start(t, agent.Options{})
	var p api.Process
	printed := writerFunc(func(b []byte) (int, error) {
		if p.ID == 0 || p.PID == 0 || p.Background || p.TTY || len(p.Argv) != 3 || p.Exit != nil || time.Since(p.StartedAt) > time.Minute {
			t.Errorf("output for %+v", p)
		}
		return len(b), nil
	})
	for range 20 {
		p = api.Process{}
		if _, err := g.Run(within(t, 30*time.Second), api.StartRequest{Command: sh("echo x")},
			api.Streams{Stdout: printed, Started: func(started api.Process) { p = started }}); err != nil {
			t.Fatal(err)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestX08_CutStreamGoesOn: an error for the client, and the command runs on,
// with its input open.
func TestX08_CutStreamGoesOn(t *testing.T) {
	g := start(t, agent.Options{})
	cut := errors.New("cut")
	for name, tc := range map[string]func(cancel func(error)) api.Streams{
		"context": func(cancel func(error)) api.Streams {
			in, _ := io.Pipe()
			return api.Streams{Stdin: in, Stderr: writerFunc(func(b []byte) (int, error) { cancel(cut); return len(b), nil })}
		},
		"output": func(func(error)) api.Streams {
			in, _ := io.Pipe()
			return api.Streams{Stdin: in, Stderr: writerFunc(func([]byte) (int, error) { return 0, cut })}
		},
		"input": func(func(error)) api.Streams { return api.Streams{Stdin: failingReader{cut}} },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(within(t, 30*time.Second))
			defer cancel(nil)
			s := tc(cancel)
			var id uint64
			s.Started = func(p api.Process) { id = p.ID }
			_, err := g.Run(ctx, api.StartRequest{Command: sh("echo up >&2; read x; echo got $x; exit 4"), Stdin: true}, s)
			if !errors.Is(err, cut) {
				t.Fatalf("Run: %v", err)
			}
			if name != "context" {
				want(t, err, api.BadRequest)
			}
			var out bytes.Buffer
			ctx = within(t, 30*time.Second)
			exit, err := g.Attach(ctx, id, api.Streams{Stdin: strings.NewReader("in\n"), Stdout: &out})
			if err != nil || exit.Code != 4 || out.String() != "got in\n" {
				t.Errorf("Attach: %v, %v, %q", exit, err, &out)
			}
		})
	}
}

type failingReader struct{ error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.error }

// TestRunWithoutReader: who closes a pipe wants no more output, and waits for
// the end all the same.
func TestRunWithoutReader(t *testing.T) {
	g := start(t, agent.Options{})
	r, w := io.Pipe()
	r.Close()
	exit, err := g.Run(within(t, 30*time.Second), api.StartRequest{Command: sh("seq 1 100000; exit 3")}, api.Streams{Stdout: w})
	if err != nil || exit.Code != 3 {
		t.Errorf("%v, %v", exit, err)
	}
}

// TestX07_IdleTimeout: each output starts it again, and the result has all.
func TestX07_IdleTimeout(t *testing.T) {
	g := start(t, agent.Options{})
	r := api.StartRequest{Command: sh("for i in 1 2 3 4 5; do sleep 0.3; echo $i; done; sleep 1000"), IdleTimeoutSeconds: api.Set[int64](1)}
	var out bytes.Buffer
	_, err := g.Run(within(t, 30*time.Second), r, api.Streams{Stdout: &out})
	want(t, err, api.ExecTimeout)
	if out.String() != "1\n2\n3\n4\n5\n" {
		t.Errorf("%q", &out)
	}
	r.Command = sh("exec sleep 1000")
	_, err = g.WaitProcess(within(t, 30*time.Second), background(t, g, r))
	want(t, err, api.ExecTimeout)
}

func TestRunTimeout(t *testing.T) {
	g := start(t, agent.Options{})
	c := sh("sleep 1000")
	c.TimeoutSeconds = api.Set[int64](1)
	_, err := g.Run(within(t, 30*time.Second), api.StartRequest{Command: c}, api.Streams{})
	want(t, err, api.ExecTimeout)
}

// TestRunControl resizes the terminal of a command that runs, and signals it.
func TestRunControl(t *testing.T) {
	g := start(t, agent.Options{})
	control := make(chan api.Control)
	out := watchFor("ready")
	size := watchFor("30 40")
	result := make(chan error, 1)
	go func() {
		exit, err := g.Run(within(t, 30*time.Second), api.StartRequest{
			Command: sh("trap 'stty size; exit 5' TERM; stty size; echo ready; while :; do sleep 0.02; done"), TTY: &api.WinSize{Rows: 10, Cols: 20},
		}, api.Streams{Stdout: io.MultiWriter(out, size), Control: control})
		if err == nil && exit.Code != 5 {
			err = errors.New("exit code of another")
		}
		result <- err
	}()
	<-out.seen
	control <- api.Control{Signal: "no such"} // is dropped
	control <- api.Control{Resize: &api.WinSize{Rows: 30, Cols: 40}}
	control <- api.Control{Signal: "TERM"}
	<-size.seen
	if err := <-result; err != nil {
		t.Error(err)
	}
	if !strings.HasPrefix(out.String(), "10 20\r\n") {
		t.Errorf("%q", out)
	}
	close(control) // after the end is no harm either
}

// TestRunControlClosed: a channel that is closed has nothing to say.
func TestRunControlClosed(t *testing.T) {
	g := start(t, agent.Options{})
	control := make(chan api.Control)
	close(control)
	if exit, err := g.Run(within(t, 30*time.Second), api.StartRequest{Command: sh("sleep 0.05; exit 2")}, api.Streams{Control: control}); err != nil || exit.Code != 2 {
		t.Errorf("%v, %v", exit, err)
	}
}

func TestRunSpawnFailed(t *testing.T) {
	g := start(t, agent.Options{})
	_, err := g.Run(within(t, 30*time.Second), api.StartRequest{Command: api.Command{Argv: []string{"no-such"}}},
		api.Streams{Started: func(api.Process) { t.Error("it has started") }})
	want(t, err, api.SpawnFailed)
	_, err = g.Start(within(t, 30*time.Second), api.StartRequest{Command: api.Command{Argv: []string{"no-such"}}})
	want(t, err, api.SpawnFailed)
}

// TestB25_Reattach: a command in the background is found after its client went,
// prints on, and ends when it is told to.
func TestB25_Reattach(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 60*time.Second)
	id := background(t, g, api.StartRequest{Command: sh("echo up; read x; echo got $x; exit 6"), Stdin: true})
	for range 3 {
		attached, cancel := context.WithCancel(ctx)
		out := watchFor("up\n")
		ended := make(chan error, 1)
		go func() {
			_, err := g.Attach(attached, id, api.Streams{Stdout: out})
			ended <- err
		}()
		<-out.seen
		cancel()
		if err := <-ended; err != context.Canceled {
			t.Errorf("Attach: %v", err)
		}
	}
	list, err := g.Processes(ctx)
	if err != nil || len(list.Processes) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	if p := list.Processes[0]; p.ID != id || !p.Background || p.Exit != nil || p.Argv[0] != "sh" || p.StartedAt.Location() != time.UTC {
		t.Errorf("listed %+v", p)
	}
	var out bytes.Buffer
	var p api.Process
	exit, err := g.Attach(ctx, id, api.Streams{Stdin: strings.NewReader("in\n"), Stdout: &out, Live: true, Started: func(started api.Process) { p = started }})
	if err != nil || exit.Code != 6 || out.String() != "got in\n" || p.ID != id || !p.Background {
		t.Errorf("%v, %v, %q, %+v", exit, err, &out, p)
	}
	list, err = g.Processes(ctx)
	if err != nil || list.Processes[0].Exit == nil || list.Processes[0].Exit.Code != 6 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestAttachBrokenInput: it is not the end of the command's input.
func TestAttachBrokenInput(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 30*time.Second)
	id := background(t, g, api.StartRequest{Command: sh("cat"), Stdin: true})
	cut := errors.New("cut")
	if _, err := g.Attach(ctx, id, api.Streams{Stdin: io.MultiReader(strings.NewReader("a"), failingReader{cut})}); !errors.Is(err, cut) {
		t.Errorf("%v", err)
	}
	var out bytes.Buffer
	exit, err := g.Attach(ctx, id, api.Streams{Stdin: strings.NewReader("b"), Stdout: &out})
	if err != nil || exit.Code != 0 || !strings.HasSuffix(out.String(), "b") {
		t.Errorf("%v, %v, %q", exit, err, &out)
	}
}

// TestAttachOutputLost: output that is not there any more is not passed over in
// silence, whatever the exit code.
func TestAttachOutputLost(t *testing.T) {
	g := start(t, agent.Options{KeepOutput: 1000})
	for _, script := range []string{"seq 1 10000", "seq 1 10000; exit 7"} {
		ctx := within(t, 30*time.Second)
		id := background(t, g, api.StartRequest{Command: sh(script)})
		if _, err := g.WaitProcess(ctx, id); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		_, err := g.Attach(ctx, id, api.Streams{Stdout: &out})
		e := want(t, err, api.Conflict)
		if !errors.Is(err, client.ErrOutputLost) || out.Len() != 1000 || e.Details["exit"] == nil {
			t.Errorf("%v, %v, %d bytes", err, e.Details, out.Len())
		}
	}
}

func TestProcessErrors(t *testing.T) {
	g := start(t, agent.Options{MaxProcs: 2})
	ctx := within(t, 30*time.Second)
	none := func(api.Process) { t.Error("it has started") }
	_, err := g.WaitProcess(ctx, 99)
	want(t, err, api.NotFound)
	_, err = g.Attach(ctx, 99, api.Streams{})
	want(t, err, api.NotFound)
	_, err = g.Attach(ctx, 99, api.Streams{Started: none})
	want(t, err, api.NotFound)
	want(t, g.Control(ctx, 99, api.Control{Signal: "TERM"}), api.NotFound)

	id := background(t, g, api.StartRequest{Command: sh("exec sleep 1000")})
	want(t, g.Control(ctx, id, api.Control{Resize: &api.WinSize{}}), api.Conflict)
	_, err = g.Attach(ctx, id, api.Streams{Stdin: strings.NewReader("x")})
	want(t, err, api.Conflict)
	background(t, g, api.StartRequest{Command: sh("exec sleep 1000")})
	_, err = g.Exec(ctx, api.ExecRequest{Command: sh("true")})
	if e := want(t, err, api.Conflict); e.RetryAfter == 0 {
		t.Error("busy, and not said when to try again")
	}
	if err := g.Control(ctx, id, api.Control{Signal: "9"}); err != nil {
		t.Error(err)
	}
	exit, err := g.WaitProcess(ctx, id)
	if err != nil || *exit != (api.Exit{Code: -1, Signal: "SIGKILL"}) {
		t.Errorf("%v, %v", exit, err)
	}
	want(t, g.Control(ctx, id, api.Control{Signal: "KILL"}), api.Conflict)
}

// TestControlSignals: which signals there are.
func TestControlSignals(t *testing.T) {
	for s, want := range map[string]int{"SIGTERM": 15, "TERM": 15, "15": 15, "KILL": 9, "SIGUSR1": 10, "64": 64, "SIGSYS": 31} {
		if sig, err := parseSignal(s); err != nil || int(sig) != want {
			t.Errorf("%q: %d, %v", s, sig, err)
		}
	}
	for _, s := range []string{"", "0", "65", "-1", "+9", "09", "9 ", "term", "SIG", "SIGSIGTERM", "SIGNONE", "99999999999999999999"} {
		if sig, err := parseSignal(s); err == nil {
			t.Errorf("%q is %d", s, sig)
		}
	}
	for _, c := range []api.Control{{}, {Signal: "TERM", Resize: &api.WinSize{}}, {Signal: "x"}} {
		if e := want(t, CheckControl(c), api.BadRequest); !strings.HasPrefix(e.Message, "signal: ") {
			t.Error(e)
		}
	}
}

func FuzzSignal(f *testing.F) {
	for _, s := range []string{"SIGTERM", "9", "SIG", "SIG9", "\xff", "0x9", "064"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sig, err := parseSignal(s)
		if err != nil {
			return
		}
		if sig < 1 || sig > lastSignal {
			t.Fatalf("%q is %d", s, sig)
		}
		if again, err := parseSignal(signalName(sig)); err != nil || again != sig {
			t.Fatalf("%q is %d, whose name %q is %d, %v", s, sig, signalName(sig), again, err)
		}
	})
}
