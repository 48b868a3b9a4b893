package apitest

import (
	"context"
	"io"
	"strings"

	"github.com/forkvm/forkvm/api"
)

// enter is call for what a token is needed for.
func (f *Fake) enter(a api.Access, verb string, args ...any) error {
	if err := f.open(a); err != nil {
		return err
	}
	return f.call(verb, args...)
}

func inside[T any](f *Fake, a api.Access, v T, verb string, args ...any) (T, error) {
	if err := f.open(a); err != nil {
		var none T
		return none, err
	}
	return result(f, v, verb, args...)
}

func (f *Fake) Exec(_ context.Context, a api.Access, r api.ExecRequest) (*api.ExecResult, error) {
	return inside(f, a, &api.ExecResult{Exit: api.Exit{Code: 3}, Stdout: r.Stdin, Stderr: api.Text("\xff")}, "Exec", r)
}

func (f *Fake) Run(ctx context.Context, a api.Access, r api.StartRequest, s api.Streams) (*api.Exit, error) {
	if err := f.enter(a, "Run", r); err != nil {
		return nil, err
	}
	if f.OnRun != nil {
		return f.OnRun(ctx, r, s)
	}
	s.Started(Process(1, r.Argv...))
	return &api.Exit{}, nil
}

func (f *Fake) Start(_ context.Context, a api.Access, r api.StartRequest) (*api.Process, error) {
	p := Process(2, r.Argv...)
	return inside(f, a, &p, "Start", r)
}

func (f *Fake) Processes(_ context.Context, a api.Access) (*api.ProcessList, error) {
	ended := Process(3, "true")
	ended.Exit = &api.Exit{Code: -1, Signal: "SIGKILL"}
	return inside(f, a, &api.ProcessList{Processes: []api.Process{Process(2, "sleep"), ended}}, "Processes")
}

func (f *Fake) Attach(ctx context.Context, a api.Access, process uint64, s api.Streams) (*api.Exit, error) {
	if err := f.enter(a, "Attach", process, s.Live, s.Stdin != nil); err != nil {
		return nil, err
	}
	if f.OnAttach != nil {
		return f.OnAttach(ctx, process, s)
	}
	return &api.Exit{}, nil
}

func (f *Fake) WaitProcess(_ context.Context, a api.Access, process uint64) (*api.Exit, error) {
	return inside(f, a, &api.Exit{Code: 1}, "WaitProcess", process)
}

func (f *Fake) Control(_ context.Context, a api.Access, process uint64, c api.Control) error {
	return f.enter(a, "Control", process, c)
}

func (f *Fake) ReadFile(_ context.Context, a api.Access, path string) (io.ReadCloser, *api.FileInfo, error) {
	if err := f.enter(a, "ReadFile", path); err != nil {
		return nil, nil, err
	}
	r, err := f.read(path)
	return r, File(path), err
}

func (f *Fake) read(path string) (io.ReadCloser, error) {
	if f.OnRead != nil {
		return f.OnRead(path)
	}
	return io.NopCloser(strings.NewReader("abc")), nil
}

func (f *Fake) WriteFile(_ context.Context, a api.Access, path string, content io.Reader, o api.WriteOptions) (*api.FileInfo, error) {
	if err := f.enter(a, "WriteFile", path, o); err != nil {
		return nil, err
	}
	return File(path), f.write(path, content)
}

func (f *Fake) write(path string, content io.Reader) error {
	if f.OnWrite != nil {
		return f.OnWrite(path, content)
	}
	_, err := io.Copy(io.Discard, content)
	return err
}

func (f *Fake) Stat(_ context.Context, a api.Access, path string) (*api.FileInfo, error) {
	return inside(f, a, File(path), "Stat", path)
}

func (f *Fake) RealPath(_ context.Context, a api.Access, path string) (*api.RealPath, error) {
	return inside(f, a, &api.RealPath{Path: path}, "RealPath", path)
}

func (f *Fake) ListFiles(_ context.Context, a api.Access, path string) (*api.FileList, error) {
	return inside(f, a, &api.FileList{Files: []api.FileInfo{*File(path)}}, "ListFiles", path)
}

func (f *Fake) Mkdir(_ context.Context, a api.Access, path string) (*api.FileInfo, error) {
	return inside(f, a, File(path), "Mkdir", path)
}

func (f *Fake) Rename(_ context.Context, a api.Access, from, to string) (*api.FileInfo, error) {
	return inside(f, a, File(to), "Rename", from, to)
}

func (f *Fake) Remove(_ context.Context, a api.Access, path string, o api.RemoveOptions) error {
	return f.enter(a, "Remove", path, o)
}

func (f *Fake) ReadTree(_ context.Context, a api.Access, path string) (io.ReadCloser, error) {
	if err := f.enter(a, "ReadTree", path); err != nil {
		return nil, err
	}
	return f.read(path)
}

func (f *Fake) WriteTree(_ context.Context, a api.Access, path string, archive io.Reader) error {
	if err := f.enter(a, "WriteTree", path); err != nil {
		return err
	}
	return f.write(path, archive)
}

func (f *Fake) Watch(ctx context.Context, a api.Access, path string, ready func(), on func(api.FileEvent) error) error {
	if err := f.enter(a, "Watch", path); err != nil {
		return err
	}
	if f.OnWatch != nil {
		return f.OnWatch(ctx, ready, on)
	}
	ready()
	return on(api.FileEvent{Name: "x", Op: "create"})
}
