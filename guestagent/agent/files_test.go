package agent_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
)

func TestFilesReadWrite(t *testing.T) {
	both(t, func(t *testing.T, c *client.Client) {
		f := c.FS().WithContext(within(t, 30*time.Second))
		name := filepath.Join(t.TempDir(), "f")
		for _, size := range []int{0, 1, 256 << 10, 256<<10 + 1, 3 << 20} {
			data := make([]byte, size)
			(&noise{}).Read(data)
			if err := f.WriteFile(name, data, 0o640); err != nil {
				t.Fatal(err)
			}
			got, err := f.ReadFile(name)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d bytes: read %d, %v", size, len(got), err)
			}
		}
		st, err := f.Stat(name)
		if err != nil || st.Mode() != 0o640 || st.Size() != 3<<20 || st.Name() != "f" {
			t.Errorf("Stat: %+v, %v", st, err)
		}
	})
}

// TestFileOnFullDisk: the errno of a full disk comes through, and the file can be
// used further.
func TestFileOnFullDisk(t *testing.T) {
	f := serve(t, agent.Options{}).FS().WithContext(within(t, 30*time.Second))
	if err := f.WriteFile("/dev/full", []byte("x"), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("WriteFile: %v", err)
	}
	file, err := f.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if n, err := file.Write(make([]byte, 1<<20)); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Write = %d, %v", n, err)
	}
	if n, err := file.Read(make([]byte, 10)); n != 10 || err != nil {
		t.Errorf("Read = %d, %v", n, err)
	}
}

func TestFileOffsets(t *testing.T) {
	f := serve(t, agent.Options{}).FS().WithContext(within(t, 30*time.Second))
	name := filepath.Join(t.TempDir(), "f")
	file, err := f.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	must := func(n int, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(file.Write([]byte("0123456789")))
	must(file.WriteAt([]byte("ab"), 2))
	if off, err := file.Seek(-4, io.SeekEnd); err != nil || off != 6 {
		t.Fatalf("Seek = %d, %v", off, err)
	}
	rest, err := io.ReadAll(file)
	if err != nil || string(rest) != "6789" {
		t.Errorf("after Seek: %q, %v", rest, err)
	}
	buf := make([]byte, 4)
	if n, err := file.ReadAt(buf, 1); err != nil || string(buf[:n]) != "1ab4" {
		t.Errorf("ReadAt = %q, %v", buf[:n], err)
	}
	if n, err := file.ReadAt(buf, 8); n != 2 || err != io.EOF {
		t.Errorf("ReadAt at the end = %d, %v", n, err)
	}
	if err := file.Truncate(3); err != nil {
		t.Error(err)
	}
	if st, err := file.Stat(); err != nil || st.Size() != 3 {
		t.Errorf("Stat after Truncate: %v, %v", st, err)
	}
	if err := file.Sync(); err != nil {
		t.Error(err)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	if _, err := file.Read(buf); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Read after Close: %v", err)
	}

	app, err := f.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	must(app.Write([]byte("end")))
	if err := app.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != "01aend" {
		t.Errorf("after appending: %q, %v", got, err)
	}
}

func TestFileNotSeekable(t *testing.T) {
	f := serve(t, agent.Options{}).FS().WithContext(within(t, 30*time.Second))
	got, err := f.ReadFile("/proc/self/status")
	if err != nil || !strings.HasPrefix(string(got), "Name:") {
		t.Errorf("/proc file: %.20q, %v", got, err)
	}
	zero, err := f.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	if n, err := io.CopyN(io.Discard, zero, 1<<20); n != 1<<20 || err != nil {
		t.Errorf("/dev/zero: %d, %v", n, err)
	}
	full, err := f.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if _, err := full.Write([]byte("x")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write to a full disk: %v, want ENOSPC", err)
	}
}

// TestFileReadThatWaits checks that a client's end ends a read that nothing
// else would.
func TestFileReadThatWaits(t *testing.T) {
	path := serveSocket(t, agent.Options{MaxConns: 1})
	c := client.New(dialer(path))
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	keep, err := os.OpenFile(fifo, os.O_RDWR, 0) // so that the other end is open
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	ctx, cancel := contextWithCancel(t)
	f, err := c.FS().WithContext(ctx).Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(f)
		read <- err
	}()
	if _, err := keep.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-read; !errors.Is(err, context.Canceled) {
		t.Errorf("Read: %v", err)
	}
	awaitFree(t, c) // the only place was the reader's
}

