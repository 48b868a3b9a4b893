package agent_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/guestagent/proto"
)

// frame is one frame as bytes.
func frame(t proto.Type, payload string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{byte(t)}, uint32(len(payload)))
	return append(b, payload...)
}

// handshake is the first frame of an operation.
func handshake(op proto.Op, req any) []byte {
	raw, err := proto.Encode(req)
	if err != nil {
		panic(err)
	}
	return rawHandshake(op, string(raw))
}

func rawHandshake(op proto.Op, request string) []byte {
	h := proto.Handshake{Version: proto.Version, Op: op, Request: []byte(request)}
	return frame(proto.TypeHandshake, string(h.Append(nil)))
}

// valueFrame is a frame that carries a reply.
func valueFrame(t proto.Type, v any) []byte {
	b, err := proto.Encode(v)
	if err != nil {
		panic(err)
	}
	return frame(t, string(b))
}

func execHandshake(args ...string) []byte {
	return handshake(proto.OpExec, proto.ExecRequest{Path: proto.Text(args[0]), Args: proto.Texts(args), Stdin: true})
}

// TestHostileClient sends what no client of ours would, and checks that the
// agent answers with an error or hangs up, and serves others as before.
func TestHostileClient(t *testing.T) {
	path := serveSocket(t, agent.Options{})
	huge := append([]byte{byte(proto.TypeHandshake)}, 0xff, 0xff, 0xff, 0xff)
	open := handshake(proto.OpOpen, proto.PathRequest{Path: "/dev/null", Flag: 2})
	tarIn := handshake(proto.OpTarIn, proto.PathRequest{Path: proto.Text(t.TempDir())})
	for name, tc := range map[string]struct {
		send []byte
		want proto.Code // "": it hangs up, or the operation ends as it should
	}{
		"nothing":               {nil, ""},
		"half a header":         {[]byte{1, 0}, ""},
		"half a frame":          {frame(proto.TypeHandshake, strings.Repeat("x", 100))[:50], ""},
		"announces 4 GiB":       {huge, ""},
		"not a handshake":       {frame(proto.TypeData, "x"), proto.CodeBadRequest},
		"unknown type":          {frame(200, "x"), proto.CodeBadRequest},
		"half a handshake":      {frame(proto.TypeHandshake, "\x02\x00"), proto.CodeBadRequest},
		"not JSON":              {rawHandshake(proto.OpStat, "\x00\xff"), proto.CodeBadRequest},
		"deep JSON":             {rawHandshake(proto.OpStat, strings.Repeat("[", 500000)), proto.CodeBadRequest},
		"another version":       {frame(proto.TypeHandshake, "\x07"), proto.CodeVersion},
		"the first version":     {frame(proto.TypeHandshake, `{"version":1,"op":"hello"}`), proto.CodeVersion},
		"unknown operation":     {handshake("dance", proto.PathRequest{Path: "x"}), proto.CodeUnsupported},
		"no request":            {rawHandshake(proto.OpExec, ""), proto.CodeBadRequest},
		"request of wrong type": {handshake(proto.OpExec, "x"), proto.CodeBadRequest},
		"exec: frame too large": {slices.Concat(execHandshake("cat"), []byte{4, 0xff, 0, 0, 0}), proto.CodeBadRequest},
		"exec: wrong frame":     {slices.Concat(execHandshake("cat"), frame(proto.TypeStdout, "x")), proto.CodeBadRequest},
		"exec: data after EOF":  {slices.Concat(execHandshake("sleep", "100"), frame(proto.TypeEOF, ""), frame(proto.TypeData, "x")), proto.CodeBadRequest},
		"exec: beyond window":   {slices.Concat(execHandshake("sleep", "100"), frame(proto.TypeData, strings.Repeat("x", proto.StdinWindow+1))), proto.CodeBadRequest},
		"exec: cut off":         {slices.Concat(execHandshake("cat"), []byte{4, 0, 0, 1, 0, 'x'}), ""},
		"open: short call":      {slices.Concat(open, frame(proto.TypeReadAt, "x")), proto.CodeBadRequest},
		"open: bad offset":      {slices.Concat(open, frame(proto.TypeWriteAt, "\xff\xff\xff\xff\xff\xff\xff\xf0")), proto.CodeBadRequest},
		"open: unknown call":    {slices.Concat(open, frame(proto.TypeCall, `{"op":"fly"}`)), proto.CodeBadRequest},
		"open: huge read":       {slices.Concat(open, frame(proto.TypeReadAt, "\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"), frame(proto.TypeCall, `{"op":"close"}`)), ""},
		"tar: wrong frame":      {slices.Concat(tarIn, frame(proto.TypeCredit, "x")), proto.CodeBadRequest},
		"tar: cut off":          {slices.Concat(tarIn, frame(proto.TypeData, "x")), proto.CodeBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			_ = nc.SetDeadline(time.Now().Add(15 * time.Second))
			go func() {
				_, _ = nc.Write(tc.send)
				if name == "nothing" || strings.HasPrefix(name, "half") || strings.HasSuffix(name, "cut off") {
					_ = nc.(*net.UnixConn).CloseWrite()
				}
			}()
			if got := lastError(t, nc); got != tc.want {
				t.Errorf("error code %q, want %q", got, tc.want)
			}
		})
	}
	c := client.New(dialer(path))
	if err := c.CommandContext(within(t, 10*time.Second), "true").Run(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	awaitNone(t, c)
}

