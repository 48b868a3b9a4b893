package main

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/server"
)

// What the server of a fakeService takes.
const (
	fakeKey     = "fk_of_a_test"
	fakeUserKey = "fk_of_no_administrator"
	fakeToken   = "tok_of_a_test"
)

var fakeTime = time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)

// fakeService has three sandboxes and a snapshot, in pages of one. What is asked
// of it changes nothing.
type fakeService struct {
	api.Service // panics if there is more to ask
	boxes       []api.Sandbox
	snaps       []api.Snapshot
}

func newFakeService() *fakeService {
	s := &fakeService{}
	for i, name := range []string{"web", "twice", "twice"} {
		at := fakeTime.Add(time.Duration(i) * time.Second)
		b := api.Sandbox{
			ID: api.NewID(api.SandboxPrefix, at), Name: name, State: api.Running, Template: "base", VCPUs: 1, MemoryBytes: 1 << 28,
			CreatedAt: at, StartedAt: &at, OnTimeout: api.TimeoutDestroys, AccessToken: fakeToken,
		}
		if i > 0 {
			b.ParentSandboxID = &s.boxes[0].ID
		}
		s.boxes = append(s.boxes, b)
	}
	at := fakeTime.Add(time.Minute)
	s.snaps = []api.Snapshot{{ID: api.NewID(api.SnapshotPrefix, at), Name: "ready", SandboxID: s.boxes[0].ID, Template: "base", CreatedAt: at}}
	return s
}

// start serves it until the test ends.
func (s *fakeService) start(t *testing.T) string {
	h := httptest.NewServer(s.handler())
	t.Cleanup(h.Close)
	return h.URL
}

func (s *fakeService) handler() http.Handler {
	return server.New(server.Config{
		Account: func(string) (api.Service, error) { return s, nil },
		Open: func(a api.Access) (server.Sandbox, error) {
			if a.Token != fakeToken {
				return nil, api.Errorf(api.Unauthorized, "wrong token")
			}
			return s, nil
		},
		Authenticate: func(key string) (string, bool) { return "team", key == fakeKey || key == fakeUserKey },
		Admin:        func(key string) bool { return key == fakeKey },
	})
}

func (s *fakeService) Create(_ context.Context, r api.CreateRequest) (*api.Sandbox, error) {
	b := s.boxes[0]
	b.ID, b.Metadata = api.NewID(api.SandboxPrefix, fakeTime), r.Metadata
	if r.FromSnapshot != "" {
		b.SourceSnapshotID = &r.FromSnapshot
	}
	return &b, nil
}

func (s *fakeService) Get(_ context.Context, id string) (*api.Sandbox, error) {
	for _, b := range s.boxes {
		if b.ID == id {
			return &b, nil
		}
	}
	return nil, api.Errorf(api.NotFound, "no such sandbox")
}

func (s *fakeService) List(_ context.Context, q api.SandboxQuery) (*api.SandboxPage, error) {
	if q.NamePrefix != "" {
		return &api.SandboxPage{}, nil
	}
	var i int
	fmt.Sscan(q.Cursor, &i)
	p := &api.SandboxPage{Sandboxes: s.boxes[i : i+1]}
	if i++; i < len(s.boxes) {
		p.NextCursor = fmt.Sprint(i)
	}
	return p, nil
}

func (s *fakeService) Update(ctx context.Context, id string, _ api.Patch) (*api.Sandbox, error) {
	return s.Get(ctx, id)
}

func (s *fakeService) Destroy(context.Context, string) error { return nil }

func (s *fakeService) Pause(ctx context.Context, id string) (*api.Sandbox, error) {
	return s.Get(ctx, id)
}

func (s *fakeService) Resume(ctx context.Context, id string) (*api.Sandbox, error) {
	return s.Get(ctx, id)
}

func (s *fakeService) Wait(ctx context.Context, id string, _ api.WaitRequest) (*api.Sandbox, error) {
	return s.Get(ctx, id)
}

