package sandbox

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/initrd/rootfs"
)

// archive is a tar archive. Files are filled with as much as their headers say.
func archive(t testing.TB, headers ...tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(make([]byte, h.Size)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func file(name string, size int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size}
}

var web = api.BuildRequest{Name: "web", File: "FROM base"}

// wantNoContexts checks that nothing is left of what was unpacked.
func (r *rig) wantNoContexts(t testing.TB, when string) {
	t.Helper()
	left, err := os.ReadDir(r.contexts())
	if err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) != 0 {
		t.Errorf("%s: left are %v, %v", when, left, err)
	}
}

// TestBuildRequestArrivesWhole: what is asked for is what is built, in a context
// that FROM does not leave, and of which nothing is left.
func TestBuildRequestArrivesWhole(t *testing.T) {
	r := newRig(t, Limits{})
	var got template.Spec
	r.w.onBuild = func(_ context.Context, s template.Spec, o template.BuildOptions) error {
		got = s
		if !o.NoCache || !o.Pull {
			t.Errorf("options %+v", o)
		}
		io.WriteString(o.Output, "printed\n")
		info, err := os.Stat(filepath.Join(s.Context, "d/f"))
		if err != nil || info.Size() != 5 || info.Mode() != 0o755 {
			t.Errorf("in the context: %v, %v", info, err)
		}
		if to, err := os.Readlink(filepath.Join(s.Context, "link")); to != "d/f" {
			t.Errorf("link to %q, %v", to, err)
		}
		return nil
	}
	f := file("d/f", 5)
	f.Mode = 0o4755
	ask := api.BuildRequest{
		Name: "web", File: "FROM base\n", Args: map[string]string{"A": "b"}, VCPUs: 2, MemoryBytes: 3 << 20, DiskBytes: 4 << 20, NoCache: true, Pull: true,
	}
	var log strings.Builder
	closed := tar.Header{Typeflag: tar.TypeDir, Name: "closed", Mode: 0o1}
	made, err := r.BuildTemplate(t.Context(), ask, archive(t, f, tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "d/f"}, closed), &log)
	if err != nil || made.Name != "web" || made.File != ask.File || !made.Ready {
		t.Errorf("made %+v, %v", made, err)
	}
	if log.String() != "[1/1] FROM base\nprinted\n" {
		t.Errorf("log %q", &log)
	}
	m := got.Machine
	if !got.Confined || string(got.Source) != ask.File || got.Args["A"] != "b" || m.VCPUs != 2 || m.Memory != 3<<20 || m.Disk != 4<<20 {
		t.Errorf("built %+v", got)
	}
	r.wantNoContexts(t, "after a build")

	r.w.onBuild = func(_ context.Context, s template.Spec, _ template.BuildOptions) error {
		if s.Source != nil || s.Context != "" || s.Name != "python" {
			t.Errorf("a built-in template: %+v", s)
		}
		return nil
	}
	must[*api.Template](t)(r.BuildTemplate(t.Context(), api.BuildRequest{Name: "python"}, nil, nil))
}

// TestHostileContexts: none is unpacked, none is built, and nothing is left.
func TestHostileContexts(t *testing.T) {
	r := newRig(t, Limits{Context: 1 << 20})
	r.w.onBuild = func(context.Context, template.Spec, template.BuildOptions) error {
		t.Error("it was built")
		return nil
	}
	long := strings.Repeat("a", maxContextName+1)
	for name, in := range map[string]io.Reader{
		"parent":           archive(t, file("../out", 1)),
		"absolute":         archive(t, file("/out", 1)),
		"link out":         archive(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../../etc"}),
		"absolute link":    archive(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/etc/shadow"}),
		"hard link out":    archive(t, tar.Header{Typeflag: tar.TypeLink, Name: "l", Linkname: "../../sandboxes.db"}),
		"through links":    archive(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "b", Linkname: "."}, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "b/.."}, file("a/out", 1)),
		"character device": archive(t, tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}),
		"block device":     archive(t, tar.Header{Typeflag: tar.TypeBlock, Name: "sda"}),
		"fifo":             archive(t, tar.Header{Typeflag: tar.TypeFifo, Name: "fifo"}),
		"too much":         archive(t, file("a", 1<<19), file("b", 1<<19+1)),
		"says too much":    bytes.NewReader(header(t, file("a", 1<<50))),
		"long name":        archive(t, file(long, 0)),
		"no archive":       strings.NewReader(strings.Repeat("x", 1024)),
		"cut":              io.LimitReader(archive(t, file("a", 1000)), 700),
		"more":             io.MultiReader(archive(t), zeroReader{}),
		"fails":            io.MultiReader(io.LimitReader(archive(t, file("a", 1000)), 700), failingReader{errors.New("gone")}),
	} {
		if _, err := r.BuildTemplate(t.Context(), web, in, nil); !errors.Is(err, api.BadRequest) {
			t.Errorf("%s: %v, want %s", name, err, api.BadRequest)
		}
		r.wantNoContexts(t, name)
	}
	if left, err := os.ReadDir(r.dir); err != nil || len(left) != 2 { // the database, and contexts
		t.Errorf("beside it: %v, %v", left, err)
	}
	for err, code := range map[error]api.Code{
		&fs.PathError{Op: "write", Path: "a", Err: syscall.ENOSPC}: api.NotEnoughSpace,
		&fs.PathError{Op: "open", Path: "a", Err: syscall.EMFILE}:  api.InternalError, api.Errorf(api.Gone, "gone"): api.Gone,
	} {
		if _, got := r.BuildTemplate(t.Context(), web, failingReader{err}, nil); !errors.Is(got, code) {
			t.Errorf("%v became %v", err, got)
		}
	}
	r.wantNoContexts(t, "what failed")
}