// awaitNone waits until the agent has no processes.
func awaitNone(t *testing.T, c *client.Client) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		ps, err := c.Processes(within(t, 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if len(ps) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left over: %+v", ps)
		}
	}
}

// lastError reads frames until the end and returns the code of the Error frame
// that came, if any.
func lastError(t *testing.T, nc net.Conn) proto.Code {
	t.Helper()
	var code proto.Code
	for r := proto.NewReader(nc); ; {
		typ, payload, err := r.Next()
		if err != nil {
			if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
				t.Error("the agent neither answered nor hung up")
			}
			return code
		}
		if typ == proto.TypeError {
			var e proto.Error
			if err := json.Unmarshal(payload, &e); err != nil {
				t.Error(err)
			}
			code = e.Code
			nc.Close() // as a client does
			return code
		}
	}
}

func TestTooManyOperations(t *testing.T) {
	path := serveSocket(t, agent.Options{MaxConns: 2})
	c := client.New(dialer(path))
	ctx := within(t, 20*time.Second)
	var ends []io.Closer
	for range 2 {
		cmd := c.CommandContext(ctx, "cat")
		in, _ := cmd.StdinPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, in)
		defer cmd.Wait()
	}
	if _, err := c.Hello(ctx); !errors.Is(err, client.ErrBusy) {
		t.Errorf("third operation: %v, want ErrBusy", err)
	}
	for _, e := range ends {
		e.Close()
	}
}

// short is a listener that cannot accept at first.
type short struct {
	net.Listener
	failures []error
}

func (l *short) Accept() (net.Conn, error) {
	if len(l.failures) > 0 {
		err := l.failures[0]
		l.failures = l.failures[1:]
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
	}
	return l.Listener.Accept()
}

// TestShortageEndsNothing checks that an agent outlives a lack of descriptors.
func TestShortageEndsNothing(t *testing.T) {
	p := newPipes()
	serveOn(t, &short{p, []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM}}, agent.Options{})
	if _, err := client.New(p.dial).Hello(within(t, 10*time.Second)); err != nil {
		t.Error(err)
	}
	failed := &short{newPipes(), []error{syscall.EINVAL}}
	if err := agent.Serve(within(t, 10*time.Second), failed, agent.Options{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Serve with a broken listener: %v", err)
	}
}

// script is an agent that answers any operation with fixed bytes.
func script(t *testing.T, answer []byte) *client.Client {
	t.Helper()
	p := newPipes()
	t.Cleanup(func() { p.Close() })
	go func() {
		for {
			nc, err := p.Accept()
			if err != nil {
				return
			}
			go func() {
				defer nc.Close()
				go func() { _, _ = io.Copy(io.Discard, nc) }()
				_, _ = nc.Write(answer)
			}()
		}
	}()
	return client.New(p.dial)
}

