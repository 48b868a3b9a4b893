package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/internal/localtree"
)

// Bounds of a build's context besides Limits.Context.
const (
	maxContextEntries = 1 << 18
	maxContextName    = 1 << 10 // bytes
	maxContextPadding = 1 << 20 // bytes after the end of the archive
	contextChunk      = 32 << 10
)

// buildRetry is when to try again if as many templates are being built as may be.
const buildRetry = 10 * time.Second

// BuildTemplate implements [api.Service]. The archive is plain tar; links in it
// that lead out are refused, and owners, set-id bits and times of no account. If
// ctx or the engine ends while it is read, a call of its Read may be left waiting.
func (t *Team) BuildTemplate(ctx context.Context, r api.BuildRequest, archive io.Reader, log io.Writer) (_ *api.Template, err error) {
	defer func(begin time.Time) { t.metrics.observe(verbBuild, begin, err) }(time.Now())
	if err := t.checkBuild(&r); err != nil {
		return nil, err
	}
	ctx, done, err := t.beginBuild(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	spec := template.Spec{
		Name: r.Name, Args: r.Args, Confined: true,
		Machine: template.Machine{VCPUs: r.VCPUs, Memory: r.MemoryBytes, Disk: r.DiskBytes},
	}
	if r.File != "" {
		spec.Source = []byte(r.File)
	}
	if archive != nil {
		dir, err := t.unpack(ctx, archive)
		defer func() { t.removeContext(dir) }()
		if err != nil {
			return nil, err
		}
		spec.Context = dir
	}
	o := template.BuildOptions{}
	if log != nil {
		o = template.Shown(log)
	}
	o.NoCache, o.Pull = r.NoCache, r.Pull
	info, err := t.machines.Build(ctx, spec, o)
	if err != nil {
		return nil, buildError(err)
	}
	made := info.Template()
	return &made, nil
}

// beginBuild counts a build, whose context ends with the engine, until done is
// called.
func (e *Engine) beginBuild(ctx context.Context) (_ context.Context, done func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nil, errClosed
	}
	if e.builds >= e.limits.Builds {
		err := api.Errorf(api.OutOfCapacity, "templates are being built: at most %d at once", e.limits.Builds)
		err.RetryAfter = buildRetry
		return nil, nil, err
	}
	e.builds++
	e.busy.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.life, func() { cancel(errClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.builds--
		e.busy.Done()
	}, nil
}

// contexts is where the contexts of builds are.
func (e *Engine) contexts() string { return filepath.Join(e.dir, "contexts") }

// unpack unpacks a context in a directory of its own, which is there also if it
// fails, and reads the archive to its end.
func (e *Engine) unpack(ctx context.Context, archive io.Reader) (dir string, err error) {
	if err := os.MkdirAll(e.contexts(), 0o700); err != nil {
		return "", outer(err, "context")
	}
	if dir, err = os.MkdirTemp(e.contexts(), "build-"); err != nil {
		return "", outer(err, "context")
	}
	limits := localtree.Limits{Bytes: e.limits.Context, Entries: maxContextEntries, Name: maxContextName}
	r := &contextReader{ctx, archive, make([]byte, contextChunk)}
	if err = localtree.Unpack(dir, r, limits); err == nil {
		_, err = io.CopyN(io.Discard, r, maxContextPadding)
		if err == nil {
			err = errors.New("more after the end of the archive")
		}
		if errors.Is(err, io.EOF) {
			return dir, nil
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return dir, cause
	}
	if slices.ContainsFunc(ofHost, func(e error) bool { return errors.Is(err, e) }) {
		return dir, outer(err, "context")
	}
	if _, ok := errors.AsType[*api.Error](err); ok {
		return dir, err
	}
	return dir, api.Errorf(api.BadRequest, "context: %w", err)
}

// ofHost are errors that no archive is the reason of.
var ofHost = []error{
	syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
}

func (e *Engine) removeContext(dir string) {
	if dir == "" {
		return
	}
	if err := localtree.Remove(dir); err != nil {
		e.log.Error("remove the context of a build", "directory", dir, "error", err)
	}
}

// contextReader fails when ctx ends, also while r does not answer. It is for one
// goroutine.
type contextReader struct {
	ctx context.Context
	r   io.Reader
	buf []byte // for r, which may still write to it when ctx has ended
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	type result struct {
		n   int
		err error
	}
	got, buf := make(chan result, 1), c.buf[:min(len(p), len(c.buf))]
	go func() {
		n, err := c.r.Read(buf)
		got <- result{n, err}
	}()
	select {
	case r := <-got:
		return copy(p, buf[:r.n]), r.err
	case <-c.ctx.Done():
		return 0, context.Cause(c.ctx)
	}
}

// buildError is the error of a build. That a step of the file does not go well is
// the file's fault.
func buildError(err error) error {
	step, ok := errors.AsType[*template.StepError](err)
	if !ok || passed(err) {
		return templateError(err)
	}
	code := codeOf(err)
	_, ended := errors.AsType[*client.ExitError](err)
	_, refused := errors.AsType[*client.StartError](err)
	if code == api.InternalError && (ended || refused || errors.Is(err, template.ErrNotReady)) {
		code = api.BadRequest
	}
	e := api.Errorf(code, "%w", err)
	e.Details = map[string]any{"step": step.Step, "steps": step.Steps, "line": step.Line, "exit_code": step.Code}
	return e
}
