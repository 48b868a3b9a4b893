package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/internal/localtree"
)

// dirFiles has directories of this machine for sandboxes, by their ids.
type dirFiles struct {
	api.Files // panics if there is more to ask
	dirs      map[string]string
}

func (d dirFiles) at(a api.Access, name string) string { return filepath.Join(d.dirs[a.ID], name) }

func (d dirFiles) Stat(_ context.Context, a api.Access, name string) (*api.FileInfo, error) {
	fi, err := os.Lstat(d.at(a, name))
	if err != nil {
		return nil, api.Errorf(api.NotFound, "%w", err)
	}
	i := &api.FileInfo{Path: filepath.Clean(name), Type: api.RegularFile, Mode: uint32(fi.Mode().Perm())}
	switch fi.Mode().Type() {
	case fs.ModeDir:
		i.Type = api.Directory
	case fs.ModeSymlink:
		i.Type = api.Symlink
		i.Target, err = os.Readlink(d.at(a, name))
	}
	return i, err
}

func (d dirFiles) RealPath(_ context.Context, a api.Access, name string) (*api.RealPath, error) {
	whole, err := realPath(d.at(a, name))
	if err != nil {
		return nil, api.Errorf(api.BadRequest, "%w", err)
	}
	in, err := filepath.Rel(d.dirs[a.ID], whole)
	return &api.RealPath{Path: filepath.Join("/", in)}, err
}

// realPath is filepath.EvalSymlinks of a file that need not exist.
func realPath(name string) (string, error) {
	there, err := filepath.EvalSymlinks(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return there, err
	}
	dir, err := realPath(filepath.Dir(name))
	if err != nil {
		return "", err
	}
	name = filepath.Join(dir, filepath.Base(name))
	if target, err := os.Readlink(name); err == nil {
		return realPath(filepath.Join(dir, target))
	}
	return name, nil
}

func (d dirFiles) ReadFile(ctx context.Context, a api.Access, name string) (io.ReadCloser, *api.FileInfo, error) {
	f, err := os.Open(d.at(a, name))
	if err != nil {
		return nil, nil, err
	}
	i, err := d.Stat(ctx, a, name)
	return f, i, err
}

func (d dirFiles) WriteFile(_ context.Context, a api.Access, name string, r io.Reader, o api.WriteOptions) (*api.FileInfo, error) {
	return nil, replaceFile(d.at(a, name), fs.FileMode(*o.Mode), func(w io.Writer) error {
		_, err := io.Copy(w, r)
		return err
	})
}

func (d dirFiles) ReadTree(_ context.Context, a api.Access, name string) (io.ReadCloser, error) {
	r, w := io.Pipe()
	go func() { w.CloseWithError(localtree.Pack(w, d.at(a, name))) }()
	return r, nil
}

func (d dirFiles) WriteTree(_ context.Context, a api.Access, name string, r io.Reader) error {
	return localtree.Unpack(d.at(a, name), r, localtree.Limits{})
}

