package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/guestagent/proto"
)

const (
	replyFrame = proto.TypeReply
	dataFrame  = proto.TypeData
)

func frame(t proto.Type, payload string) []byte {
	var buf bytes.Buffer
	if err := proto.NewWriter(&buf).Write(t, []byte(payload)); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// endless is content without an end.
var endless = readerFunc(func(b []byte) (int, error) { return len(b), nil })

// TestB27_DiskFull: a typed error, and the old file and the sandbox survive.
func TestB27_DiskFull(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 60*time.Second)
	dir := smallDisk(t, "1m")
	p := filepath.Join(dir, "f")
	write(t, g, p, "old")
	_, err := g.WriteFile(ctx, p, endless, api.WriteOptions{})
	if e := want(t, err, api.NotEnoughSpace); e.StatusCode() != 507 || e.Details["errno"] != "ENOSPC" {
		t.Errorf("%v %v", e, e.Details)
	}
	leftovers(t, dir, "f")
	archive := io.MultiReader(tarHeader(t, "big", 1<<30), endless)
	want(t, g.WriteTree(ctx, dir, archive), api.NotEnoughSpace)
	if got := read(t, g, p); got != "old" {
		t.Errorf("%q", got)
	}
	if res := exec(t, g, api.ExecRequest{Command: sh("echo alive")}); string(res.Stdout) != "alive\n" {
		t.Errorf("%+v", res)
	}
}

// TestErrnos: what a guest's kernel says is nobody's internal error.
func TestErrnos(t *testing.T) {
	for errno, code := range map[syscall.Errno]api.Code{
		syscall.ENOENT: api.NotFound, syscall.ENOSPC: api.NotEnoughSpace, syscall.EDQUOT: api.NotEnoughSpace,
		syscall.EISDIR: api.BadRequest, syscall.ENOTDIR: api.BadRequest, syscall.ELOOP: api.BadRequest, syscall.ENAMETOOLONG: api.BadRequest,
		syscall.EEXIST: api.Conflict, syscall.ENOTEMPTY: api.Conflict, syscall.EACCES: api.Conflict, syscall.EROFS: api.Conflict,
		syscall.EBUSY: api.Conflict, syscall.EIO: api.InternalError, syscall.Errno(9999): api.Conflict,
	} {
		err := fail(t.Context(), &fs.PathError{Op: "open", Path: "/x", Err: errno})
		if e := want(t, err, code); !errors.Is(err, errno) || e.Details["errno"] != errnoName(errno) {
			t.Errorf("%v: %v, %v", errno, err, e.Details)
		}
	}
}

// TestLost: a machine that went is told from a guest that says something. An
// errno of this host's network is none of the guest's.
func TestLost(t *testing.T) {
	refused := fmt.Errorf("client: exec: dial: %w", &net.OpError{Op: "dial", Err: syscall.ENOENT})
	for _, err := range []error{
		client.ErrDisconnected, client.ErrGeneration, refused, &fs.PathError{Op: "open", Path: "/x", Err: refused}, io.ErrUnexpectedEOF,
	} {
		got := fail(t.Context(), err)
		if want(t, got, api.Gone); !errors.Is(got, ErrLost) {
			t.Errorf("%v: %v", err, got)
		}
	}
	for err, code := range map[error]api.Code{client.ErrUnsupported: api.Conflict, client.ErrVersion: api.Conflict, client.ErrBadRequest: api.BadRequest} {
		want(t, fail(t.Context(), err), code)
	}
	if err := fail(t.Context(), fmt.Errorf("x: %w", client.ErrProtocol)); errors.Is(err, ErrLost) {
		t.Errorf("a guest that is there: %v", err)
	}
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := fail(ctx, client.ErrDisconnected); err != why {
		t.Errorf("%v", err)
	}
}

// TestLostMachine carries out everything in a machine that goes at once, and in
// one that answers nonsense: each call fails, and as the API says.
func TestLostMachine(t *testing.T) {
	for name, answer := range map[string][]byte{
		"goes": nil, "half a frame": frame(replyFrame, "{}")[:3], "nonsense": []byte(strings.Repeat("\xff", 100)), "another frame": frame(proto.TypeStderr, "x"),
		"no error": frame(proto.TypeError, "{"), "odd error": frame(proto.TypeError, `{"code":"internal","message":"x"}`),
	} {
		t.Run(name, func(t *testing.T) {
			g := answering(answer)
			ctx := within(t, 30*time.Second)
			c := api.Command{Argv: []string{"x"}}
			for call, do := range map[string]func() error{
				"exec":      func() error { _, err := g.Exec(ctx, api.ExecRequest{Command: c}); return err },
				"run":       func() error { _, err := g.Run(ctx, api.StartRequest{Command: c}, api.Streams{}); return err },
				"start":     func() error { _, err := g.Start(ctx, api.StartRequest{Command: c}); return err },
				"processes": func() error { _, err := g.Processes(ctx); return err },
				"attach":    func() error { _, err := g.Attach(ctx, 1, api.Streams{Stdin: strings.NewReader("x")}); return err },
				"wait":      func() error { _, err := g.WaitProcess(ctx, 1); return err },
				"control":   func() error { return g.Control(ctx, 1, api.Control{Signal: "TERM"}) },
				"read":      func() error { _, _, err := g.ReadFile(ctx, "/x"); return err },
				"write":     func() error { _, err := g.WriteFile(ctx, "/x", strings.NewReader("x"), api.WriteOptions{}); return err },
				"stat":      func() error { _, err := g.Stat(ctx, "/x"); return err },
				"list":      func() error { _, err := g.ListFiles(ctx, "/x"); return err },
				"realpath":  func() error { _, err := g.RealPath(ctx, "/x"); return err },
				"mkdir":     func() error { _, err := g.Mkdir(ctx, "/x"); return err },
				"rename":    func() error { _, err := g.Rename(ctx, "/x", "/y"); return err },
				"remove":    func() error { return g.Remove(ctx, "/x", api.RemoveOptions{}) },
				"tree":      func() error { _, err := g.ReadTree(ctx, "/x"); return err },
				"untar":     func() error { return g.WriteTree(ctx, "/x", strings.NewReader("x")) },
				"watch":     func() error { return g.Watch(ctx, "/x", nil, func(api.FileEvent) error { return nil }) },
			} {
				err := do()
				e, ok := err.(*api.Error)
				if !ok || e.StatusCode() == 500 {
					t.Errorf("%s: %v (%T)", call, err, err)
				}
				if ok && answer == nil && !errors.Is(err, ErrLost) {
					t.Errorf("%s: %v, want ErrLost", call, err)
				}
			}
		})
	}
}
