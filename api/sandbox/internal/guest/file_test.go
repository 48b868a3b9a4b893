package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/agent"
)

func write(t testing.TB, g *Guest, p, content string) *api.FileInfo {
	t.Helper()
	info, err := g.WriteFile(within(t, 30*time.Second), p, strings.NewReader(content), api.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func read(t testing.TB, g *Guest, p string) string {
	t.Helper()
	r, _, err := g.ReadFile(within(t, 30*time.Second), p)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestU22_WriteFile: by an absolute path, with the directories on the way.
func TestU22_WriteFile(t *testing.T) {
	g := start(t, agent.Options{})
	dir := t.TempDir()
	p := filepath.Join(dir, "a/b/c")
	info := write(t, g, p, "hello")
	if info.Name != "c" || info.Path != p || info.Size != 5 || info.Mode != 0o644 || info.Type != api.RegularFile || info.UID != os.Getuid() {
		t.Errorf("%+v", info)
	}
	if got := read(t, g, p); got != "hello" {
		t.Errorf("%q", got)
	}
	if write(t, g, p, ""); read(t, g, p) != "" {
		t.Error("not emptied")
	}
	leftovers(t, filepath.Dir(p), "c")
}

// leftovers fails the test if a directory has anything else than these.
func leftovers(t testing.TB, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, names) {
		t.Errorf("%s has %q, want %q", dir, got, names)
	}
}

func TestWriteFileMode(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 30*time.Second)
	p := filepath.Join(t.TempDir(), "f")
	mode := uint32(0o4751)
	info, err := g.WriteFile(ctx, p, strings.NewReader("x"), api.WriteOptions{Mode: &mode})
	if err != nil || info.Mode != mode {
		t.Errorf("%+v, %v", info, err)
	}
	mode = 0o600
	if info, err = g.WriteFile(ctx, p, strings.NewReader("y"), api.WriteOptions{Mode: &mode}); err != nil || info.Mode != 0o4751 {
		t.Errorf("an old file: %+v, %v", info, err)
	}
	mode = 0o10000
	_, err = g.WriteFile(ctx, p, strings.NewReader("y"), api.WriteOptions{Mode: &mode})
	if e := want(t, err, api.BadRequest); !strings.HasPrefix(e.Message, "mode: ") {
		t.Error(e)
	}
}

// TestWriteFileKeepsOwner needs root, as to give a file away does.
func TestWriteFileKeepsOwner(t *testing.T) {
	needRoot(t)
	g := start(t, agent.Options{})
	p := filepath.Join(t.TempDir(), "f")
	write(t, g, p, "old")
	if err := os.Chown(p, 12, 34); err != nil {
		t.Fatal(err)
	}
	if info := write(t, g, p, "new"); info.UID != 12 || info.GID != 34 || read(t, g, p) != "new" {
		t.Errorf("%+v", info)
	}
}

// TestWriteFileThroughLinks: a link is followed to what it names, also if that
// is not there, is behind other links, or is above where a link leads.
func TestWriteFileThroughLinks(t *testing.T) {
	g := start(t, agent.Options{})
	dir := t.TempDir()
	for _, d := range []string{"real/deep", "real/sub", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	links := [][2]string{
		{"real/deep", "shortcut"},                    // shortcut/.. is real
		{"../sub/target", "real/deep/up"},            // real/sub/target
		{filepath.Join(dir, "other/abs"), "abs"},     // absolute
		{"abs2", "chain"}, {"other/chained", "abs2"}, // one after the other
		{"loop2", "loop1"}, {"loop1", "loop2"},
	}
	for k := range 10 { // each is a link, and all together a long way
		links = append(links, [2]string{strings.Repeat("real/../", 250) + fmt.Sprintf("far%d", k+1), fmt.Sprintf("far%d", k)})
	}
	for _, l := range links {
		if err := os.Symlink(l[0], filepath.Join(dir, l[1])); err != nil {
			t.Fatal(err)
		}
	}
	for through, target := range map[string]string{"shortcut/up": "real/sub/target", "abs": "other/abs", "chain": "other/chained"} {
		p := filepath.Join(dir, through)
		for _, content := range []string{"new", "old"} {
			if info := write(t, g, p, content); info.Type != api.RegularFile || info.Path != p {
				t.Errorf("%+v", info)
			}
			b, err := os.ReadFile(filepath.Join(dir, target))
			if err != nil || string(b) != content {
				t.Errorf("%s: %q, %v", through, b, err)
			}
		}
		real, err := g.RealPath(within(t, 30*time.Second), p)
		if err != nil || real.Path != filepath.Join(dir, target) {
			t.Errorf("%s leads to %+v, %v", through, real, err)
		}
		if fi, err := os.Lstat(p); err != nil || fi.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s is no link any more: %v", through, err)
		}
	}
	_, err := g.WriteFile(within(t, 30*time.Second), filepath.Join(dir, "loop1"), strings.NewReader("x"), api.WriteOptions{})
	want(t, err, api.BadRequest)
	ctx := within(t, 30*time.Second)
	for _, endless := range []string{"loop1", "loop1/x", "far0"} {
		_, err := g.RealPath(ctx, filepath.Join(dir, endless))
		want(t, err, api.BadRequest)
	}
	for p, to := range map[string]string{"shortcut/none/x": "real/deep/none/x", "none": "none", "far9": "far10", "real": "real"} {
		if real, err := g.RealPath(ctx, filepath.Join(dir, p)); err != nil || real.Path != filepath.Join(dir, to) {
			t.Errorf("%s leads to %+v, %v", p, real, err)
		}
	}
	leftovers(t, filepath.Join(dir, "real/sub"), "target")
	leftovers(t, filepath.Join(dir, "other"), "abs", "chained")
}

// TestX09_FailedUploadKeepsFile: and leaves nothing else behind.
func TestX09_FailedUploadKeepsFile(t *testing.T) {
	g := start(t, agent.Options{})
	dir := t.TempDir()
	p := filepath.Join(dir, "f")
	write(t, g, p, "old")
	cut := errors.New("cut")
	_, err := g.WriteFile(within(t, 30*time.Second), p, io.MultiReader(strings.NewReader("new"), failingReader{cut}), api.WriteOptions{})
	want(t, err, api.BadRequest)
	if !errors.Is(err, cut) || read(t, g, p) != "old" {
		t.Errorf("%v, %q", err, read(t, g, p))
	}
	ctx, cancel := context.WithCancelCause(within(t, 30*time.Second))
	_, err = g.WriteFile(ctx, p, io.MultiReader(strings.NewReader("new"), readerFunc(func(b []byte) (int, error) {
		cancel(cut)
		return copy(b, "more"), nil
	})), api.WriteOptions{})
	if err != cut || read(t, g, p) != "old" {
		t.Errorf("%v, %q", err, read(t, g, p))
	}
	leftovers(t, dir, "f")
	// An error of the API stays what it is.
	_, err = g.WriteFile(within(t, 30*time.Second), p, failingReader{api.Errorf(api.Forbidden, "no")}, api.WriteOptions{})
	want(t, err, api.Forbidden)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// TestX09_Paths: which are refused, by name, without asking the guest.
func TestX09_Paths(t *testing.T) {
	g := new(Guest)
	ctx := t.Context()
	for name, p := range map[string]string{
		"empty": "", "relative": "a/b", "up": "/a/../b", "up at the end": "/a/..", "NUL": "/a\x00b", "long": "/" + strings.Repeat("a", maxPath),
	} {
		for call, do := range map[string]func() error{
			"read":  func() error { _, _, err := g.ReadFile(ctx, p); return err },
			"write": func() error { _, err := g.WriteFile(ctx, p, nil, api.WriteOptions{}); return err },
			"stat":  func() error { _, err := g.Stat(ctx, p); return err },
			"list":  func() error { _, err := g.ListFiles(ctx, p); return err },
			"real":  func() error { _, err := g.RealPath(ctx, p); return err },
			"mkdir": func() error { _, err := g.Mkdir(ctx, p); return err },
			"rm":    func() error { return g.Remove(ctx, p, api.RemoveOptions{}) },
			"tree":  func() error { _, err := g.ReadTree(ctx, p); return err },
			"untar": func() error { return g.WriteTree(ctx, p, nil) },
			"watch": func() error { return g.Watch(ctx, p, nil, nil) },
		} {
			if e := want(t, do(), api.BadRequest); !strings.HasPrefix(e.Message, "path: ") {
				t.Errorf("%s of %s: %v", call, name, e)
			}
		}
		_, err := g.Rename(ctx, p, "/x")
		if e := want(t, err, api.BadRequest); !strings.HasPrefix(e.Message, "from: ") {
			t.Error(e)
		}
		_, err = g.Rename(ctx, "/x", p)
		if e := want(t, err, api.BadRequest); !strings.HasPrefix(e.Message, "to: ") {
			t.Error(e)
		}
	}
	for p, want := range map[string]string{"/": "/", "//a/./b//": "/a/b", "/...": "/...", "/a..b/..c": "/a..b/..c", "/\xff": "/\xff"} {
		if got, err := CheckPath("path", p); err != nil || got != want {
			t.Errorf("%q: %q, %v", p, got, err)
		}
	}
}

func FuzzPath(f *testing.F) {
	for _, p := range []string{"/", "/a/../b", "/a/./b/", "//", "/\xff", "a", "/..", "/.../x"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		got, err := CheckPath("path", p)
		if err != nil {
			want(t, err, api.BadRequest)
			return
		}
		if !filepath.IsAbs(got) || len(got) > len(p) || hasNUL(got) || slices.Contains(strings.Split(got, "/"), "..") {
			t.Fatalf("%q became %q", p, got)
		}
		if again, err := CheckPath("path", got); err != nil || again != got {
			t.Fatalf("%q became %q, %v", got, again, err)
		}
	})
}

// TestX09_Missing: 404 for what is not there.
func TestX09_Missing(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 30*time.Second)
	p := filepath.Join(t.TempDir(), "no/such")
	for call, do := range map[string]func() error{
		"read":   func() error { _, _, err := g.ReadFile(ctx, p); return err },
		"stat":   func() error { _, err := g.Stat(ctx, p); return err },
		"list":   func() error { _, err := g.ListFiles(ctx, p); return err },
		"rename": func() error { _, err := g.Rename(ctx, p, p+"2"); return err },
		"rm":     func() error { return g.Remove(ctx, p, api.RemoveOptions{}) },
		"rm -r":  func() error { return g.Remove(ctx, p, api.RemoveOptions{Recursive: true}) },
		"tree":   func() error { _, err := g.ReadTree(ctx, p); return err },
		"watch":  func() error { return g.Watch(ctx, p, nil, nil) },
	} {
		if e := want(t, do(), api.NotFound); e.Details["errno"] != "ENOENT" {
			t.Errorf("%s: %v, %v", call, e, e.Details)
		}
	}
}