// awaitFree waits until the agent has a place for another operation.
func awaitFree(t *testing.T, c *client.Client) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		_, err := c.Hello(within(t, 10*time.Second))
		if err == nil {
			return
		}
		if !errors.Is(err, client.ErrBusy) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestTarOutLeavesOutKernelViews(t *testing.T) {
	c := serve(t, agent.Options{})
	root := t.TempDir()
	proc := filepath.Join(root, "proc")
	if err := os.Mkdir(proc, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("proc", proc, "proc", 0, ""); err != nil {
		lacks(t, "permission to mount")
	}
	defer syscall.Unmount(proc, 0)
	var buf bytes.Buffer
	if err := c.FS().TarOut(within(t, 20*time.Second), root, &buf); err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(&buf); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, h.Name)
	}
	if !slices.Equal(names, []string{"./", "proc/"}) {
		t.Errorf("archived %q", names)
	}
}

func TestFilesLarge(t *testing.T) {
	const size = 100 << 20
	f := serve(t, agent.Options{}).FS().WithContext(within(t, 120*time.Second))
	name := filepath.Join(t.TempDir(), "f")
	file, err := f.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	sent, got := sha256.New(), sha256.New()
	heap := watchHeap(t)
	if _, err := io.Copy(file, io.TeeReader(io.LimitReader(&noise{}, size), io.MultiWriter(sent, heap))); err != nil {
		t.Fatal(err)
	}
	heap.check(t, size)
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	heap = watchHeap(t)
	if _, err := io.Copy(io.MultiWriter(got, heap), file); err != nil {
		t.Fatal(err)
	}
	heap.check(t, size)
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Error("checksums differ")
	}
}

func TestFileTree(t *testing.T) {
	dir := t.TempDir()
	f := serve(t, agent.Options{Dir: dir}).FS().WithContext(within(t, 30*time.Second))
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(f.Mkdir("a", 0o755)) // relative to the default directory
	ok(f.MkdirAll("a/b/c", 0o755))
	ok(f.WriteFile("a/f", []byte("x"), 0o644))
	ok(f.Rename("a/f", "a/b/g"))
	ok(f.Symlink("b/g", "a/link"))
	ok(f.Chmod("a/b/g", 0o600))
	when := time.Unix(1e9, 5e8)
	ok(f.Chtimes("a/b/g", when, when))
	if target, err := f.Readlink("a/link"); err != nil || target != "b/g" {
		t.Errorf("Readlink = %q, %v", target, err)
	}
	st, err := f.Stat("a/link")
	if err != nil || st.Mode() != 0o600 || !st.ModTime().Equal(when) {
		t.Errorf("Stat = %v, %v", st, err)
	}
	st, err = f.Lstat("a/link")
	if err != nil || st.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("Lstat = %v, %v", st, err)
	}
	entries, err := f.ReadDir("a")
	names := func() (out []string) {
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return
	}()
	if err != nil || !slices.Equal(names, []string{"b", "link"}) || !entries[0].IsDir() {
		t.Errorf("ReadDir = %v, %v", names, err)
	}
	ok(f.Remove("a/link"))
	if os.Getuid() == 0 {
		ok(f.Chown("a/b/g", 1, 2))
		st, err := f.Stat("a/b/g")
		if sys, _ := st.Sys().(client.Sys); err != nil || sys.UID != 1 || sys.GID != 2 {
			t.Errorf("Chown: %+v, %v", sys, err)
		}
	}
	ok(f.RemoveAll("a"))
	ok(f.RemoveAll("a"))
	if _, err := os.Stat(filepath.Join(dir, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after RemoveAll: %v", err)
	}
}

func TestFileNamesOfAnyBytes(t *testing.T) {
	dir := t.TempDir()
	f := serve(t, agent.Options{Dir: dir}).FS()
	name := "caf\xe9 \"\\\n\x01"
	if err := f.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	entries, err := f.ReadDir(".")
	if err != nil || len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("ReadDir = %v, %v", entries, err)
	}
}

