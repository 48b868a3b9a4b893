package guest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/agent"
)

// entries reads an archive: what its files have, and where its links lead.
func entries(t testing.TB, r io.Reader) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(b)
		if h.Typeflag == tar.TypeSymlink {
			out[h.Name] = "-> " + h.Linkname
		}
	}
}

// TestX09_TreeSkipsLinks: a tree goes out and comes in again, and a link out of
// it is not what it leads to.
func TestX09_TreeSkipsLinks(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 30*time.Second)
	dir := t.TempDir()
	write(t, g, filepath.Join(dir, "from/a/b"), "content")
	secret := filepath.Join(dir, "secret")
	write(t, g, secret, "secret")
	for _, l := range [][2]string{{"../secret", "from/out"}, {"a", "from/in"}, {"from", "link"}} {
		if err := os.Symlink(l[0], filepath.Join(dir, l[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := mkfifo(filepath.Join(dir, "from/fifo")); err != nil {
		t.Fatal(err)
	}
	r, err := g.ReadTree(ctx, filepath.Join(dir, "from"))
	if err != nil {
		t.Fatal(err)
	}
	got := entries(t, r)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if len(got) != 6 || got["a/b"] != "content" || got["out"] != "-> ../secret" || got["in"] != "-> a" {
		t.Errorf("%q", got)
	}
	r, err = g.ReadTree(ctx, filepath.Join(dir, "link"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got := entries(t, r); len(got) != 1 || got["link"] != "-> from" {
		t.Errorf("a link: %q", got)
	}
}

func TestTreeRoundTrip(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 30*time.Second)
	dir := t.TempDir()
	write(t, g, filepath.Join(dir, "from/a/b"), "content")
	write(t, g, filepath.Join(dir, "from/empty"), "")
	r, err := g.ReadTree(ctx, filepath.Join(dir, "from"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := g.WriteTree(ctx, filepath.Join(dir, "to/there"), r); err != nil {
		t.Fatal(err)
	}
	if got := read(t, g, filepath.Join(dir, "to/there/a/b")); got != "content" {
		t.Errorf("%q", got)
	}
	leftovers(t, filepath.Join(dir, "to/there"), "a", "empty")
}

// TestWriteTreeErrors: what is wrong with an archive is the client's, and what
// would lead out is not followed.
func TestWriteTreeErrors(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 30*time.Second)
	dir := t.TempDir()
	archive := func(h tar.Header) io.Reader {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		h.Mode = 0o644
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		w.Close()
		return &buf
	}
	cut := errors.New("cut")
	for name, r := range map[string]io.Reader{
		"none":     strings.NewReader(strings.Repeat("no archive ", 100)),
		"up":       archive(tar.Header{Name: "../out", Typeflag: tar.TypeReg}),
		"absolute": archive(tar.Header{Name: "/out", Typeflag: tar.TypeReg}),
		"link":     archive(tar.Header{Name: "l", Linkname: "../../out", Typeflag: tar.TypeSymlink}),
		"device":   archive(tar.Header{Name: "null", Typeflag: tar.TypeChar}),
		"cut":      io.MultiReader(io.LimitReader(archive(tar.Header{Name: "f", Typeflag: tar.TypeReg}), 100), failingReader{cut}),
	} {
		err := g.WriteTree(ctx, filepath.Join(dir, "in"), r)
		want(t, err, api.BadRequest)
		if name == "cut" && !errors.Is(err, cut) {
			t.Errorf("%s: %v", name, err)
		}
	}
	leftovers(t, filepath.Join(dir, "in"))
	leftovers(t, dir, "in")
	write(t, g, filepath.Join(dir, "file"), "")
	want(t, g.WriteTree(ctx, filepath.Join(dir, "file"), strings.NewReader("")), api.BadRequest)
	ended, cancel := context.WithCancelCause(ctx)
	err := g.WriteTree(ended, filepath.Join(dir, "in"), readerFunc(func(b []byte) (int, error) { cancel(cut); return 0, nil }))
	if err != cut {
		t.Errorf("%v", err)
	}
}

// TestReadTreeBreaksOff: who reads half a tree is told that it is not all.
func TestReadTreeBreaksOff(t *testing.T) {
	answer := append(frame(replyFrame, "{}"), frame(dataFrame, strings.Repeat("x", 1000))...)
	r, err := answering(answer).ReadTree(within(t, 30*time.Second), "/x")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if want(t, err, api.Gone); !errors.Is(err, ErrLost) || len(b) != 1000 {
		t.Errorf("%v after %d bytes", err, len(b))
	}
}

// TestReadTreeClosedEarly: who closes it early leaves nothing behind, and who
// goes ends it.
func TestReadTreeClosedEarly(t *testing.T) {
	g := start(t, agent.Options{})
	dir := t.TempDir()
	write(t, g, filepath.Join(dir, "f"), "")
	if err := os.Truncate(filepath.Join(dir, "f"), 1<<40); err != nil { // nobody comes to its end
		t.Fatal(err)
	}
	r, err := g.ReadTree(within(t, 30*time.Second), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(within(t, 30*time.Second))
	if r, err = g.ReadTree(ctx, dir); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cancel()
	if _, err := io.Copy(io.Discard, r); err != context.Canceled {
		t.Errorf("%v", err)
	}
}