// Fork makes one child, and fails to make another.
func (s *fakeService) Fork(context.Context, string, api.ForkRequest) (*api.ForkResult, error) {
	return &api.ForkResult{Children: []api.Forked{{Sandbox: &s.boxes[1]}, {Error: api.Errorf(api.OutOfCapacity, "no more")}}}, nil
}

func (s *fakeService) Stats(_ context.Context, id string) (*api.Stats, error) {
	return &api.Stats{SandboxID: id, State: api.Running, MemoryPrivateBytes: 3 << 20}, nil
}

// Sharing: the second has something in common with each of the others, and these
// have not.
func (s *fakeService) Sharing(context.Context, api.SharingQuery) (*api.Sharing, error) {
	out := &api.Sharing{Pairs: []api.SharingPair{
		{SandboxIDs: [2]string{s.boxes[1].ID, s.boxes[0].ID}, MemoryBytes: 7 << 20, DiskBytes: 1 << 20},
		{SandboxIDs: [2]string{s.boxes[2].ID, s.boxes[1].ID}, MemoryBytes: 5 << 20},
	}}
	for _, b := range s.boxes {
		out.Sandboxes = append(out.Sandboxes, api.SandboxSharing{SandboxID: b.ID})
	}
	return out, nil
}

func (s *fakeService) CreateSnapshot(context.Context, string, api.SnapshotRequest) (*api.Snapshot, error) {
	return &s.snaps[0], nil
}

func (s *fakeService) Snapshot(context.Context, string) (*api.Snapshot, error) {
	return &s.snaps[0], nil
}

func (s *fakeService) Snapshots(context.Context, api.SnapshotQuery) (*api.SnapshotPage, error) {
	return &api.SnapshotPage{Snapshots: s.snaps}, nil
}

func (s *fakeService) RenameSnapshot(context.Context, string, string) (*api.Snapshot, error) {
	return &s.snaps[0], nil
}

func (s *fakeService) DeleteSnapshot(context.Context, string) error { return nil }

// Events tells of a fork, and ends.
func (s *fakeService) Events(_ context.Context, q api.EventQuery, ready func(), f func(api.Event) error) error {
	ready()
	err := f(api.Event{Seq: q.After + 1, Time: fakeTime, Type: api.SandboxForked, SandboxID: q.SandboxID, Children: []string{"sb_child"}})
	if err != nil {
		return err
	}
	return api.Errorf(api.Gone, "that was all")
}

func (s *fakeService) Templates(context.Context) (*api.TemplateList, error) {
	return &api.TemplateList{Templates: []api.Template{{Name: "base", BuiltIn: true}, *fakeTemplate("web")}}, nil
}

func fakeTemplate(name string) *api.Template {
	return &api.Template{
		Name: name, Ready: true, CreatedAt: fakeTime, From: "base", VCPUs: 1, MemoryBytes: 1 << 28, Kernel: "6.18.5", Cmd: []string{"serve"},
		File: "FROM base\nRUN\tx \x1b[2J\n",
	}
}

func (s *fakeService) Template(_ context.Context, name string) (*api.Template, error) {
	if name == "none" {
		return nil, api.Errorf(api.NotFound, "no such template: %s", name)
	}
	return fakeTemplate(name), nil
}

func (s *fakeService) TemplateLog(_ context.Context, name string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("log of " + name + "\n")), nil
}

// DeleteTemplate: one is in use.
func (s *fakeService) DeleteTemplate(_ context.Context, name string) error {
	if name == "used" {
		return api.Errorf(api.Conflict, "template used is what 2 sandboxes of this server go back to")
	}
	return nil
}

// BuildTemplate logs what it is asked for, and what is in the context.
func (s *fakeService) BuildTemplate(_ context.Context, r api.BuildRequest, archive io.Reader, log io.Writer) (*api.Template, error) {
	names := []string{}
	for t := tar.NewReader(archive); archive != nil; {
		h, err := t.Next()
		if err == io.EOF {
			io.Copy(io.Discard, archive)
			break
		}
		if err != nil {
			return nil, api.Errorf(api.BadRequest, "context: %w", err)
		}
		names = append(names, h.Name)
	}
	fmt.Fprintf(log, "build %s args=%v vcpus=%d memory=%d disk=%d %v %v context=%q\n%s", r.Name, r.Args, r.VCPUs, r.MemoryBytes, r.DiskBytes,
		r.NoCache, r.Pull, names, r.File)
	if r.Name == "broken" {
		err := api.Errorf(api.BadRequest, "template: step 2 of 3, line 2: RUN x: exit code 4")
		err.Details = map[string]any{"step": 2}
		return nil, err
	}
	return fakeTemplate(r.Name), nil
}

