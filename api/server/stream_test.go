package server_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/client"
	"github.com/forkvm/forkvm/api/internal/apitest"
	"github.com/forkvm/forkvm/api/server"
)

var run = api.StartRequest{Command: api.Command{Argv: []string{"a"}}}

// TestD13_EventsOfACommand reads a stream as it is on the wire.
func TestD13_EventsOfACommand(t *testing.T) {
	b := start(t)
	b.fake.OnRun = func(_ context.Context, _ api.StartRequest, s api.Streams) (*api.Exit, error) {
		s.Started(apitest.Process(1, "a"))
		io.WriteString(s.Stdout, "one\ntwo <&>\n")
		s.Stderr.Write([]byte{0xff})
		return &api.Exit{Code: 2}, nil
	}
	_, body, h := b.ask("POST", b.sandbox("/exec/stream"), `{"argv":["a"]}`)
	want := `event: started
data: {"id":1,"pid":7,"argv":["a"],"started_at":"2026-02-03T04:05:06Z","tty":false,"background":false,"exit":null}

event: stdout
data: "one\ntwo \u003c\u0026\u003e\n"

event: stderr
data: {"base64":"/w=="}

event: exit
data: {"exit_code":2}

`
	if body != want || h.Get("Content-Type") != "text/event-stream" {
		t.Errorf("got %s", body)
	}
	b.fake.OnRun = func(_ context.Context, _ api.StartRequest, s api.Streams) (*api.Exit, error) {
		s.Started(apitest.Process(1, "a"))
		return nil, api.Errorf(api.ExecTimeout, "too long")
	}
	status, body, _ := b.ask("POST", b.sandbox("/exec/stream"), `{"argv":["a"]}`)
	want = "event: error\ndata: {\"error\":{\"code\":\"exec_timeout\",\"message\":\"too long\"}}\n\n"
	if status != http.StatusOK || !strings.HasSuffix(body, want) {
		t.Errorf("got %d %s", status, body)
	}
	b.fake.OnRun = func(context.Context, api.StartRequest, api.Streams) (*api.Exit, error) {
		return nil, api.Errorf(api.SpawnFailed, "no such file")
	}
	status, body, _ = b.ask("POST", b.sandbox("/exec/stream"), `{"argv":["a"]}`)
	wantError(t, "before the first event", status, body, api.SpawnFailed, "no such file")
}

// TestD13_Interactive has a conversation with a command: input, output, a signal, a
// size and the end of the input.
func TestD13_Interactive(t *testing.T) {
	b := start(t)
	controlled := make(chan []any, 2)
	b.fake.Called = func(verb string, args ...any) {
		if verb == "Control" {
			controlled <- args
		}
	}
	b.fake.OnRun = func(_ context.Context, r api.StartRequest, s api.Streams) (*api.Exit, error) {
		s.Started(apitest.Process(9, r.Argv...))
		n, err := io.Copy(s.Stdout, s.Stdin)
		fmt.Fprintf(s.Stderr, "%d bytes, %v", n, err)
		return &api.Exit{Code: -1, Signal: "SIGTERM"}, nil
	}
	var out, errs bytes.Buffer
	control := make(chan api.Control, 2)
	control <- api.Control{Signal: "INT"}
	control <- api.Control{Resize: &api.WinSize{Rows: 3, Cols: 4}}
	in, w := io.Pipe()
	started := make(chan uint64, 1)
	go func() {
		io.WriteString(w, strings.Repeat("x", 100_000))
		<-controlled
		<-controlled
		w.Close()
	}()
	r := run
	r.Stdin = true
	exit, err := b.Run(t.Context(), b.access, r, api.Streams{
		Stdin: in, Stdout: &out, Stderr: &errs, Control: control, Started: func(p api.Process) { started <- p.ID },
	})
	if err != nil || exit.Signal != "SIGTERM" || out.Len() != 100_000 || errs.String() != "100000 bytes, <nil>" || <-started != 9 {
		t.Errorf("%v, %v, %d bytes, %s", exit, err, out.Len(), errs.String())
	}
}

