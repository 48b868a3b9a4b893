package sandbox

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"io"
	"slices"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/sandbox/internal/guest"
)

// inside is the machine of a sandbox at work.
type inside struct {
	*guest.Guest
	e *Engine
	b *box
	m machine
}

// Holder returns the team of a sandbox if the access is good.
func (e *Engine) Holder(a api.Access) (*Team, error) {
	b, err := e.admit(a)
	if err != nil {
		return nil, err
	}
	return e.Team(b.team), nil
}

// admit returns the sandbox of an access.
func (e *Engine) admit(a api.Access) (*box, error) {
	if err := api.CheckID(api.SandboxPrefix, a.ID); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.boxes[a.ID]
	switch {
	case e.closed:
		return nil, errClosed
	case b == nil || b.rec.Sandbox.State == api.Destroying:
		return nil, api.Errorf(api.NotFound, "there is no sandbox %s", a.ID)
	case subtle.ConstantTimeCompare([]byte(a.Token), []byte(b.rec.Sandbox.AccessToken)) != 1:
		return nil, api.Errorf(api.Unauthorized, "this is not the access token of sandbox %s", a.ID)
	}
	return b, nil
}

// enter returns the machine of a sandbox, which it resumes if need be. What is
// wrong with the request is said first: a sandbox is not resumed for that.
func (t *Team) enter(ctx context.Context, a api.Access, wrong []error) (*inside, error) {
	b, err := t.admit(a)
	if err == nil && b.team != t.name {
		err = api.Errorf(api.NotFound, "there is no sandbox %s", a.ID)
	}
	for _, w := range wrong {
		err = cmp.Or(err, w)
	}
	if err != nil {
		return nil, err
	}
	for {
		t.mu.Lock()
		m := b.m
		// A machine that is halted to be stored answers nobody.
		if m != nil && b.rec.Sandbox.State == api.Running {
			g := &guest.Guest{Agent: m.agent(), Env: environment(b), Dir: b.rec.Shape.Dir, User: b.rec.Shape.User}
			t.mu.Unlock()
			return &inside{g, t.Engine, b, m}, nil
		}
		t.mu.Unlock()
		if err := t.resume(ctx, b, ""); err != nil {
			return nil, err
		}
	}
}

// environment is the template's, and on top the sandbox's. The caller has mu.
func environment(b *box) []string {
	env := slices.Clone(b.rec.Shape.Env)
	for k, v := range b.rec.Sandbox.EnvVars {
		env = append(env, k+"="+v)
	}
	return env
}

// lostOr is err, or why the machine is gone that gave it.
func (e *Engine) lostOr(b *box, m machine, err error) error {
	if err == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case b.life.Err() != nil:
		return context.Cause(b.life)
	case b.m != m && b.lost != nil:
		return b.lost
	}
	return err
}

// because is err or, if that is that the machine was lost, why.
func (i *inside) because(err error) error {
	if errors.Is(err, guest.ErrLost) {
		return i.e.lostOr(i.b, i.m, err)
	}
	return err
}

// in does something in a sandbox, if nothing is wrong.
func in[T any](ctx context.Context, t *Team, a api.Access, do func(*inside) (T, error), wrong ...error) (T, error) {
	i, err := t.enter(ctx, a, wrong)
	if err != nil {
		var none T
		return none, err
	}
	v, err := do(i)
	return v, i.because(err)
}

func checkPath(path string) error {
	_, err := guest.CheckPath("path", path)
	return err
}

// Exec implements [api.Service].
func (t *Team) Exec(ctx context.Context, a api.Access, r api.ExecRequest) (*api.ExecResult, error) {
	return in(ctx, t, a, func(i *inside) (*api.ExecResult, error) { return i.Guest.Exec(ctx, r) }, guest.CheckExec(r))
}

// Run implements [api.Service].
func (t *Team) Run(ctx context.Context, a api.Access, r api.StartRequest, s api.Streams) (*api.Exit, error) {
	return in(ctx, t, a, func(i *inside) (*api.Exit, error) { return i.Guest.Run(ctx, r, s) }, guest.CheckStart(r))
}

// Start implements [api.Service].
func (t *Team) Start(ctx context.Context, a api.Access, r api.StartRequest) (*api.Process, error) {
	return in(ctx, t, a, func(i *inside) (*api.Process, error) { return i.Guest.Start(ctx, r) }, guest.CheckStart(r))
}

// Processes implements [api.Service].
func (t *Team) Processes(ctx context.Context, a api.Access) (*api.ProcessList, error) {
	return in(ctx, t, a, func(i *inside) (*api.ProcessList, error) { return i.Guest.Processes(ctx) })
}