func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f := serve(t, agent.Options{Dir: dir}).FS()
	for _, tc := range []struct {
		name string
		do   func() error
		is   error
	}{
		{"open", func() error { _, err := f.Open("none"); return err }, fs.ErrNotExist},
		{"read", func() error { _, err := f.ReadFile("none"); return err }, fs.ErrNotExist},
		{"stat", func() error { _, err := f.Stat("none"); return err }, fs.ErrNotExist},
		{"readdir", func() error { _, err := f.ReadDir("none"); return err }, fs.ErrNotExist},
		{"readdir of a file", func() error { _, err := f.ReadDir("f"); return err }, syscall.ENOTDIR},
		{"mkdir", func() error { return f.Mkdir("f", 0o755) }, fs.ErrExist},
		{"remove", func() error { return f.Remove("none") }, fs.ErrNotExist},
		{"rename", func() error { return f.Rename("none", "x") }, fs.ErrNotExist},
		{"symlink", func() error { return f.Symlink("x", "f") }, fs.ErrExist},
		{"readlink", func() error { _, err := f.Readlink("f"); return err }, syscall.EINVAL},
		{"exclusive", func() error { _, err := f.OpenFile("f", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); return err }, fs.ErrExist},
		{"tar", func() error { return f.TarOut(t.Context(), "none", io.Discard) }, fs.ErrNotExist},
		{"watch", func() error { _, err := f.Watch(t.Context(), "none"); return err }, fs.ErrNotExist},
		{"write to a directory", func() error { return f.WriteFile(".", []byte("x"), 0o644) }, syscall.EISDIR},
		{"empty path", func() error { _, err := f.Stat(""); return err }, client.ErrBadRequest},
		{"NUL", func() error { _, err := f.Stat("a\x00b"); return err }, client.ErrBadRequest},
	} {
		err := tc.do()
		var pe *fs.PathError
		if !errors.As(err, &pe) || !errors.Is(err, tc.is) {
			t.Errorf("%s: %v (%T), want a PathError that is %v", tc.name, err, err, tc.is)
		}
	}
}

func TestFilesReadDirMany(t *testing.T) {
	dir := t.TempDir()
	const n = 3000
	long := strings.Repeat("\x01", 240) // needs six bytes each in JSON
	for i := range n {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%04d%s", i, long)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := serve(t, agent.Options{}).FS().ReadDir(dir)
	if err != nil || len(entries) != n {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for i, e := range entries {
		if want := fmt.Sprintf("%04d%s", i, long); e.Name() != want {
			t.Fatalf("entry %d is %.8q", i, e.Name())
		}
	}
}

func TestDirFS(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "d/b", "d/e/c"} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("content of "+name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f := serve(t, agent.Options{}).FS()
	if err := fstest.TestFS(f.DirFS(dir), "a", "d/b", "d/e/c"); err != nil {
		t.Error(err)
	}
}

func TestWatch(t *testing.T) {
	both(t, func(t *testing.T, c *client.Client) {
		dir := t.TempDir()
		ctx := within(t, 20*time.Second)
		f := c.FS().WithContext(ctx)
		events, err := f.Watch(ctx, dir)
		if err != nil {
			t.Fatal(err)
		}
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		ok(f.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644))
		ok(f.Rename(filepath.Join(dir, "f"), filepath.Join(dir, "g")))
		ok(f.Mkdir(filepath.Join(dir, "d"), 0o755))
		ok(f.Remove(filepath.Join(dir, "g")))
		ok(f.RemoveAll(dir))
		var got []string
		for e := range events {
			s := e.Op + " " + e.Name
			if e.Dir {
				s += "/"
			}
			got = append(got, s)
		}
		want := []string{"create f", "write f", "close f", "rename-from f", "rename-to g", "create d/", "remove g", "remove d/", "gone "}
		if !slices.Equal(got, want) {
			t.Errorf("events\n%q\nwant\n%q", got, want)
		}
	})
}

func TestWatchCancel(t *testing.T) {
	c := serve(t, agent.Options{})
	ctx, cancel := contextWithCancel(t)
	events, err := c.FS().Watch(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for range events {
	}
}