// TestX08_CutStreams: a stream without its end is an error of the client, and not
// of the command.
func TestX08_CutStreams(t *testing.T) {
	b := start(t)
	left := make(chan error, 1)
	wait := func(ctx context.Context, s api.Streams) (*api.Exit, error) {
		s.Started(apitest.Process(1, "a"))
		io.WriteString(s.Stdout, "out")
		if s.Stdin != nil {
			_, err := io.ReadAll(s.Stdin)
			if err == nil {
				t.Error("the command was told that the input has ended")
			}
		}
		<-ctx.Done()
		left <- ctx.Err()
		return nil, ctx.Err()
	}
	b.fake.OnRun = func(ctx context.Context, _ api.StartRequest, s api.Streams) (*api.Exit, error) { return wait(ctx, s) }
	r := run
	r.Stdin = true
	in, _ := io.Pipe() // says nothing
	ctx, cancel := context.WithCancel(t.Context())
	_, err := b.Run(ctx, b.access, r, api.Streams{Stdin: in, Stdout: onWrite(func([]byte) { cancel() })})
	if !errors.Is(err, context.Canceled) || !errors.Is(<-left, context.Canceled) {
		t.Errorf("the client left: %v", err)
	}
	failing := io.MultiReader(strings.NewReader("abc"), &broken{errors.New("disk on fire")})
	if _, err := b.Run(t.Context(), b.access, r, api.Streams{Stdin: failing}); err == nil || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("reading input failed: %v", err)
	}
	<-left
	full := errors.New("full")
	if _, err := b.Run(t.Context(), b.access, run, api.Streams{Stdout: &broken{full}}); !errors.Is(err, full) {
		t.Errorf("writing output failed: %v", err)
	}
	<-left
	for name, call := range map[string]func(*bench, func()) error{
		"run": func(b *bench, f func()) error {
			_, err := b.Run(t.Context(), b.access, run, api.Streams{Started: func(api.Process) { f() }})
			return err
		},
		"watch":  func(b *bench, f func()) error { return b.Watch(t.Context(), b.access, "/a", f, nil) },
		"events": func(b *bench, f func()) error { return b.Events(t.Context(), api.EventQuery{}, f, nil) },
	} {
		b := start(t)
		b.fake.OnRun = func(ctx context.Context, _ api.StartRequest, s api.Streams) (*api.Exit, error) {
			s.Started(apitest.Process(1, "a"))
			<-ctx.Done()
			return nil, ctx.Err()
		}
		b.fake.OnWatch = func(ctx context.Context, ready func(), _ func(api.FileEvent) error) error {
			ready()
			<-ctx.Done()
			return ctx.Err()
		}
		if err := call(b, b.cancel); !errors.Is(err, client.ErrCut) {
			t.Errorf("%s: the server ended: %v", name, err)
		}
	}
}

type onWrite func([]byte)

func (f onWrite) Write(p []byte) (int, error) { f(p); return len(p), nil }

type broken struct{ err error }

func (b *broken) Write([]byte) (int, error) { return 0, b.err }
func (b *broken) Read([]byte) (int, error)  { return 0, b.err }

// TestD13_Attach is told that what it attaches to has its input.
func TestD13_Attach(t *testing.T) {
	b := start(t)
	b.fake.OnAttach = func(_ context.Context, _ uint64, s api.Streams) (*api.Exit, error) {
		if s.Stdin != nil {
			io.Copy(s.Stdout, s.Stdin)
		}
		return &api.Exit{Code: 4}, nil
	}
	var out bytes.Buffer
	exit, err := b.Attach(t.Context(), b.access, 2, api.Streams{Stdin: strings.NewReader("hello"), Stdout: &out})
	if err != nil || exit.Code != 4 || out.String() != "hello" {
		t.Errorf("%v, %v, %q", exit, err, out.String())
	}
	_, body, _ := b.ask("GET", b.sandbox("/processes/2/attach?live=true"), "")
	if body != "event: exit\ndata: {\"exit_code\":4}\n\n" {
		t.Errorf("got %s", body)
	}
}

