package agent_test

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

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
)

func contextWithCancel(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(within(t, 20*time.Second))
}

func TestTarRoundTrip(t *testing.T) {
	both(t, func(t *testing.T, c *client.Client) {
		src, dst := t.TempDir(), filepath.Join(t.TempDir(), "made")
		f := c.FS()
		ctx := within(t, 30*time.Second)
		when := time.Unix(1e9, 0)
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		big := bytes.Repeat([]byte("0123456789abcdef"), 200<<10)
		ok(os.MkdirAll(filepath.Join(src, "d/e"), 0o755))
		ok(os.WriteFile(filepath.Join(src, "d/big"), big, 0o640))
		ok(os.WriteFile(filepath.Join(src, "d/e/run"), []byte("#!/bin/sh\n"), 0o755))
		ok(os.Symlink("big", filepath.Join(src, "d/link")))
		ok(os.WriteFile(filepath.Join(src, strings.Repeat("long", 50)), []byte("n"), 0o644))
		ok(os.Chtimes(filepath.Join(src, "d/big"), when, when))
		ok(os.Chmod(filepath.Join(src, "d/e"), 0o500))
		var archive bytes.Buffer
		ok(f.TarOut(ctx, src, &archive))
		ok(f.TarIn(ctx, dst, &archive))
		got, err := os.ReadFile(filepath.Join(dst, "d/big"))
		if err != nil || !bytes.Equal(got, big) {
			t.Errorf("big file: %d bytes, %v", len(got), err)
		}
		st, err := os.Stat(filepath.Join(dst, "d/big"))
		if err != nil || st.Mode() != 0o640 || !st.ModTime().Equal(when) {
			t.Errorf("big file: %v, %v", st, err)
		}
		if st, err := os.Stat(filepath.Join(dst, "d/e")); err != nil || st.Mode().Perm() != 0o500 {
			t.Errorf("read-only directory: %v, %v", st, err)
		}
		if target, err := os.Readlink(filepath.Join(dst, "d/link")); err != nil || target != "big" {
			t.Errorf("link: %q, %v", target, err)
		}
		if _, err := os.Stat(filepath.Join(dst, strings.Repeat("long", 50))); err != nil {
			t.Error(err)
		}
	})
}

func TestTarOutFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "only")
	if err := os.WriteFile(name, []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := serve(t, agent.Options{}).FS().TarOut(t.Context(), name, &archive); err != nil {
		t.Fatal(err)
	}
	h, err := tar.NewReader(&archive).Next()
	if err != nil || h.Name != "only" || h.Size != 7 {
		t.Errorf("entry %+v, %v", h, err)
	}
}

// archive makes a tar archive of headers; a regular file's content is its name.
func archive(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, h.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

// TestTarInHostile checks that no archive writes outside of the directory it
// is unpacked in.
func TestTarInHostile(t *testing.T) {
	both(t, func(t *testing.T, c *client.Client) {
		reg := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
		link := func(name, target string) tar.Header {
			return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
		}
		hard := func(name, target string) tar.Header {
			return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}
		}
		for name, headers := range map[string][]tar.Header{
			"absolute name":        {reg("/evil")},
			"parent":               {reg("../evil")},
			"parent within":        {reg("a/../../evil")},
			"link to parent":       {link("up", ".."), reg("up/evil")},
			"link to absolute":     {link("up", "/tmp"), reg("up/evil")},
			"link over link":       {link("a", "."), link("a/b", ".."), reg("a/b/evil")},
			"nested link":          {{Typeflag: tar.TypeDir, Name: "d", Mode: 0o755}, link("d/x", "../.."), reg("d/x/evil")},
			"hard link out":        {hard("evil", "../secret")},
			"hard link absolute":   {hard("evil", "/etc/passwd")},
			"existing link":        {reg("planted/evil")},
			"file over dir link":   {reg("planted"), reg("planted/evil")},
			"device":               {{Typeflag: tar.TypeChar, Name: "dev", Devmajor: 1, Devminor: 3}},
			"fifo":                 {{Typeflag: tar.TypeFifo, Name: "fifo"}},
			"directory through it": {{Typeflag: tar.TypeDir, Name: "planted/evil", Mode: 0o755}},
		} {
			t.Run(name, func(t *testing.T) {
				outer := t.TempDir()
				dir := filepath.Join(outer, "in")
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(outer, "secret"), []byte("s"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(outer, filepath.Join(dir, "planted")); err != nil {
					t.Fatal(err)
				}
				err := c.FS().TarIn(within(t, 20*time.Second), dir, archive(t, headers...))
				var pe *fs.PathError
				if !errors.As(err, &pe) {
					t.Errorf("TarIn: %v, want a PathError", err)
				}
				entries, err := os.ReadDir(outer)
				if err != nil || len(entries) != 2 {
					t.Errorf("outside: %v, %v", entries, err)
				}
				if _, err := os.Stat("/tmp/evil"); err == nil {
					t.Error("/tmp/evil was written")
				}
			})
		}
	})
}

func TestTarInReplaces(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(t.TempDir(), "target")
	if err := os.WriteFile(target, []byte("keep"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(dir, "f")); err != nil {
		t.Fatal(err)
	}
	f := serve(t, agent.Options{}).FS()
	if err := f.TarIn(t.Context(), dir, archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "f"})); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "keep" {
		t.Errorf("written through a link: %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(b) != "f" {
		t.Errorf("f = %q, %v", b, err)
	}
}

func TestTarInBroken(t *testing.T) {
	both(t, func(t *testing.T, c *client.Client) {
		f := c.FS()
		whole := archive(t, tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("n", 90)}).Bytes()
		if err := f.TarIn(within(t, 20*time.Second), t.TempDir(), bytes.NewReader(whole[:600])); err == nil {
			t.Error("a truncated archive was taken")
		}
		junk := bytes.Repeat([]byte("not a tar archive. "), 1<<20)
		if err := f.TarIn(within(t, 20*time.Second), t.TempDir(), bytes.NewReader(junk)); !errors.Is(err, client.ErrBadRequest) {
			t.Errorf("junk: %v", err)
		}
		failing := io.MultiReader(bytes.NewReader(whole[:600]), failingReader{})
		if err := f.TarIn(within(t, 20*time.Second), t.TempDir(), failing); !errors.Is(err, errReader) {
			t.Errorf("failing reader: %v", err)
		}
	})
}

var errReader = errors.New("reader failed")

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errReader }

func TestTarInFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		lacks(t, "root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		lacks(t, "permission to mount a tmpfs")
	}
	defer syscall.Unmount(dir, 0)
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "big", Size: 4 << 20, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	err := serve(t, agent.Options{}).FS().TarIn(within(t, 20*time.Second), dir, &buf)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("TarIn: %v, want ENOSPC", err)
	}
}

func TestTarOutWriterFails(t *testing.T) {
	c := serve(t, agent.Options{})
	if err := c.FS().TarOut(within(t, 20*time.Second), "/proc/self/task", failingWriter{}); !errors.Is(err, errReader) {
		t.Errorf("TarOut: %v", err)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errReader }
