package client_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/guestagent/proto"
)

// FuzzClient answers every kind of call with any bytes. No call may panic,
// hang, or return a name that leads elsewhere.
func FuzzClient(f *testing.F) {
	add := func(frames ...func(*proto.Writer)) {
		var buf bytes.Buffer
		w := proto.NewWriter(&buf)
		for _, frame := range frames {
			frame(w)
		}
		f.Add(buf.Bytes())
	}
	raw := func(t proto.Type, s string) func(*proto.Writer) {
		return func(w *proto.Writer) { _ = w.Write(t, []byte(s)) }
	}
	value := func(t proto.Type, v any) func(*proto.Writer) {
		return func(w *proto.Writer) { _ = w.WriteValue(t, v) }
	}
	add(value(proto.TypeReply, proto.Started{ID: 1}), raw(proto.TypeStdout, "out"), raw(proto.TypeCredit, "\x00\x00\x00\x01"), value(proto.TypeExit, proto.Exit{Code: 1}))
	add(value(proto.TypeReply, proto.Started{ID: 1}), raw(proto.TypeLeave, ""))
	add(raw(proto.TypeReply, `{"name":"f","size":3}`), raw(proto.TypeData, "abc"), raw(proto.TypeEOF, ""))
	add(raw(proto.TypeItem, `[{"name":"a"}]`), raw(proto.TypeItem, `{"id":3}`), raw(proto.TypeEOF, ""))
	add(raw(proto.TypeError, `{"code":"file","errno":2,"message":"no"}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		c := client.New(func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			go func() {
				_, _ = theirs.Write(answer)
				theirs.Close()
			}()
			return ours, nil
		})
		fs := c.FS().WithContext(ctx)
		cmd := c.CommandContext(ctx, "x")
		cmd.Stdin = strings.NewReader("input")
		_, _ = cmd.Output()
		_, _ = c.Hello(ctx)
		_, _ = c.Processes(ctx)
		_ = c.Attach(ctx, 1, client.Attachment{Stdin: strings.NewReader("x"), Stdout: io.Discard})
		_ = c.WaitProcess(ctx, 1)
		_, _ = fs.ReadFile("x")
		_ = fs.WriteFile("x", []byte("x"), 0o644)
		_, _ = fs.Stat("x")
		_ = fs.TarOut(ctx, "x", io.Discard)
		_ = fs.TarIn(ctx, "x", strings.NewReader("x"))
		_, _ = client.ReadReady(bytes.NewReader(answer))
		if events, err := fs.Watch(ctx, "x"); err == nil {
			for range events {
			}
		}
		entries, _ := fs.ReadDir("x")
		for _, e := range entries {
			if n := e.Name(); n == "" || n == "." || n == ".." || strings.Contains(n, "/") {
				t.Errorf("entry named %q", n)
			}
		}
		if ctx.Err() != nil {
			t.Error("a call hung")
		}
	})
}