// TestWatches reads what is watched until it is gone, and what happened.
func TestWatches(t *testing.T) {
	b := start(t)
	ready, n := false, 0
	if err := b.Watch(t.Context(), b.access, "/a", func() { ready = true }, func(e api.FileEvent) error {
		n++
		return nil
	}); err != nil || !ready || n != 1 {
		t.Errorf("%v, ready %v, %d events", err, ready, n)
	}
	enough := errors.New("enough")
	b.fake.OnEvents = func(_ context.Context, q api.EventQuery, ready func(), f func(api.Event) error) error {
		ready()
		for seq := q.After + 1; ; seq++ {
			e := api.Event{Seq: seq, Time: apitest.Now, Type: api.SandboxReady, SandboxID: b.id, Sandbox: apitest.Sandbox(b.id)}
			if err := f(e); err != nil {
				return err
			}
		}
	}
	var seqs []uint64
	err := b.Events(t.Context(), api.EventQuery{After: 6}, nil, func(e api.Event) error {
		if seqs = append(seqs, e.Seq); len(seqs) == 3 {
			return enough
		}
		return nil
	})
	if err != enough || seqs[0] != 7 || seqs[2] != 9 {
		t.Errorf("%v after %v", err, seqs)
	}
	b.fake.OnEvents = func(_ context.Context, q api.EventQuery, ready func(), _ func(api.Event) error) error {
		ready()
		return api.Errorf(api.Gone, "after %d", q.After)
	}
	if err := b.Events(t.Context(), api.EventQuery{}, nil, nil); !errors.Is(err, api.Gone) {
		t.Errorf("got %v", err)
	}
	_, body, _ := b.ask("GET", "/v1/events", "", "Last-Event-ID: 12")
	if !strings.Contains(body, "after 12") {
		t.Errorf("got %s", body)
	}
}

// TestSilentStreamsAreKeptAlive waits for a comment.
func TestSilentStreamsAreKeptAlive(t *testing.T) {
	b := start(t, func(c *server.Config) { c.KeepAlive = time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", b.url+"/v1/events", nil)
	req.Header.Set("X-API-Key", apitest.Key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if lines.Text() == ":" {
			return
		}
	}
	t.Error("no comment came")
}

// TestSlowReadersHoldUpTheCommand: what nobody reads is not kept.
func TestSlowReadersHoldUpTheCommand(t *testing.T) {
	const most = 64 << 20 // that is on its way, in the kernel above all
	b := start(t)
	stuck, ended := make(chan struct{}, 1), make(chan int, 1)
	chunk := make([]byte, 64<<10)
	b.fake.OnRun = func(ctx context.Context, _ api.StartRequest, s api.Streams) (*api.Exit, error) {
		// It may go on after that, if it was only held up: it is the sum that counts.
		idle := time.AfterFunc(time.Second, func() {
			select {
			case stuck <- struct{}{}:
			default:
			}
		})
		defer idle.Stop()
		sent := 0
		defer func() { ended <- sent }()
		for sent <= most {
			if _, err := s.Stdout.Write(chunk); err != nil {
				return nil, ctx.Err()
			}
			sent += len(chunk)
			idle.Reset(500 * time.Millisecond)
		}
		return &api.Exit{}, nil
	}
	req, _ := http.NewRequest("POST", b.url+b.sandbox("/exec/stream"), strings.NewReader(`{"argv":["a"]}`))
	req.Header.Set("X-Access-Token", apitest.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-stuck:
		resp.Body.Close() // a writer that is stuck ends with its client
	case n := <-ended:
		ended <- n
	}
	if n := <-ended; n > most {
		t.Errorf("%d bytes were taken", n)
	}
}

// TestManyStreams has 100 commands print at once.
func TestManyStreams(t *testing.T) {
	const each = 4 << 20
	b := start(t)
	b.fake.OnRun = func(_ context.Context, _ api.StartRequest, s api.Streams) (*api.Exit, error) {
		s.Started(apitest.Process(1, "a"))
		_, err := io.Copy(s.Stdout, io.LimitReader(endless{}, each))
		return &api.Exit{}, err
	}
	peak := watchHeap(t)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			var n count
			if _, err := b.Run(t.Context(), b.access, run, api.Streams{Stdout: &n}); err != nil || n != each {
				t.Errorf("%d bytes, %v", n, err)
			}
		})
	}
	wg.Wait()
	if p := peak(); p > 150<<20 {
		t.Errorf("the heap grew by %d MiB", p>>20)
	}
}

