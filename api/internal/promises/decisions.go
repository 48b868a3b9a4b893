package promises

import (
	"bytes"
	"context"
	"io"
	"strings"
	"time"

	"github.com/forkvm/forkvm/api"
)

var decisions = []Promise{
	{"D01", "ForkOfPaused", "Fork means the live state, now. It works on a paused sandbox: the children run, the parent stays paused.", func(c *C) {
		s := c.create()
		c.keeper(s, "live")
		c.pause(s)
		child := c.forks(s, 1)[0]
		is(c, "a process's memory", c.kept(child), "live")
		is(c, "state of the parent", c.record(s).State, api.Paused)
	}},
	{"D02", "CountOfForks", "A fork makes 1 to 100 children of one capture; a fork of a fork and a snapshot of a fork work.", func(c *C) {
		s := c.create()
		for _, n := range []int{-1, 101} {
			_, err := c.Fork(c.ctx(), s.ID, api.ForkRequest{Count: n})
			c.code(err, api.BadRequest, "count")
		}
		child := c.forks(s, 1)[0]
		snap := c.snapshot(child, "")
		is(c, "sandbox of a fork's snapshot", snap.SandboxID, child.ID)
		is(c, "parent of a fork's fork", ptr(c.forks(child, 1)[0].ParentSandboxID), child.ID)
	}},
	{"D04", "NamesNeedNotBeUnique", "Names need not be unique; ids are the key, and sort by time.", func(c *C) {
		a := c.create(func(r *api.CreateRequest) { r.Name = "same" })
		time.Sleep(2 * time.Millisecond) // ids are sorted by the millisecond
		b := c.create(func(r *api.CreateRequest) { r.Name = "same" })
		if a.ID >= b.ID {
			c.Errorf("%s was made before %s", a.ID, b.ID)
		}
		for _, id := range []string{"", ".", "../" + a.ID, a.ID + "/x", strings.ToUpper(a.ID)} {
			_, err := c.Get(c.ctx(), id)
			c.code(err, api.NotFound)
		}
	}},
	{"D05", "Lineage", "A record has the parent, the source snapshot, either may be null, and the template it goes back to.", func(c *C) {
		s := c.create()
		r := c.from(c.snapshot(s, "").ID)
		child := c.forks(r, 1)[0]
		is(c, "template", child.Template, c.target.Template)
		is(c, "parent", ptr(child.ParentSandboxID), r.ID)
		is(c, "snapshot of a fork", child.SourceSnapshotID, nil)
		is(c, "parent of one from a snapshot", r.ParentSandboxID, nil)
	}},
	{"D06", "TwoClocks", "timeout_seconds counts active time, auto_delete_seconds paused time.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) {
			r.TimeoutSeconds, r.OnTimeout, r.AutoDeleteSeconds = api.Set[int64](1000), api.TimeoutPauses, api.Set[int64](2000)
		})
		p := c.pause(s)
		is(c, "deadline", p.AutoDeleteAt.Sub(ptr(p.PausedAt)), 2000*time.Second)
		is(c, "expiry", p.ExpiresAt, nil)
	}},
	{"D07", "ReadsDoNotResume", "Reads of a paused sandbox's record do not resume it.", func(c *C) {
		s := c.create()
		c.pause(s)
		c.record(s)
		if _, err := c.Stats(c.ctx(), s.ID); err != nil {
			c.Error(err)
		}
		is(c, "state", c.record(s).State, api.Paused)
	}},
	{"D09", "NothingIsClamped", "What is out of range or unknown is refused with a message that names the field.", func(c *C) {
		s := c.create()
		for field, set := range map[string]func(*api.CreateRequest){
			"timeout_seconds":     func(r *api.CreateRequest) { r.TimeoutSeconds = api.Set[int64](0) },
			"on_timeout":          func(r *api.CreateRequest) { r.OnTimeout = "explode" },
			"auto_delete_seconds": func(r *api.CreateRequest) { r.AutoDeleteSeconds = api.Set[int64](-1) },
			"name":                func(r *api.CreateRequest) { r.Name = strings.Repeat("n", api.MaxName+1) },
			"env_vars":            func(r *api.CreateRequest) { r.EnvVars = map[string]string{"A=B": "1"} },
			"metadata":            func(r *api.CreateRequest) { r.Metadata = map[string]string{"": "1"} },
			"template":            func(r *api.CreateRequest) { r.Template = "../etc" },
		} {
			r := api.CreateRequest{Template: c.target.Template}
			set(&r)
			_, err := c.Create(c.ctx(), r)
			c.code(err, api.BadRequest, field)
		}
		for field, r := range map[string]api.ExecRequest{
			"argv":             {},
			"timeout_seconds":  {Command: api.Command{Argv: []string{"true"}, TimeoutSeconds: api.Set[int64](-1)}},
			"cwd":              {Command: api.Command{Argv: []string{"true"}, Cwd: "relative"}},
			"env_vars":         {Command: api.Command{Argv: []string{"true"}, EnvVars: map[string]string{"1": ""}}},
			"max_output_bytes": {Command: api.Command{Argv: []string{"true"}}, MaxOutputBytes: api.MaxOutput + 1},
		} {
			_, err := c.Exec(c.ctx(), s.Access(), r)
			c.code(err, api.BadRequest, field)
		}
		_, err := c.Create(c.ctx(), api.CreateRequest{Template: "no-such-template"})
		c.code(err, api.NotFound, "no-such-template")
	}},
	{"D13", "Processes", "A process has an id: it can be listed, attached to, signalled and waited for. A time-out ends the whole session.", func(c *C) {
		s := c.create()
		p := c.start(s, "trap 'exit 9' TERM; echo begun; while true; do sleep 0.1; done")
		read, write := io.Pipe()
		attached := make(chan error, 1)
		go func() {
			_, err := c.Attach(c.ctx(), s.Access(), p.ID, api.Streams{Stdout: write})
			attached <- err
		}()
		begun := make([]byte, 6)
		if _, err := io.ReadFull(read, begun); err != nil || string(begun) != "begun\n" {
			c.Errorf("attached: %q, %v", begun, err)
		}
		go io.Copy(io.Discard, read)
		if err := c.Control(c.ctx(), s.Access(), p.ID, api.Control{Signal: "KILL"}); err != nil {
			c.Error(err)
		}
		exit, err := c.WaitProcess(c.ctx(), s.Access(), p.ID)
		if err != nil || exit.Signal != "SIGKILL" || exit.Code != -1 {
			c.Errorf("killed: %+v, %v", exit, err)
		}
		if err := <-attached; err != nil {
			c.Errorf("who was attached: %v", err)
		}
		_, err = c.Exec(c.ctx(), s.Access(), api.ExecRequest{Command: api.Command{
			Argv: []string{"sh", "-c", "sleep 1000 & echo $! >/left; sleep 1000"}, TimeoutSeconds: api.Set[int64](3),
		}})
		c.code(err, api.ExecTimeout)
		c.sh(s, "test -s /left && while test -d /proc/$(cat /left); do sleep 0.1; done") // it is killed, and ends soon after
	}},
	{"D13", "Interactive", "A terminal has input, output and a size that can be changed.", func(c *C) {
		s := c.create()
		in, typed := io.Pipe()
		var out bytes.Buffer
		control := make(chan api.Control, 1)
		control <- api.Control{Resize: &api.WinSize{Rows: 33, Cols: 77}}
		go func() {
			io.WriteString(typed, "while test \"$(stty size 2>/dev/null || echo 33 77)\" != '33 77'; do sleep 0.1; done; echo sized; exit 5\n")
		}()
		exit, err := c.Service.Run(c.ctx(), s.Access(), api.StartRequest{
			Command: api.Command{Argv: []string{"sh"}}, TTY: &api.WinSize{Rows: 24, Cols: 80}, Stdin: true,
		}, api.Streams{Stdin: in, Stdout: &out, Control: control})
		typed.Close()
		if err != nil || exit.Code != 5 || !strings.Contains(out.String(), "sized") {
			c.Errorf("%+v, %v, %q", exit, err, out.String())
		}
	}},
	{"D14", "FilesStream", "Files and trees go both ways as streams; stat, realpath, list, mkdir, rename, remove and watch are calls.", func(c *C) {
		s := c.create()
		const size = 2 << 20
		if _, err := c.WriteFile(c.ctx(), s.Access(), "/big", io.LimitReader(zeros{}, size), api.WriteOptions{}); err != nil {
			c.Fatal(err)
		}
		info, err := c.Service.Stat(c.ctx(), s.Access(), "/big")
		if err != nil || info.Size != size || info.Type != api.RegularFile {
			c.Errorf("%+v, %v", info, err)
		}
		r, _, err := c.ReadFile(c.ctx(), s.Access(), "/big")
		if err != nil {
			c.Fatal(err)
		}
		n, err := io.Copy(io.Discard, r)
		r.Close()
		if err != nil || n != size {
			c.Errorf("%d bytes, %v", n, err)
		}
		if _, err := c.Mkdir(c.ctx(), s.Access(), "/d/e"); err != nil {
			c.Error(err)
		}
		if _, err := c.Rename(c.ctx(), s.Access(), "/big", "/d/e/moved"); err != nil {
			c.Error(err)
		}
		list, err := c.ListFiles(c.ctx(), s.Access(), "/d/e")
		if err != nil || len(list.Files) != 1 || list.Files[0].Name != "moved" {
			c.Errorf("%+v, %v", list, err)
		}
		tree, err := c.ReadTree(c.ctx(), s.Access(), "/d")
		if err != nil {
			c.Fatal(err)
		}
		err = c.WriteTree(c.ctx(), s.Access(), "/copy", tree)
		tree.Close()
		if err != nil {
			c.Error(err)
		}
		c.sh(s, "ln -s ../d/e /copy/link")
		if real, err := c.RealPath(c.ctx(), s.Access(), "/copy/link/moved"); err != nil || real.Path != "/d/e/moved" {
			c.Errorf("%+v, %v", real, err)
		}
		is(c, "a file of the copy", c.sh(s, "wc -c </copy/e/moved"), "2097152")
		if err := c.Remove(c.ctx(), s.Access(), "/d", api.RemoveOptions{}); err == nil {
			c.Error("a directory that is not empty was removed")
		}
		if err := c.Remove(c.ctx(), s.Access(), "/d", api.RemoveOptions{Recursive: true}); err != nil {
			c.Error(err)
		}
	}},
	{"D14", "Watch", "What happens in a directory is told as it happens.", func(c *C) {
		s := c.create()
		c.sh(s, "mkdir -p /watched")
		ctx, cancel := contextWithCancel(c)
		defer cancel()
		ready, seen := make(chan struct{}), make(chan api.FileEvent, 100)
		go func() {
			_ = c.Watch(ctx, s.Access(), "/watched", func() { close(ready) }, func(e api.FileEvent) error { seen <- e; return nil })
		}()
		<-ready
		c.write(s, "/watched/file", "x")
		for {
			select {
			case e := <-seen:
				if e.Name == "file" {
					return
				}
			case <-c.ctx().Done():
				c.Fatal("nothing was told of a new file")
			}
		}
	}},
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func contextWithCancel(c *C) (context.Context, context.CancelFunc) {
	return context.WithCancel(c.ctx())
}