// TestHostileAgent answers each kind of call with what no agent of ours would,
// and checks that the client returns an error that says so.
func TestHostileAgent(t *testing.T) {
	started := valueFrame(proto.TypeReply, proto.Started{ID: 1, PID: 2})
	info := frame(proto.TypeReply, `{"name":"x","mode":420}`)
	empty := frame(proto.TypeReply, `{}`)
	huge := append([]byte{byte(proto.TypeReply)}, 0xff, 0xff, 0xff, 0xff)
	run := func(c *client.Client) error {
		cmd := c.CommandContext(within(t, 10*time.Second), "x")
		cmd.Stdin = strings.NewReader("in")
		return cmd.Run()
	}
	read := func(c *client.Client) error { _, err := c.FS().ReadFile("x"); return err }
	list := func(c *client.Client) error { _, err := c.FS().ReadDir("x"); return err }
	hello := func(c *client.Client) error { _, err := c.Hello(t.Context()); return err }
	for name, tc := range map[string]struct {
		answer []byte
		call   func(*client.Client) error
		want   error
	}{
		"hello: nothing":        {nil, hello, client.ErrDisconnected},
		"hello: cut off":        {empty[:6], hello, client.ErrDisconnected},
		"hello: too large":      {huge, hello, client.ErrProtocol},
		"hello: wrong frame":    {frame(proto.TypeData, "x"), hello, client.ErrProtocol},
		"hello: not JSON":       {frame(proto.TypeReply, "x"), hello, client.ErrProtocol},
		"hello: bad error":      {frame(proto.TypeError, "x"), hello, client.ErrProtocol},
		"exec: no exit":         {started, run, client.ErrDisconnected},
		"exec: wrong frame":     {slices.Concat(started, frame(proto.TypeItem, "{}")), run, client.ErrProtocol},
		"exec: exit first":      {valueFrame(proto.TypeExit, proto.Exit{}), run, client.ErrProtocol},
		"exec: bad exit":        {slices.Concat(started, frame(proto.TypeExit, "x")), run, client.ErrProtocol},
		"exec: too much credit": {slices.Concat(started, frame(proto.TypeCredit, "\xff\xff\xff\xff")), run, client.ErrProtocol},
		"exec: bad credit":      {slices.Concat(started, frame(proto.TypeCredit, "x")), run, client.ErrProtocol},
		"read: more than asked": {slices.Concat(info, frame(proto.TypeData, strings.Repeat("x", 1<<20))), read, client.ErrProtocol},
		"read: wrong frame":     {slices.Concat(info, frame(proto.TypeStdout, "x")), read, client.ErrProtocol},
		"read: cut off":         {slices.Concat(info, frame(proto.TypeData, "x")[:5]), read, client.ErrDisconnected},
		"readdir: path as name": {frame(proto.TypeItem, `[{"name":"../../etc/passwd"}]`), list, client.ErrProtocol},
		"readdir: empty name":   {frame(proto.TypeItem, `[{"name":""}]`), list, client.ErrProtocol},
		"tar: wrong frame":      {slices.Concat(empty, frame(proto.TypeStderr, "x")), func(c *client.Client) error { return c.FS().TarOut(t.Context(), "x", io.Discard) }, client.ErrProtocol},
		"tar: cut off":          {slices.Concat(empty, frame(proto.TypeData, "x")), func(c *client.Client) error { return c.FS().TarOut(t.Context(), "x", io.Discard) }, client.ErrDisconnected},
		"renew: other identity": {valueFrame(proto.TypeReply, proto.RenewReply{Generation: proto.Generation{9}, Random: []byte{1}}), func(c *client.Client) error {
			_, err := c.Renew(t.Context(), identity(1))
			return err
		}, client.ErrProtocol},
	} {
		if err := tc.call(script(t, tc.answer)); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

// TestEndlessOutput checks that Output of a guest which prints for ever ends
// with the command, and keeps only so much.
func TestEndlessOutput(t *testing.T) {
	if testing.Short() {
		t.Log("in short mode too: it takes a second")
	}
	var answer bytes.Buffer
	answer.Write(valueFrame(proto.TypeReply, proto.Started{ID: 1, PID: 2}))
	chunk := frame(proto.TypeStdout, strings.Repeat("x", 1<<20))
	for range client.MaxOutput>>20 + 2 {
		answer.Write(chunk)
	}
	answer.Write(valueFrame(proto.TypeExit, proto.Exit{}))
	out, err := script(t, answer.Bytes()).Command("yes").Output()
	if !errors.Is(err, client.ErrTooLarge) || len(out) != client.MaxOutput {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}

// FuzzAgent sends any bytes after any handshake. The agent must survive, which
// the next operation shows.
func FuzzAgent(f *testing.F) {
	dir := f.TempDir()
	f.Add("open", `{"path":"f","flag":66,"mode":420}`, string(frame(proto.TypeWriteAt, "\x00\x00\x00\x00\x00\x00\x00\x00data")))
	f.Add("tar-in", `{"path":"d"}`, string(frame(proto.TypeData, "x"))+string(frame(proto.TypeEOF, "")))
	exec, _ := proto.Encode(proto.ExecRequest{Path: "/bin/true", Args: []proto.Text{"true"}, Stdin: true})
	f.Add("exec", string(exec), string(frame(proto.TypeData, "x")))
	f.Add("exec", string(exec), string(frame(proto.TypeLeave, ""))+string(frame(proto.TypeData, "x")))
	f.Add("attach", `{"id":1,"stdin":true}`, string(frame(proto.TypeEOF, "")))
	f.Add("readdir", `{"path":"."}`, "")
	p := newPipes()
	serveOn(f, p, agent.Options{Dir: dir})
	c := client.New(p.dial)
	f.Fuzz(func(t *testing.T, op, request, rest string) {
		if !harmless(proto.Op(op), request) {
			return
		}
		nc, err := p.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.CopyN(io.Discard, nc, 1<<20)
			nc.Close()
		}()
		_, _ = nc.Write(append(rawHandshake(proto.Op(op), request), rest...))
		nc.Close()
		<-done
		if _, err := c.Hello(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
	})
}

// harmless keeps the fuzzer from asking for what would harm its host: the
// agent does as it is told.
func harmless(op proto.Op, request string) bool {
	switch op {
	case proto.OpExec:
		var r proto.ExecRequest
		return proto.Decode([]byte(request), &r) != nil || r.Path == "/bin/true"
	case proto.OpOpen, proto.OpTarIn, proto.OpRemove, proto.OpRmAll, proto.OpRename, proto.OpSymlink, proto.OpMkdir,
		proto.OpMkdirAll, proto.OpChmod, proto.OpChown, proto.OpChtimes, proto.OpTarOut, proto.OpReadDir, proto.OpWatch:
		var r proto.PathRequest
		if json.Unmarshal([]byte(request), &r) != nil {
			return true
		}
		inside := func(p proto.Text) bool {
			return !strings.HasPrefix(string(p), "/") && !strings.Contains(string(p), "..")
		}
		return inside(r.Path) && inside(r.To)
	}
	return true
}
