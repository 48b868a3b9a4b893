package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/client"
	"github.com/forkvm/forkvm/api/internal/apitest"
	"github.com/forkvm/forkvm/api/internal/wire"
	"github.com/forkvm/forkvm/api/server"
)

// dial connects a WebSocket as any client would.
func (b *bench) dial(path string) *websocket.Conn {
	b.t.Helper()
	h := http.Header{"X-Access-Token": {apitest.Token}}
	c, _, err := websocket.Dial(b.t.Context(), b.url+path, &websocket.DialOptions{HTTPHeader: h})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.CloseNow() })
	return c
}

const text, binary = websocket.MessageText, websocket.MessageBinary

// TestD13_Messages is a conversation as it is on the wire.
func TestD13_Messages(t *testing.T) {
	b := start(t)
	b.fake.OnRun = func(_ context.Context, r api.StartRequest, s api.Streams) (*api.Exit, error) {
		s.Started(apitest.Process(1, r.Argv...))
		for range 2 {
			c, _ := json.Marshal(<-s.Control)
			s.Stdout.Write(c)
		}
		in, err := io.ReadAll(s.Stdin)
		fmt.Fprintf(s.Stderr, "%s %v", in, err)
		return &api.Exit{Code: 7}, nil
	}
	c, ctx := b.dial(b.sandbox("/exec/ws")), t.Context()
	for _, m := range []struct {
		kind websocket.MessageType
		data string
	}{
		{text, `{"argv":["a"],"stdin":true}`}, {text, `{"signal":"TERM"}`}, {text, `{"resize":{"rows":1,"cols":2}}`},
		{binary, "\x00hel"}, {binary, "\x00"}, {binary, "\x00lo"}, {text, `{"eof":true}`},
	} {
		if err := c.Write(ctx, m.kind, []byte(m.data)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		`{"started":{"id":1,"pid":7,"argv":["a"],"started_at":"2026-02-03T04:05:06Z","tty":false,"background":false,"exit":null}}`,
		"\x01" + `{"signal":"TERM"}`, "\x01" + `{"resize":{"rows":1,"cols":2}}`, "\x02hello <nil>", "\x03" + `{"exit_code":7}`,
	} {
		if _, got, err := c.Read(ctx); string(got) != want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("the end: %v", err)
	}
}

// TestMessagesThatAreNone sends what makes no sense. The error says so, the
// connection ends, and the command goes on.
func TestMessagesThatAreNone(t *testing.T) {
	b := start(t)
	left := make(chan struct{}, 1)
	b.fake.OnRun = func(ctx context.Context, _ api.StartRequest, s api.Streams) (*api.Exit, error) {
		<-ctx.Done()
		left <- struct{}{}
		return nil, ctx.Err()
	}
	const start = `{"argv":["a"]}`
	for _, c := range []struct {
		first, second string
		kind          websocket.MessageType
		words         string
	}{
		{`{"argv":["a"],"x":1}`, "", text, "x"},
		{"\x00", "", binary, "first message"},
		{start, `{"signal":"A","eof":true}`, text, "one of"},
		{start, `{}`, text, "one of"},
		{start, `{"kill":9}`, text, "kill"},
		{start, `{"signal":"` + strings.Repeat("x", 5000) + `"}`, text, "larger"},
		{start, "\x00input", binary, "channel 0"}, // which it does not have
		{start, "\x01", binary, "channel 1"},
		{start, "", binary, "without a channel"},
	} {
		conn := b.dial(b.sandbox("/exec/ws"))
		kind := text
		if c.first[0] == 0 {
			kind = binary
		}
		conn.Write(t.Context(), kind, []byte(c.first))
		if c.first == start {
			conn.Write(t.Context(), c.kind, []byte(c.second))
		}
		_, got, err := conn.Read(t.Context())
		var n struct{ Error *api.Error }
		if json.Unmarshal(got, &n) != nil || n.Error == nil || n.Error.Code != api.BadRequest || !strings.Contains(n.Error.Message, c.words) {
			t.Errorf("%q %q: %q, %v", c.first, c.second, got, err)
		}
		if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) == -1 {
			t.Errorf("%q %q: %v", c.first, c.second, err)
		}
		if c.first == start {
			<-left
		}
	}
}