// TestSpecialFiles: what is no file is refused, and not opened: a FIFO would
// have one wait for its other side.
func TestSpecialFiles(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 30*time.Second)
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := mkfifo(fifo); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("fifo", link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, fifo, link, "/dev/null"} {
		_, _, err := g.ReadFile(ctx, p)
		want(t, err, api.BadRequest)
		_, err = g.WriteFile(ctx, p, strings.NewReader("x"), api.WriteOptions{})
		want(t, err, api.BadRequest)
	}
	for _, p := range []string{fifo, "/dev/null"} {
		_, err := g.ListFiles(ctx, p)
		want(t, err, api.BadRequest)
		if info, err := g.Stat(ctx, p); err != nil || info.Type != api.OtherFile {
			t.Errorf("%+v, %v", info, err)
		}
	}
}

func TestStatAndList(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 30*time.Second)
	dir := t.TempDir()
	write(t, g, filepath.Join(dir, "b"), "xyz")
	if err := os.Symlink("b", filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if info, err := g.Mkdir(ctx, filepath.Join(dir, "c/d")); err != nil || info.Type != api.Directory || info.Name != "d" {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := g.Mkdir(ctx, filepath.Join(dir, "c/d")); err != nil {
		t.Errorf("again: %v", err)
	}
	_, err := g.Mkdir(ctx, filepath.Join(dir, "b"))
	want(t, err, api.BadRequest)
	if err := os.Chmod(filepath.Join(dir, "c"), 0o755|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	list, err := g.ListFiles(ctx, dir+"/")
	if err != nil || len(list.Files) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	a, b, c := list.Files[0], list.Files[1], list.Files[2]
	if a.Name != "a" || a.Type != api.Symlink || a.Target != "b" || a.Path != filepath.Join(dir, "a") {
		t.Errorf("%+v", a)
	}
	if b.Name != "b" || b.Type != api.RegularFile || b.Size != 3 || b.Target != "" || time.Since(b.ModifiedAt) > time.Minute {
		t.Errorf("%+v", b)
	}
	if c.Name != "c" || c.Type != api.Directory || c.Mode != 0o1755 {
		t.Errorf("%+v", c)
	}
	for i, p := range []string{"a", "b", "c"} {
		if info, err := g.Stat(ctx, filepath.Join(dir, p)); err != nil || *info != list.Files[i] {
			t.Errorf("%+v, %v, want %+v", info, err, list.Files[i])
		}
	}
	if root, err := g.Stat(ctx, "/"); err != nil || root.Path != "/" || root.Name != "/" || root.Type != api.Directory {
		t.Errorf("%+v, %v", root, err)
	}
	if empty, err := g.ListFiles(ctx, filepath.Join(dir, "c/d")); err != nil || empty.Files == nil || len(empty.Files) != 0 {
		t.Errorf("%+v, %v", empty, err)
	}
}

func TestRenameAndRemove(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 30*time.Second)
	dir := t.TempDir()
	at := func(p string) string { return filepath.Join(dir, p) }
	write(t, g, at("d/f"), "1")
	write(t, g, at("g"), "2")
	if info, err := g.Rename(ctx, at("g"), at("d/f")); err != nil || info.Path != at("d/f") || info.Name != "f" || read(t, g, at("d/f")) != "2" {
		t.Errorf("%+v, %v", info, err)
	}
	write(t, g, at("e/f"), "3")
	_, err := g.Rename(ctx, at("d"), at("e"))
	want(t, err, api.Conflict)
	if e := want(t, g.Remove(ctx, at("d"), api.RemoveOptions{}), api.Conflict); e.Details["errno"] != "ENOTEMPTY" {
		t.Error(e.Details)
	}
	if err := os.Symlink("d", at("link")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"link", "e"} {
		if err := g.Remove(ctx, at(p), api.RemoveOptions{Recursive: true}); err != nil {
			t.Error(err)
		}
	}
	leftovers(t, dir, "d")
	leftovers(t, at("d"), "f")
	want(t, g.Remove(ctx, "/", api.RemoveOptions{Recursive: true}), api.BadRequest)
	_, err = g.Stat(ctx, at("d/f/x"))
	want(t, err, api.BadRequest) // a file is no directory
}