// makeTree makes files with their own names in them, directories, whose names
// end with a slash, and links, which are written NAME -> TARGET.
func makeTree(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		name, link, isLink := strings.Cut(name, " -> ")
		whole := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(whole), 0o700)
		switch {
		case err != nil:
		case isLink:
			err = os.Symlink(link, whole)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(whole, 0o700)
		default:
			err = os.WriteFile(whole, []byte(name), 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestCopy copies between sandboxes, and between this machine and one: which of
// these makes no difference.
func TestCopy(t *testing.T) {
	from := []string{"f", "dir/a", "dir/sub/b", "dir/sub/link -> ../a", "ldir -> dir", "lf -> f", "far -> ldir/sub/link", "loop -> loop", "lost -> none"}
	to := []string{"there/", "lthere -> there", "deep/sub/", "ldeep -> deep/sub", "up -> ldeep/..", "file", "lfile -> file", "lnew -> new"}
	for _, c := range []struct {
		from, to string
		name     string // the file of to that is looked at
		has      string // what it has; empty: the copy fails, and it is not there
	}{
		{from: "f", to: "new", name: "new", has: "f"},
		{from: "f", to: "there", name: "there/f", has: "f"},
		{from: "f", to: "there/", name: "there/f", has: "f"},
		{from: "f", to: "lthere", name: "there/f", has: "f"},
		{from: "f", to: "ldeep", name: "deep/sub/f", has: "f"},
		{from: "f", to: "up", name: "deep/f", has: "f"},
		{from: "f", to: "file", name: "file", has: "f"},
		{from: "lf", to: "new", name: "new", has: "f"},
		{from: "lf", to: "there", name: "there/lf", has: "f"},
		{from: "far", to: "new", name: "new", has: "dir/a"},
		{from: "dir", to: "new", name: "new/sub/b", has: "dir/sub/b"},
		{from: "dir", to: "there", name: "there/dir/a", has: "dir/a"},
		{from: "dir/", to: "there", name: "there/dir/a", has: "dir/a"},
		{from: "dir/.", to: "there", name: "there/a", has: "dir/a"},
		{from: "dir/.", to: "new", name: "new/sub/link", has: "dir/a"},
		{from: "dir/.", to: "lthere", name: "there/a", has: "dir/a"},
		{from: "ldir", to: "there", name: "there/ldir/a", has: "dir/a"},
		{from: "ldir", to: "new", name: "new/a", has: "dir/a"},
		{from: "dir", to: "file", name: "file/a"},
		{from: "none", to: "new", name: "new"},
		{from: "lost", to: "new", name: "new"},
		{from: "loop", to: "new", name: "new"},
		{from: "f/", to: "new", name: "new"},
		{from: "f/.", to: "new", name: "new"},
	} {
		for how, do := range map[string]func(a, b *copier, from, to string) error{
			"between": func(a, b *copier, _, _ string) error { return a.copyTo(t.Context(), "/"+c.from, b, "/"+c.to) },
			"up":      func(_, b *copier, from, _ string) error { return b.upload(t.Context(), from+"/"+c.from, "/"+c.to) },
			"down":    func(a, _ *copier, _, to string) error { return a.download(t.Context(), "/"+c.from, to+"/"+c.to) },
		} {
			one, two := makeTree(t, from...), makeTree(t, to...)
			files := dirFiles{dirs: map[string]string{"one": one, "two": two}}
			err := do(&copier{files, api.Access{ID: "one"}}, &copier{files, api.Access{ID: "two"}}, one, two)
			got, readErr := os.ReadFile(filepath.Join(two, c.name))
			if (err == nil) != (c.has != "") || (readErr == nil) != (c.has != "") || string(got) != c.has {
				t.Errorf("%s: %s to %s: %v, and %s has %q, %v, want %q", how, c.from, c.to, err, c.name, got, readErr, c.has)
			}
		}
	}
}

// TestCopyKeepsModes: what may be run may be run there.
func TestCopyKeepsModes(t *testing.T) {
	one, two := makeTree(t, "f"), makeTree(t)
	if err := os.Chmod(filepath.Join(one, "f"), 0o751); err != nil {
		t.Fatal(err)
	}
	files := dirFiles{dirs: map[string]string{"one": one, "two": two}}
	a, b := &copier{files, api.Access{ID: "one"}}, &copier{files, api.Access{ID: "two"}}
	if err := a.copyTo(t.Context(), "/f", b, "/f"); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(filepath.Join(two, "f")); err != nil || fi.Mode() != 0o751 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
}

// TestCopyInOneSandbox: a directory is not copied into itself, whatever it is
// called there.
func TestCopyInOneSandbox(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"/dir", "/dir/sub", false}, {"/dir", "/dir/new", false}, {"/dir", "/dir", false}, {"/dir/.", "/dir", false},
		{"/dir", "/ldir", false}, {"/ldir", "/dir/sub/new", false}, {"/dir", "/lsub/new", false}, {"/", "/new", false}, {"/.", "/new/x", false},
		{"/dir", "/dir2", true}, {"/dir/sub", "/dir", false}, {"/dir/sub", "/", true}, {"/dir/a", "/dir/sub", true}, {"/dir/sub", "/ldir/new", true},
	} {
		dir := makeTree(t, "dir/a", "dir/sub/b", "ldir -> dir", "lsub -> ldir/sub")
		files := dirFiles{dirs: map[string]string{"one": dir}}
		box := &copier{files, api.Access{ID: "one"}}
		before := countFiles(t, dir)
		err := box.copyTo(t.Context(), c.from, box, c.to)
		if c.ok && err != nil {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
		if after := countFiles(t, dir); !c.ok && (exitCode(err) != exitUsage || after != before) {
			t.Errorf("%s to %s: %v, and there are %d files, before %d", c.from, c.to, err, after, before)
		}
	}
}

func countFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, _ fs.DirEntry, err error) error { n++; return err })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// hugeFiles has a file, and a directory, of many bytes, which it makes up.
type hugeFiles struct {
	api.Files
	size       int64
	read, most atomic.Int64 // bytes that came, and how many of these at most were not taken
}

const hugeDir = "/dir"

func (h *hugeFiles) Stat(_ context.Context, a api.Access, name string) (*api.FileInfo, error) {
	switch {
	case a.ID == "two":
		return nil, api.Errorf(api.NotFound, "none")
	case name == hugeDir:
		return &api.FileInfo{Path: name, Type: api.Directory}, nil
	}
	return &api.FileInfo{Path: name, Type: api.RegularFile}, nil
}

func (h *hugeFiles) Read(b []byte) (int, error) {
	if h.size == h.read.Load() {
		return 0, io.EOF
	}
	n := min(int64(len(b)), h.size-h.read.Load())
	h.read.Add(n)
	return int(n), nil
}

func (h *hugeFiles) ReadFile(_ context.Context, _ api.Access, name string) (io.ReadCloser, *api.FileInfo, error) {
	return io.NopCloser(h), &api.FileInfo{Path: name}, nil
}

func (h *hugeFiles) ReadTree(context.Context, api.Access, string) (io.ReadCloser, error) {
	return io.NopCloser(h), nil
}

func (h *hugeFiles) WriteFile(_ context.Context, _ api.Access, _ string, r io.Reader, _ api.WriteOptions) (*api.FileInfo, error) {
	return nil, h.take(r)
}

func (h *hugeFiles) WriteTree(_ context.Context, _ api.Access, _ string, r io.Reader) error {
	return h.take(r)
}

func (h *hugeFiles) take(r io.Reader) error {
	b := make([]byte, 32<<10)
	for taken := int64(0); ; {
		n, err := r.Read(b)
		taken += int64(n)
		h.most.Store(max(h.most.Load(), h.read.Load()-taken))
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// TestCopyBetweenIsAStream: nothing is kept of what goes from one sandbox to
// another.
func TestCopyBetweenIsAStream(t *testing.T) {
	for _, name := range []string{"/file", hugeDir} {
		h := &hugeFiles{size: 1 << 30}
		a, b := &copier{h, api.Access{ID: "one"}}, &copier{h, api.Access{ID: "two"}}
		if err := a.copyTo(t.Context(), name, b, "/to"); err != nil {
			t.Error(err)
		}
		if h.read.Load() != h.size || h.most.Load() > 1<<20 {
			t.Errorf("%s: %d bytes went, and up to %d were kept", name, h.read.Load(), h.most.Load())
		}
	}
}
