package promises

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/forkvm/forkvm/api"
)

var rest = []Promise{
	{"X01", "TimeoutIsOfTheSession", "timeout_seconds counts the current session, not idleness; it is armed again at each resume; absent is never.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) { r.TimeoutSeconds = api.Set[int64](1000) })
		is(c, "length of the session", s.ExpiresAt.Sub(ptr(s.StartedAt)), 1000*time.Second)
		c.pause(s)
		is(c, "while it is paused", c.record(s).ExpiresAt, nil)
		r := c.resume(s)
		if !r.ExpiresAt.After(*s.ExpiresAt) {
			c.Errorf("resumed, it expires at %v; before at %v", r.ExpiresAt, s.ExpiresAt)
		}
		is(c, "without", c.create().ExpiresAt, nil)
	}},
	{"X02", "AutoDelete", "auto_delete_seconds runs only while paused; 0 deletes at pause; the deadline is shown only then.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) { r.AutoDeleteSeconds = api.Set[int64](1000) })
		is(c, "while it runs", s.AutoDeleteAt, nil)
		p := c.pause(s)
		is(c, "deadline", p.AutoDeleteAt.Sub(ptr(p.PausedAt)), 1000*time.Second)
		is(c, "resumed", c.resume(s).AutoDeleteAt, nil)
		s = c.create(func(r *api.CreateRequest) { r.AutoDeleteSeconds = api.Set[int64](0) })
		c.pause(s)
		if _, err := c.Wait(c.ctx(), s.ID, api.WaitRequest{States: []api.State{api.Running}, Timeout: limit}); err == nil {
			c.Error("it was not deleted")
		}
		_, err := c.Create(c.ctx(), api.CreateRequest{Settings: api.Settings{AutoDeleteSeconds: api.Set[int64](api.MaxAutoDelete + 1)}})
		c.code(err, api.BadRequest, "auto_delete_seconds")
	}},
	{"X03", "UseResumes", "A command or a file call on a paused sandbox resumes it; a change of its record does not.", func(c *C) {
		s := c.create()
		c.pause(s)
		name := "renamed"
		u, err := c.Update(c.ctx(), s.ID, api.Patch{Name: &name})
		if err != nil {
			c.Fatal(err)
		}
		is(c, "state after a change", u.State, api.Paused)
		is(c, "a command", c.sh(s, "echo fine"), "fine")
		is(c, "state", c.record(s).State, api.Running)
		c.pause(s)
		c.write(s, "/file", "text")
		is(c, "state", c.record(s).State, api.Running)
	}},
	{"X04", "ResumeGivesANewToken", "Resume returns a new token; the old one is dead.", func(c *C) {
		s := c.create()
		c.pause(s)
		r := c.resume(s)
		_, err := c.Processes(c.ctx(), s.Access())
		c.code(err, api.Unauthorized)
		is(c, "with the new", c.sh(r, "echo fine"), "fine")
	}},
	{"X05", "ErrorsAreDistinct", "A non-zero exit is no error; a time-out and a failure to start are errors of their own.", func(c *C) {
		s := c.create()
		is(c, "exit code", c.run(s, "exit 127").Code, 127)
		start := time.Now()
		_, err := c.Exec(c.ctx(), s.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"sleep", "1000"}, TimeoutSeconds: api.Set[int64](1)}})
		c.code(err, api.ExecTimeout)
		if d := time.Since(start); d < time.Second {
			c.Errorf("a time-out of 1 s after %v", d)
		}
		for _, bad := range []api.Command{{Argv: []string{"/no/such/file"}}, {Argv: []string{"no-such-program"}}, {Argv: []string{"/etc"}}, {Argv: []string{"echo"}, Cwd: "/no/such/dir"}} {
			_, err := c.Exec(c.ctx(), s.Access(), api.ExecRequest{Command: bad})
			c.code(err, api.SpawnFailed)
		}
	}},
	{"X06", "OutputIsCapped", "Blocking exec caps its output, and says so.", func(c *C) {
		s := c.create()
		r, err := c.Exec(c.ctx(), s.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"sh", "-c", "head -c 3000000 /dev/zero; echo end >&2"}}})
		if err != nil {
			c.Fatal(err)
		}
		is(c, "bytes", len(r.Stdout), api.DefaultOutput)
		is(c, "truncated", r.Truncated, true)
		is(c, "the other stream", string(r.Stderr), "end\n")
		r, err = c.Exec(c.ctx(), s.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"echo", "12345"}}, MaxOutputBytes: 6})
		if err != nil || string(r.Stdout) != "12345\n" || r.Truncated {
			c.Errorf("output that just fits: %+v, %v", r, err)
		}
	}},
	{"X07", "IdleTimeout", "A time-out for idleness begins again with each output; all of that arrives.", func(c *C) {
		s := c.create()
		var out bytes.Buffer
		r := api.StartRequest{Command: api.Command{Argv: []string{"sh", "-c", "for i in 1 2 3 4; do echo $i; sleep 1; done; sleep 1000"}}, IdleTimeoutSeconds: api.Set[int64](3)}
		_, err := c.Service.Run(c.ctx(), s.Access(), r, api.Streams{Stdout: &out})
		c.code(err, api.ExecTimeout)
		is(c, "output", out.String(), "1\n2\n3\n4\n")
	}},
	{"X08", "StreamCut", "If a client goes, the command goes on in the guest, and can be attached to.", func(c *C) {
		s := c.create()
		ctx, cancel := contextWithCancel(c)
		var id uint64
		_, err := c.Service.Run(ctx, s.Access(), api.StartRequest{Command: api.Command{Argv: []string{"sh", "-c", "echo begin; while ! test -e /go; do sleep 0.1; done; echo end; exit 4"}}},
			api.Streams{Started: func(p api.Process) { id = p.ID }, Stdout: writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })})
		if err == nil {
			c.Fatal("a stream that was cut ended well")
		}
		c.write(s, "/go", "")
		var out bytes.Buffer
		exit, err := c.Attach(c.ctx(), s.Access(), id, api.Streams{Stdout: &out})
		if err != nil || exit.Code != 4 || !strings.HasSuffix(out.String(), "end\n") {
			c.Errorf("%+v, %v, %q", exit, err, out.String())
		}
	}},
	{"X09", "Files", "Paths are absolute; .. and NUL are refused; directories are made on writing; what is missing is not found.", func(c *C) {
		s := c.create()
		for _, path := range []string{"", "relative", "/a/../b", "/a\x00b", "/" + strings.Repeat("x", 5000)} {
			_, _, err := c.ReadFile(c.ctx(), s.Access(), path)
			c.code(err, api.BadRequest, "path")
			_, err = c.WriteFile(c.ctx(), s.Access(), path, strings.NewReader("x"), api.WriteOptions{})
			c.code(err, api.BadRequest, "path")
		}
		c.write(s, "/new/dir/file", "text")
		is(c, "content", c.read(s, "/new/dir/file"), "text")
		_, _, err := c.ReadFile(c.ctx(), s.Access(), "/missing")
		c.code(err, api.NotFound)
		c.sh(s, "ln -s /etc /new/link")
		r, err := c.ReadTree(c.ctx(), s.Access(), "/new")
		if err != nil {
			c.Fatal(err)
		}
		defer r.Close()
		for archive := tar.NewReader(r); ; {
			h, err := archive.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				c.Fatal(err)
			}
			if strings.Contains(h.Name, "link/") {
				c.Errorf("a link was followed: %s", h.Name)
			}
		}
	}},
	{"X13", "PatchIsStrict", "An empty change is refused, and maps are replaced as a whole.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) { r.Metadata = map[string]string{"a": "1", "b": "1"} })
		_, err := c.Update(c.ctx(), s.ID, api.Patch{})
		c.code(err, api.BadRequest)
		u, err := c.Update(c.ctx(), s.ID, api.Patch{Metadata: map[string]string{"b": "2"}})
		if err != nil || len(u.Metadata) != 1 || u.Metadata["b"] != "2" {
			c.Errorf("%+v, %v", u, err)
		}
	}},
	{"X16", "SourceSnapshot", "A sandbox's record has the id of the snapshot that it was made from.", func(c *C) {
		s := c.create()
		is(c, "of one from a template", s.SourceSnapshotID, nil)
		snap := c.snapshot(s, "")
		is(c, "source", ptr(c.from(snap.ID).SourceSnapshotID), snap.ID)
	}},
	{"X17", "FailedIsListed", "A failed sandbox is listed, with a reason, until it is deleted.", func(c *C) {
		s := c.create()
		ctx, cancel := contextWithCancel(c)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = c.Exec(ctx, s.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"sh", "-c", "reboot -f || reboot"}}})
		})
		w, err := c.Wait(c.ctx(), s.ID, api.WaitRequest{States: []api.State{api.Failed}, Timeout: limit})
		cancel()
		wg.Wait()
		if err != nil || w.State != api.Failed || w.Reason == "" {
			c.Fatalf("%+v, %v", w, err)
		}
		_, err = c.Exec(c.ctx(), s.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"true"}}})
		c.code(err, api.Gone, "failed")
		page, err := c.List(c.ctx(), api.SandboxQuery{States: []api.State{api.Failed}})
		if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != s.ID {
			c.Errorf("%+v, %v", page, err)
		}
	}},
	{"X18", "StartCommandIsCapturedRunning", "A template is built of a file and a context; its start command is captured running; a build that fails leaves it as it was.", builtTemplate},
	{"X18", "TemplateInUse", "A template that sandboxes or snapshots go back to cannot be deleted; built again, it leaves them as they are.", templateInUse},
	{"X19", "ForkLeavesTheParent", "A fork is one capture for all children; the parent's id and expiry are untouched.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) { r.TimeoutSeconds = api.Set[int64](1000) })
		c.sh(s, "head -c 16 /dev/urandom | sha256sum >/once")
		children := c.forks(s, 2)
		is(c, "of one instant", c.sh(children[0], "cat /once"), c.sh(children[1], "cat /once"))
		after := c.record(s)
		is(c, "token", after.AccessToken, s.AccessToken)
		is(c, "expiry", after.ExpiresAt.Equal(*s.ExpiresAt), true)
	}},
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
