package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// allocated is how much of a file is on disk, in bytes.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestDir(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	must(t,
		os.MkdirAll(at("d/e"), 0o750),
		os.WriteFile(at("d/file"), []byte(pattern(10_000)), 0o640),
		os.Link(at("d/file"), at("hard")),
		os.Symlink("/etc/passwd", at("link")),
		os.Link(at("link"), at("hardlink")),
		os.Symlink("nowhere", at("d/dangling")),
		unix.Mkfifo(at("fifo"), 0o600),
		os.WriteFile(at("sparse"), nil, 0o600),
		os.Truncate(at("sparse"), 40<<20),
		os.Chmod(at("d/e"), 0o1777),
	)
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err, unix.Bind(socket, &unix.SockaddrUnix{Name: at("s")}), unix.Close(socket))
	attributes := true
	if err := unix.Setxattr(at("d/file"), "user.a", []byte("value"), 0); errors.Is(err, unix.EOPNOTSUPP) {
		attributes = false // of a temporary directory in memory, on old kernels
	} else {
		must(t, err)
	}

	image := build(t, Dir(root), Options{})
	image.fsck(t)
	const want = "d/ d/dangling d/e/ d/file* fifo hard* hardlink* link* s sparse"
	if got := image.names(t); got != want {
		t.Errorf("%s", got)
	}
	files := image.list(t)
	for name, f := range files {
		var st unix.Stat_t
		must(t, unix.Lstat(at(name), &st))
		if f.mode != st.Mode&0o7777 || f.uid != st.Uid || f.gid != st.Gid || f.mtime != st.Mtim.Sec || f.nsec != uint32(st.Mtim.Nsec) {
			t.Errorf("%s: %+v of %+v", name, f, st)
		}
	}
	if f := files["d/file"]; f.content != sum(pattern(10_000)) || attributes && f.xattrs != "user.a=value;" {
		t.Errorf("%+v", f)
	}
	if f := files["link"]; f.content != "/etc/passwd" {
		t.Errorf("%+v", f)
	}
	if files["sparse"].size != 40<<20 || allocated(t, image.path) > 1<<20 {
		t.Errorf("%+v, %d bytes on disk", files["sparse"], allocated(t, image.path))
	}
	if again := build(t, Dir(root), Options{}); again.Sum != image.Sum {
		t.Error("the same directory makes another image")
	}
}

func TestDirRefused(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "a/b/c"), 0o755), os.WriteFile(filepath.Join(root, "file"), []byte("123"), 0o600))
	refused(t, Dir(filepath.Join(root, "none")), Options{}, os.ErrNotExist)
	refused(t, Dir(filepath.Join(root, "file")), Options{}, nil)
	refused(t, Dir(root), Options{Limits: Limits{Depth: 2}}, ErrLimit)
	refused(t, Dir(root), Options{Limits: Limits{Entries: 2}}, ErrLimit)
	refused(t, Dir(root), Options{Limits: Limits{Content: 2}}, ErrLimit)
}
