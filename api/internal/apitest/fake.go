// Package apitest has a service for tests, of which each verb does what the test
// says.
package apitest

import (
	"context"
	"io"
	"time"

	"github.com/forkvm/forkvm/api"
)

// Token is the access token of every sandbox of a Fake, but for those that are
// destroyed.
const Token = "tok_of_a_test"

// Fake is a service whose records are made up. A call first asks Fail; nil goes
// on.
type Fake struct {
	// Fail is what the verb fails with; nil: nothing fails.
	Fail func(verb string) error
	// Called is told of calls with what they were asked; nil: nobody is.
	Called func(verb string, args ...any)

	OnCreate func(context.Context, api.CreateRequest) (*api.Sandbox, error)
	OnEvents func(context.Context, api.EventQuery, func(), func(api.Event) error) error
	OnRun    func(context.Context, api.StartRequest, api.Streams) (*api.Exit, error)
	OnAttach func(context.Context, uint64, api.Streams) (*api.Exit, error)
	OnRead   func(path string) (io.ReadCloser, error)
	OnWrite  func(path string, content io.Reader) error
	OnWatch  func(ctx context.Context, ready func(), f func(api.FileEvent) error) error
	OnBuild  func(ctx context.Context, r api.BuildRequest, archive io.Reader, log io.Writer) (*api.Template, error)
}

var _ api.Service = (*Fake)(nil)

// Now is the time of all records.
var Now = time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)

// Sandbox is a record with everything set.
func Sandbox(id string) *api.Sandbox {
	timeout, parent := int64(60), api.NewID(api.SandboxPrefix, Now)
	expires := Now.Add(time.Minute)
	return &api.Sandbox{
		ID: id, Name: "a name", State: api.Running, Template: "base", ParentSandboxID: &parent, VCPUs: 1,
		MemoryBytes: 1 << 28, DiskBytes: 1 << 30, CreatedAt: Now, StartedAt: &Now, TimeoutSeconds: &timeout, ExpiresAt: &expires,
		OnTimeout: api.TimeoutDestroys, Metadata: map[string]string{"k": "v"}, EnvVars: map[string]string{"A": "b"}, AccessToken: Token,
	}
}

// Snapshot is the same.
func Snapshot(id string) *api.Snapshot {
	return &api.Snapshot{
		ID: id, Name: "a name", SandboxID: api.NewID(api.SandboxPrefix, Now), Template: "base", CreatedAt: Now, VCPUs: 1,
		MemoryBytes: 1 << 28, StoredBytes: 1 << 20, PauseSeconds: .01, OnTimeout: api.TimeoutPauses, Metadata: map[string]string{},
	}
}

// Process is the same.
func Process(id uint64, argv ...string) api.Process {
	return api.Process{ID: id, PID: 7, Argv: argv, StartedAt: Now}
}

// File is the same.
func File(path string) *api.FileInfo {
	return &api.FileInfo{Name: "ünïcödé 😀\n", Path: path, Type: api.RegularFile, Size: 3, Mode: 0o644, ModifiedAt: Now}
}

// open checks a token.
func (f *Fake) open(a api.Access) error {
	if a.Token != Token {
		return api.Errorf(api.Unauthorized, "wrong token")
	}
	return nil
}

func (f *Fake) call(verb string, args ...any) error {
	if f.Called != nil {
		f.Called(verb, args...)
	}
	if f.Fail != nil {
		return f.Fail(verb)
	}
	return nil
}

// result is v unless the verb fails.
func result[T any](f *Fake, v T, verb string, args ...any) (T, error) {
	if err := f.call(verb, args...); err != nil {
		var none T
		return none, err
	}
	return v, nil
}

func (f *Fake) Create(ctx context.Context, r api.CreateRequest) (*api.Sandbox, error) {
	if f.OnCreate != nil {
		return f.OnCreate(ctx, r)
	}
	return result(f, Sandbox(api.NewID(api.SandboxPrefix, Now)), "Create", r)
}

func (f *Fake) Get(_ context.Context, id string) (*api.Sandbox, error) {
	return result(f, Sandbox(id), "Get", id)
}

func (f *Fake) List(_ context.Context, q api.SandboxQuery) (*api.SandboxPage, error) {
	return result(f, &api.SandboxPage{Sandboxes: []api.Sandbox{*Sandbox(api.NewID(api.SandboxPrefix, Now))}, NextCursor: "next"}, "List", q)
}