// header is that of one file without its content.
func header(t testing.TB, h tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

// TestBuildRefusals names the field.
func TestBuildRefusals(t *testing.T) {
	r := newRig(t, Limits{Memory: 1 << 30})
	args := map[string]string{}
	for k := range api.MaxBuildArgs + 1 {
		args[strings.Repeat("a", k+1)] = ""
	}
	for field, ask := range map[string]api.BuildRequest{
		"name": {Name: "a/b", File: "FROM base"}, "file": {Name: "web"}, "file: longer": {Name: "web", File: strings.Repeat("#", api.MaxTemplateFile+1)},
		"args": {Name: "web", File: "x", Args: args}, "vcpus": {Name: "web", File: "x", VCPUs: -1}, "memory_bytes": {Name: "web", File: "x", MemoryBytes: 1<<30 + 1},
		"memory_bytes: -1": {Name: "web", File: "x", MemoryBytes: -1}, "disk_bytes": {Name: "web", File: "x", DiskBytes: 1 << 62},
	} {
		if _, err := r.BuildTemplate(t.Context(), ask, failingReader{errors.New("was read")}, nil); !errors.Is(err, api.BadRequest) || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestBuildsThatAreTooMany are refused until one has ended.
func TestBuildsThatAreTooMany(t *testing.T) {
	r := newRig(t, Limits{Builds: 1})
	begun, goOn := make(chan struct{}), make(chan struct{})
	r.w.onBuild = func(context.Context, template.Spec, template.BuildOptions) error {
		begun <- struct{}{}
		<-goOn
		return nil
	}
	built := make(chan error, 1)
	go func() {
		_, err := r.BuildTemplate(t.Context(), web, nil, nil)
		built <- err
	}()
	<-begun
	_, err := r.BuildTemplate(t.Context(), web, failingReader{errors.New("was read")}, nil)
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.OutOfCapacity || e.RetryAfter <= 0 {
		t.Errorf("the second: %v", err)
	}
	close(goOn)
	if err := <-built; err != nil {
		t.Error(err)
	}
	go func() { <-begun }()
	must[*api.Template](t)(r.BuildTemplate(t.Context(), web, nil, nil))
}

// TestBuildIsGivenUp by who asked for it, while it is unpacked and while it is
// built, and by the engine's end.
func TestBuildIsGivenUp(t *testing.T) {
	r := newRig(t, Limits{})
	begun := make(chan struct{})
	r.w.onBuild = func(ctx context.Context, _ template.Spec, _ template.BuildOptions) error {
		close(begun)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	if _, err := r.BuildTemplate(ctx, web, archive(t, file("a", 1)), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	r.wantNoContexts(t, "given up")
	if _, err := r.Template(t.Context(), "web"); !errors.Is(err, api.NotFound) {
		t.Errorf("there is a template: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	in, out := io.Pipe()
	go func() { out.Write(make([]byte, 10)); cancel(); out.CloseWithError(errors.New("the client has gone")) }()
	if _, err := r.BuildTemplate(ctx, web, in, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("given up while it was sent: %v", err)
	}
	r.wantNoContexts(t, "given up while it was sent")

	begun = make(chan struct{})
	built := make(chan error, 1)
	go func() {
		_, err := r.BuildTemplate(context.Background(), web, archive(t, file("a", 1)), nil)
		built <- err
	}()
	<-begun
	if err := r.Engine.Close(t.Context(), CloseDestroys); err != nil {
		t.Error(err)
	}
	if err := <-built; !errors.Is(err, api.Gone) {
		t.Errorf("ended by the engine: %v", err)
	}
	r.wantNoContexts(t, "ended by the engine")
	if _, err := r.BuildTemplate(t.Context(), web, nil, nil); !errors.Is(err, api.Gone) {
		t.Errorf("after that: %v", err)
	}
	if err := r.DeleteTemplate(t.Context(), "web"); !errors.Is(err, api.Gone) {
		t.Errorf("after that: %v", err)
	}
}

// TestContextsOfACrash are swept when the engine is opened.
func TestContextsOfACrash(t *testing.T) {
	r := newRig(t, Limits{})
	if err := os.MkdirAll(filepath.Join(r.contexts(), "build-1/d"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.crash(t)
	r.open(t)
	r.wantNoContexts(t, "after a crash")
}

func TestErrorsOfBuilds(t *testing.T) {
	r := newRig(t, Limits{})
	step := func(err error) error {
		return &template.StepError{Step: 2, Steps: 3, Line: 4, Text: "RUN x", Code: 5, Output: "oh no\n", Err: err}
	}
	for _, c := range []struct {
		err  error
		code api.Code
	}{
		{step(&client.ExitError{Code: 5}), api.BadRequest}, {step(template.ErrNotReady), api.BadRequest}, {step(errors.New("broken")), api.InternalError},
		{step(syscall.ENOSPC), api.NotEnoughSpace}, {template.ErrSyntax, api.BadRequest}, {template.ErrMachine, api.BadRequest},
		{template.ErrOutside, api.BadRequest}, {template.ErrContext, api.BadRequest}, {template.ErrNoTool, api.InternalError}, {template.ErrBusy, api.Conflict},
		{rootfs.ErrNoImage, api.BadRequest}, {rootfs.ErrFormat, api.BadRequest}, {rootfs.ErrLimit, api.BadRequest}, {rootfs.ErrDigest, api.BadRequest},
	} {
		r.w.onBuild = func(context.Context, template.Spec, template.BuildOptions) error { return c.err }
		_, err := r.BuildTemplate(t.Context(), web, nil, nil)
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != c.code || e.Message != c.err.Error() {
			t.Errorf("%v became %v", c.err, err)
			continue
		}
		if _, ofStep := errors.AsType[*template.StepError](c.err); ofStep && (e.Details["line"] != 4 || e.Details["exit_code"] != 5) {
			t.Errorf("details %v", e.Details)
		}
	}
}

// TestSlowBuildsAreNotInTheWay: nothing else waits for a build.
func TestSlowBuildsAreNotInTheWay(t *testing.T) {
	r := newRig(t, Limits{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r.buildTemplate(t, "web")
	r.w.onBuild = func(context.Context, template.Spec, template.BuildOptions) error {
		b := must[*api.Sandbox](t)(r.Create(ctx, api.CreateRequest{Template: "web"}))
		must[*api.TemplateList](t)(r.Templates(ctx))
		return r.Destroy(ctx, b.ID)
	}
	must[*api.Template](t)(r.BuildTemplate(ctx, web, nil, nil))
}

// stuck is a reader that tells when it is asked, and does not answer before it is
// over.
type stuck struct{ asked, over chan struct{} }

func (s stuck) Read([]byte) (int, error) {
	close(s.asked)
	<-s.over
	return 0, io.ErrUnexpectedEOF
}

// TestBuildWhoseContextDoesNotCome: neither who gives up nor who closes the engine
// waits for an archive of which nothing comes any more.
func TestBuildWhoseContextDoesNotCome(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(r *rig, cancel func()) error
		want error
	}{
		"given up": {func(_ *rig, cancel func()) error { cancel(); return nil }, context.Canceled},
		"closed":   {func(r *rig, _ func()) error { return r.Close(context.Background(), CloseDestroys) }, errClosed},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Limits{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			archive := stuck{make(chan struct{}), make(chan struct{})}
			defer close(archive.over) // before the engine is closed, should that wait
			built, ended := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := r.BuildTemplate(ctx, web, archive, nil)
				built <- err
			}()
			<-archive.asked
			go func() { ended <- c.end(r, cancel) }()
			for _, done := range []chan error{built, ended} {
				want := c.want
				if done == ended {
					want = nil
				}
				select {
				case err := <-done:
					if !errors.Is(err, want) {
						t.Errorf("%v, want %v", err, want)
					}
				case <-time.After(10 * time.Second):
					t.Fatal("it waits")
				}
			}
			r.wantNoContexts(t, name)
		})
	}
}