// Run does what the words of a command say.
func (s *fakeService) Run(_ context.Context, _ api.Access, r api.StartRequest, st api.Streams) (*api.Exit, error) {
	switch r.Argv[0] {
	case "lookup":
		e := api.Errorf(api.SpawnFailed, "there is no such file")
		e.Details = map[string]any{"stage": "lookup", "errno": "ENOENT"}
		return nil, e
	case "start":
		return nil, api.Errorf(api.SpawnFailed, "permission denied")
	case "timeout":
		return nil, api.Errorf(api.ExecTimeout, "timed out")
	}
	st.Started(api.Process{ID: 1, Argv: r.Argv})
	if r.Stdin {
		io.Copy(st.Stdout, st.Stdin)
	}
	fmt.Fprintln(st.Stdout, strings.Join(r.Argv, " "), r.EnvVars, r.Cwd, r.User, r.TimeoutSeconds.Value() == nil)
	switch r.Argv[0] {
	case "seven":
		return &api.Exit{Code: 7}, nil
	case "killed":
		return &api.Exit{Code: -1, Signal: "SIGKILL"}, nil
	}
	return &api.Exit{}, nil
}

func (s *fakeService) Start(_ context.Context, _ api.Access, r api.StartRequest) (*api.Process, error) {
	return &api.Process{ID: 2, Argv: r.Argv}, nil
}

func (s *fakeService) Processes(context.Context, api.Access) (*api.ProcessList, error) {
	return &api.ProcessList{Processes: []api.Process{
		{ID: 2, PID: 7, Argv: []string{"sleep", "a b"}}, {ID: 3, PID: 8, Argv: []string{"true"}, Exit: &api.Exit{Code: -1, Signal: "SIGKILL"}},
	}}, nil
}

func (s *fakeService) Attach(_ context.Context, _ api.Access, process uint64, st api.Streams) (*api.Exit, error) {
	fmt.Fprintf(st.Stdout, "printed by %d\n", process)
	return &api.Exit{Code: 9}, nil
}

func (s *fakeService) ReadFile(_ context.Context, _ api.Access, name string) (io.ReadCloser, *api.FileInfo, error) {
	i, err := s.Stat(context.Background(), api.Access{}, name)
	return io.NopCloser(strings.NewReader("abc")), i, err
}

// Stat: everything is a file, but for what is said to be a directory.
func (s *fakeService) Stat(_ context.Context, _ api.Access, name string) (*api.FileInfo, error) {
	i := &api.FileInfo{Name: path.Base(name), Path: name, Type: api.RegularFile, Size: 3, Mode: 0o600}
	if strings.HasSuffix(name, "dir") {
		i.Type = api.Directory
	}
	return i, nil
}

// WriteFile refuses all but what the scripts are to write.
func (s *fakeService) WriteFile(ctx context.Context, a api.Access, name string, r io.Reader, _ api.WriteOptions) (*api.FileInfo, error) {
	if b, err := io.ReadAll(r); err != nil || name != "/"+strings.TrimSpace(string(b)) {
		return nil, api.Errorf(api.Conflict, "%s is to have %q, %w", name, b, err)
	}
	return s.Stat(ctx, a, name)
}

func (s *fakeService) WriteTree(_ context.Context, _ api.Access, name string, r io.Reader) error {
	n, err := io.Copy(io.Discard, r)
	if err != nil || n == 0 || name != "/dir/local" {
		return api.Errorf(api.Conflict, "%s is to have %d bytes, %w", name, n, err)
	}
	return nil
}