func (f *Fake) Update(_ context.Context, id string, p api.Patch) (*api.Sandbox, error) {
	return result(f, Sandbox(id), "Update", id, p)
}

func (f *Fake) Destroy(_ context.Context, id string) error { return f.call("Destroy", id) }

func (f *Fake) Pause(_ context.Context, id string) (*api.Sandbox, error) {
	return result(f, Sandbox(id), "Pause", id)
}

func (f *Fake) Resume(_ context.Context, id string) (*api.Sandbox, error) {
	return result(f, Sandbox(id), "Resume", id)
}

func (f *Fake) Fork(_ context.Context, id string, r api.ForkRequest) (*api.ForkResult, error) {
	child := api.Forked{Sandbox: Sandbox(api.NewID(api.SandboxPrefix, Now))}
	failed := api.Forked{Error: api.Errorf(api.OutOfCapacity, "no more")}
	return result(f, &api.ForkResult{Children: []api.Forked{child, failed}, PauseSeconds: .02}, "Fork", id, r)
}

func (f *Fake) Wait(_ context.Context, id string, r api.WaitRequest) (*api.Sandbox, error) {
	return result(f, Sandbox(id), "Wait", id, r)
}

func (f *Fake) Stats(_ context.Context, id string) (*api.Stats, error) {
	return result(f, &api.Stats{SandboxID: id, State: api.Running, MemorySharedBytes: 5}, "Stats", id)
}

func (f *Fake) CreateSnapshot(_ context.Context, id string, r api.SnapshotRequest) (*api.Snapshot, error) {
	return result(f, Snapshot(api.NewID(api.SnapshotPrefix, Now)), "CreateSnapshot", id, r)
}

func (f *Fake) Snapshot(_ context.Context, id string) (*api.Snapshot, error) {
	return result(f, Snapshot(id), "Snapshot", id)
}

func (f *Fake) Snapshots(_ context.Context, q api.SnapshotQuery) (*api.SnapshotPage, error) {
	return result(f, &api.SnapshotPage{}, "Snapshots", q)
}

func (f *Fake) RenameSnapshot(_ context.Context, id, name string) (*api.Snapshot, error) {
	return result(f, Snapshot(id), "RenameSnapshot", id, name)
}

func (f *Fake) DeleteSnapshot(_ context.Context, id string) error {
	return f.call("DeleteSnapshot", id)
}

func (f *Fake) Templates(context.Context) (*api.TemplateList, error) {
	return result(f, &api.TemplateList{Templates: []api.Template{{Name: "base", BuiltIn: true}}}, "Templates")
}

func (f *Fake) Template(_ context.Context, name string) (*api.Template, error) {
	return result(f, Template(name), "Template", name)
}

func (f *Fake) BuildTemplate(ctx context.Context, r api.BuildRequest, archive io.Reader, log io.Writer) (*api.Template, error) {
	if err := f.call("BuildTemplate", r); err != nil {
		return nil, err
	}
	if f.OnBuild != nil {
		return f.OnBuild(ctx, r, archive, log)
	}
	return Template(r.Name), nil
}

// Template is a record with everything set.
func Template(name string) *api.Template {
	return &api.Template{
		Name: name, Ready: true, CreatedAt: Now, From: "base", VCPUs: 1, MemoryBytes: 1 << 28, DiskBytes: 1 << 30, StoredBytes: 1 << 20,
		Kernel: "6.18.5", BuildSeconds: 1.5, File: "FROM base\n", Env: []string{"A=b"}, Cwd: "/srv", User: "app", Cmd: []string{"serve"},
	}
}

func (f *Fake) TemplateLog(_ context.Context, name string) (io.ReadCloser, error) {
	if err := f.call("TemplateLog", name); err != nil {
		return nil, err
	}
	return f.read(name)
}

func (f *Fake) DeleteTemplate(_ context.Context, name string) error {
	return f.call("DeleteTemplate", name)
}

func (f *Fake) Events(ctx context.Context, q api.EventQuery, ready func(), on func(api.Event) error) error {
	if err := f.call("Events", q); err != nil {
		return err
	}
	if f.OnEvents != nil {
		return f.OnEvents(ctx, q, ready, on)
	}
	ready()
	<-ctx.Done()
	return ctx.Err()
}