// TestPanicsEndWebSockets has the service fail in the middle of a command.
func TestPanicsEndWebSockets(t *testing.T) {
	b := start(t)
	b.fake.OnRun = func(_ context.Context, _ api.StartRequest, s api.Streams) (*api.Exit, error) {
		s.Started(apitest.Process(1, "a"))
		panic("out of cheese")
	}
	if _, err := b.Run(t.Context(), b.access, run, api.Streams{}); !errors.Is(err, client.ErrCut) {
		t.Errorf("got %v", err)
	}
}

// TestIdleStreamsAreNotCut: neither a client that does not read for an hour nor one
// whose input nobody reads is taken for one that has gone.
func TestIdleStreamsAreNotCut(t *testing.T) {
	for name, c := range map[string]struct {
		command func(s api.Streams) // what it does with its streams
		first   func()              // what the client does when it has the first output
	}{
		"input":  {func(s api.Streams) { time.Sleep(time.Hour); io.Copy(io.Discard, s.Stdin) }, func() {}},
		"output": {func(s api.Streams) { time.Sleep(2 * time.Hour) }, func() { time.Sleep(time.Hour) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the hours are of the bubble
				fake := &apitest.Fake{OnRun: func(_ context.Context, _ api.StartRequest, s api.Streams) (*api.Exit, error) {
					s.Started(apitest.Process(1, "a"))
					io.WriteString(s.Stdout, "x")
					c.command(s)
					io.WriteString(s.Stdout, "y")
					return &api.Exit{Code: 3}, nil
				}}
				by, err := client.New("http://pipe", client.Options{Transport: overPipes(t, fake)})
				if err != nil {
					t.Fatal(err)
				}
				r := run
				r.Stdin = name == "input"
				var out bytes.Buffer
				exit, err := by.Run(t.Context(), api.Access{ID: api.NewID(api.SandboxPrefix, apitest.Now), Token: apitest.Token}, r, api.Streams{
					Stdin: io.LimitReader(zeros{}, 1<<20), Stdout: onWrite(func(p []byte) {
						if out.Write(p); out.Len() == 1 {
							c.first()
						}
					}),
				})
				if err != nil || exit.Code != 3 || out.String() != "xy" {
					t.Errorf("%+v, %v, %q", exit, err, &out)
				}
			})
		})
	}
}

// overPipes serves over connections that keep nothing which is not read.
func overPipes(t *testing.T, fake *apitest.Fake) *http.Transport {
	l := make(pipes)
	s := &http.Server{Handler: server.New(fake.Config())}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		l <- theirs
		return ours, nil
	}}
}

// TestExitIsLast: no sign of life follows it, also if one was on its way. Without
// care one does in a few of these rounds.
func TestExitIsLast(t *testing.T) {
	for range 2000 {
		synctest.Test(t, exitIsLast)
		if t.Failed() {
			return
		}
	}
}

func exitIsLast(t *testing.T) {
	fake := &apitest.Fake{OnRun: func(_ context.Context, _ api.StartRequest, s api.Streams) (*api.Exit, error) {
		s.Started(apitest.Process(1, "a"))
		return &api.Exit{Code: 3}, nil
	}}
	path := "http://pipe/v1/sandboxes/" + api.NewID(api.SandboxPrefix, apitest.Now) + "/exec/ws"
	c, _, err := websocket.Dial(t.Context(), path, &websocket.DialOptions{
		HTTPHeader: http.Header{"X-Access-Token": {apitest.Token}}, HTTPClient: &http.Client{Transport: overPipes(t, fake)},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if err := c.Write(t.Context(), websocket.MessageText, []byte(`{"argv":["a"]}`)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Hour) // of the bubble: it does not read, and signs of life queue up
	var last []byte
	for {
		_, m, err := c.Read(t.Context())
		if err != nil {
			break
		}
		last = m
	}
	if len(last) == 0 || last[0] != wire.ChannelExit {
		t.Errorf("the last message is %q", last)
	}
}

// BenchmarkExec is what HTTP adds to an exec.
func BenchmarkExec(b *testing.B) {
	s := start(b)
	r := api.ExecRequest{Command: api.Command{Argv: []string{"true"}}}
	for b.Loop() {
		if _, err := s.Exec(b.Context(), s.access, r); err != nil {
			b.Fatal(err)
		}
	}
}