// TestD14_LargeFiles sends and fetches 1 GiB.
func TestD14_LargeFiles(t *testing.T) {
	const size = 1 << 30
	b := start(t)
	b.fake.OnRead = func(string) (io.ReadCloser, error) { return io.NopCloser(io.LimitReader(endless{}, size)), nil }
	var written count
	b.fake.OnWrite = func(_ string, r io.Reader) error { _, err := io.Copy(&written, r); return err }
	peak := watchHeap(t)
	r, _, err := b.ReadFile(t.Context(), b.access, "/a")
	if err != nil {
		t.Fatal(err)
	}
	var read count
	if _, err := io.Copy(&read, r); err != nil || read != size {
		t.Errorf("%d bytes came, %v", read, err)
	}
	r.Close()
	if _, err := b.WriteFile(t.Context(), b.access, "/a", io.LimitReader(endless{}, size), api.WriteOptions{}); err != nil || written != size {
		t.Errorf("%d bytes were sent, %v", written, err)
	}
	if p := peak(); p > 32<<20 {
		t.Errorf("the heap grew by %d MiB", p>>20)
	}
}

// TestD14_BrokenTransfers: what is not there to its end is not taken for whole, on
// either side.
func TestD14_BrokenTransfers(t *testing.T) {
	b := start(t)
	b.fake.OnRead = func(string) (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), &broken{io.ErrNoProgress})), nil
	}
	r, _, err := b.ReadFile(t.Context(), b.access, "/a")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := io.Copy(io.Discard, r); !errors.Is(err, client.ErrCut) {
		t.Errorf("%d bytes, %v", n, err)
	}
	b.fake.OnRead = func(string) (io.ReadCloser, error) {
		return io.NopCloser(&broken{api.Errorf(api.Gone, "at once")}), nil
	}
	if _, err := b.ReadTree(t.Context(), b.access, "/a"); !errors.Is(err, api.Gone) {
		t.Errorf("an error of the first read: %v", err)
	}
	seen := make(chan error, 1)
	b.fake.OnWrite = func(_ string, r io.Reader) error { _, err := io.Copy(io.Discard, r); seen <- err; return err }
	fire := errors.New("disk on fire")
	content := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), &broken{fire})
	if _, err := b.WriteFile(t.Context(), b.access, "/a", content, api.WriteOptions{}); !errors.Is(err, fire) {
		t.Errorf("the content failed: %v", err)
	}
	if err := <-seen; err == nil {
		t.Error("the service took the content for whole")
	}
	b.fake.OnWrite = func(string, io.Reader) error { return api.Errorf(api.NotEnoughSpace, "full") }
	for range 20 {
		err := b.WriteTree(t.Context(), b.access, "/a", io.LimitReader(endless{}, 8<<20))
		if !errors.Is(err, api.NotEnoughSpace) {
			t.Errorf("refused early: %v", err)
		}
	}
}