// Attach implements [api.Service].
func (t *Team) Attach(ctx context.Context, a api.Access, process uint64, s api.Streams) (*api.Exit, error) {
	return in(ctx, t, a, func(i *inside) (*api.Exit, error) { return i.Guest.Attach(ctx, process, s) })
}

// WaitProcess implements [api.Service].
func (t *Team) WaitProcess(ctx context.Context, a api.Access, process uint64) (*api.Exit, error) {
	return in(ctx, t, a, func(i *inside) (*api.Exit, error) { return i.Guest.WaitProcess(ctx, process) })
}

// Control implements [api.Service].
func (t *Team) Control(ctx context.Context, a api.Access, process uint64, c api.Control) error {
	_, err := in(ctx, t, a, func(i *inside) (struct{}, error) { return struct{}{}, i.Guest.Control(ctx, process, c) }, guest.CheckControl(c))
	return err
}

// opened is what ReadFile returns.
type opened struct {
	content io.ReadCloser
	info    *api.FileInfo
}

// reader says why its machine was lost.
type reader struct {
	io.ReadCloser
	i *inside
}

func (r reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	return n, r.i.because(err)
}

// ReadFile implements [api.Service].
func (t *Team) ReadFile(ctx context.Context, a api.Access, path string) (io.ReadCloser, *api.FileInfo, error) {
	o, err := in(ctx, t, a, func(i *inside) (opened, error) {
		r, info, err := i.Guest.ReadFile(ctx, path)
		return opened{reader{r, i}, info}, err
	}, checkPath(path))
	if err != nil {
		return nil, nil, err
	}
	return o.content, o.info, nil
}

// WriteFile implements [api.Service].
func (t *Team) WriteFile(ctx context.Context, a api.Access, path string, content io.Reader, o api.WriteOptions) (*api.FileInfo, error) {
	return in(ctx, t, a, func(i *inside) (*api.FileInfo, error) { return i.Guest.WriteFile(ctx, path, content, o) }, checkPath(path))
}

// Stat implements [api.Service].
func (t *Team) Stat(ctx context.Context, a api.Access, path string) (*api.FileInfo, error) {
	return in(ctx, t, a, func(i *inside) (*api.FileInfo, error) { return i.Guest.Stat(ctx, path) }, checkPath(path))
}

// RealPath implements [api.Service].
func (t *Team) RealPath(ctx context.Context, a api.Access, path string) (*api.RealPath, error) {
	return in(ctx, t, a, func(i *inside) (*api.RealPath, error) { return i.Guest.RealPath(ctx, path) }, checkPath(path))
}

// ListFiles implements [api.Service].
func (t *Team) ListFiles(ctx context.Context, a api.Access, path string) (*api.FileList, error) {
	return in(ctx, t, a, func(i *inside) (*api.FileList, error) { return i.Guest.ListFiles(ctx, path) }, checkPath(path))
}

// Mkdir implements [api.Service].
func (t *Team) Mkdir(ctx context.Context, a api.Access, path string) (*api.FileInfo, error) {
	return in(ctx, t, a, func(i *inside) (*api.FileInfo, error) { return i.Guest.Mkdir(ctx, path) }, checkPath(path))
}

// Rename implements [api.Service].
func (t *Team) Rename(ctx context.Context, a api.Access, from, to string) (*api.FileInfo, error) {
	return in(ctx, t, a, func(i *inside) (*api.FileInfo, error) { return i.Guest.Rename(ctx, from, to) }, checkPath(from), checkPath(to))
}

// Remove implements [api.Service].
func (t *Team) Remove(ctx context.Context, a api.Access, path string, o api.RemoveOptions) error {
	_, err := in(ctx, t, a, func(i *inside) (struct{}, error) { return struct{}{}, i.Guest.Remove(ctx, path, o) }, checkPath(path))
	return err
}

// ReadTree implements [api.Service].
func (t *Team) ReadTree(ctx context.Context, a api.Access, path string) (io.ReadCloser, error) {
	return in(ctx, t, a, func(i *inside) (io.ReadCloser, error) {
		r, err := i.Guest.ReadTree(ctx, path)
		if err != nil {
			return nil, err
		}
		return reader{r, i}, nil
	}, checkPath(path))
}

// WriteTree implements [api.Service].
func (t *Team) WriteTree(ctx context.Context, a api.Access, path string, archive io.Reader) error {
	_, err := in(ctx, t, a, func(i *inside) (struct{}, error) {
		return struct{}{}, i.Guest.WriteTree(ctx, path, archive)
	}, checkPath(path))
	return err
}

// Watch implements [api.Service].
func (t *Team) Watch(ctx context.Context, a api.Access, path string, ready func(), f func(api.FileEvent) error) error {
	_, err := in(ctx, t, a, func(i *inside) (struct{}, error) { return struct{}{}, i.Guest.Watch(ctx, path, ready, f) }, checkPath(path))
	return err
}