// endless is a reader without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type count int64

func (c *count) Write(p []byte) (int, error) { *c += count(len(p)); return len(p), nil }

// watchHeap returns what says how much the heap has grown at most.
func watchHeap(t *testing.T) func() uint64 {
	t.Helper()
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	stop, done := make(chan struct{}), make(chan uint64)
	go func() {
		var peak uint64
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				done <- peak
				return
			case <-tick.C:
			}
			if runtime.ReadMemStats(&now); now.HeapAlloc > before.HeapAlloc {
				peak = max(peak, now.HeapAlloc-before.HeapAlloc)
			}
		}
	}()
	return func() uint64 { close(stop); return <-done }
}

// TestD14_RefusedHalfWay: an upload that fails after some of it was read fails for
// the client with what the service said, however much it has yet to send.
func TestD14_RefusedHalfWay(t *testing.T) {
	b := start(t)
	b.fake.OnWrite = func(_ string, r io.Reader) error {
		_, err := io.CopyN(io.Discard, r, 1<<20)
		return errors.Join(err, api.Errorf(api.NotEnoughSpace, "full"))
	}
	b.fake.OnBuild = func(_ context.Context, _ api.BuildRequest, archive io.Reader, _ io.Writer) (*api.Template, error) {
		return nil, b.fake.OnWrite("", archive)
	}
	for range 20 {
		content := func() io.Reader { return io.LimitReader(endless{}, 256<<20) } // each call's own: it may still be read
		if _, err := b.WriteFile(t.Context(), b.access, "/a", content(), api.WriteOptions{}); !errors.Is(err, api.NotEnoughSpace) {
			t.Errorf("a file: %v", err)
		}
		if err := b.WriteTree(t.Context(), b.access, "/a", content()); !errors.Is(err, api.NotEnoughSpace) {
			t.Errorf("a tree: %v", err)
		}
		if _, err := b.BuildTemplate(t.Context(), api.BuildRequest{Name: "web", File: "FROM base"}, content(), nil); !errors.Is(err, api.NotEnoughSpace) {
			t.Errorf("a build: %v", err)
		}
	}
}

// lateWriter is a response that tells of what is written when its handler has
// returned.
type lateWriter struct {
	header   http.Header
	returned atomic.Bool
	late     atomic.Int64
}

func (w *lateWriter) Header() http.Header { return w.header }
func (w *lateWriter) WriteHeader(int)     {}
func (w *lateWriter) Flush()              {}

func (w *lateWriter) Write(p []byte) (int, error) {
	if w.returned.Load() {
		w.late.Add(1)
	}
	return len(p), nil
}

// TestNothingIsWrittenAfterAPanic: what keeps a stream alive ends with it.
func TestNothingIsWrittenAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &apitest.Fake{OnBuild: func(_ context.Context, _ api.BuildRequest, _ io.Reader, log io.Writer) (*api.Template, error) {
			io.WriteString(log, "x")
			panic("out of cheese")
		}}
		r, err := http.NewRequestWithContext(t.Context(), "POST", "/v1/templates", strings.NewReader(form([2]string{"request", `{"name":"web"}`})))
		if err != nil {
			t.Fatal(err)
		}
		name, value, _ := strings.Cut(formType, ": ")
		r.Header.Set(name, value)
		r.Header.Set("X-API-Key", apitest.Key)
		w := &lateWriter{header: http.Header{}}
		func() {
			defer func() {
				if p := recover(); p != http.ErrAbortHandler {
					t.Errorf("panic: %v", p)
				}
			}()
			server.New(fake.Config()).ServeHTTP(w, r)
		}()
		w.returned.Store(true)
		time.Sleep(time.Hour) // of the bubble
		if n := w.late.Load(); n != 0 {
			panic(fmt.Sprint(n, " writes to a response whose handler has returned")) // the bubble would not end
		}
	})
}
