package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dir reads a root file system from the directory at path: what is in it, with owners,
// modes, times, hard links and, of files and directories, extended attributes. Symbolic
// links are kept and never followed. A file that changes while it is read is an error
// or is read as it was at some moment.
func Dir(path string) Source { return dirSource{path} }

type dirSource struct{ path string }

func (s dirSource) read(ctx context.Context, b *builder) (Config, error) {
	root, err := os.OpenRoot(s.path)
	if err != nil {
		return Config{}, err
	}
	defer root.Close()
	w := dirWalk{ctx: ctx, b: b, root: root, links: map[[2]uint64][]string{}}
	if err := w.file(".", nil); err != nil {
		return Config{}, fmt.Errorf("%s: %w", s.path, err)
	}
	b.progress.tell()
	return Config{}, nil
}

type dirWalk struct {
	ctx   context.Context
	b     *builder
	root  *os.Root
	links map[[2]uint64][]string // device and inode of files with several names: the first name
}

// file adds the file called name, relative to the root, and what is below it.
func (w *dirWalk) file(name string, parts []string) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if len(parts) > w.b.limits.Depth {
		return fmt.Errorf("%w: more than %d directories deep", ErrLimit, w.b.limits.Depth)
	}
	info, err := w.root.Lstat(name)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%w: %s: no status", ErrFormat, name)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return w.directory(name, parts)
	case unix.S_IFREG:
		return w.regular(name, parts)
	}
	i := statInode(st)
	if i.is(unix.S_IFLNK) {
		if i.target, err = w.root.Readlink(name); err != nil {
			return err
		}
	}
	return w.add(name, parts, st, i, nil, nil)
}

// add adds an inode, or another name for one that was added before.
func (w *dirWalk) add(name string, parts []string, st *syscall.Stat_t, i *inode, xattrs map[string]string, r io.Reader) error {
	if st.Nlink > 1 && !i.is(unix.S_IFDIR) {
		id := [2]uint64{st.Dev, st.Ino}
		if first, ok := w.links[id]; ok {
			if err := w.b.count(parts, 0); err != nil {
				return err
			}
			return w.b.tree.link(parts, first)
		}
		w.links[id] = parts
	}
	if err := w.b.add(parts, i, xattrs, r); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (w *dirWalk) directory(name string, parts []string) error {
	f, st, xattrs, err := w.open(name, unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := w.add(name, parts, st, statInode(st), xattrs, nil); err != nil {
		return err
	}
	// Sorted, so that the same directory makes the same image.
	entries, err := readDirSorted(f)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := w.file(path.Join(name, entry), append(parts[:len(parts):len(parts)], entry)); err != nil {
			return err
		}
	}
	return nil
}

func (w *dirWalk) regular(name string, parts []string) error {
	f, st, xattrs, err := w.open(name, unix.S_IFREG)
	if err != nil {
		return err
	}
	defer f.Close()
	r := w.b.progress.read(&contextReader{w.ctx, f})
	return w.add(name, parts, st, statInode(st), xattrs, r)
}

// open opens a file of the type it was seen to have, and reads its status and
// extended attributes from the descriptor: names may have changed meanwhile.
func (w *dirWalk) open(name string, format uint32) (*os.File, *syscall.Stat_t, map[string]string, error) {
	f, err := w.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Mode&unix.S_IFMT != format {
		f.Close()
		return nil, nil, nil, fmt.Errorf("%w: %s changed while it was read", ErrFormat, name)
	}
	xattrs, err := readXattrs(f)
	if err != nil {
		f.Close()
		return nil, nil, nil, fmt.Errorf("%s: extended attributes: %w", name, err)
	}
	return f, st, xattrs, nil
}

func statInode(st *syscall.Stat_t) *inode {
	i := &inode{
		mode: uint16(st.Mode), uid: st.Uid, gid: st.Gid, links: 1,
		mtime: st.Mtim.Sec, nsec: uint32(st.Mtim.Nsec),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		i.size = st.Size
	case unix.S_IFDIR:
		i.children = map[string]child{}
	case unix.S_IFCHR, unix.S_IFBLK:
		i.rdev = deviceNumber(unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	return i
}

// readXattrs reads the extended attributes of f.
func readXattrs(f *os.File) (map[string]string, error) {
	names, err := readSized(func(b []byte) (int, error) { return unix.Flistxattr(int(f.Fd()), b) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil || len(names) == 0 {
		return nil, err
	}
	xattrs := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		value, err := readSized(func(b []byte) (int, error) { return unix.Fgetxattr(int(f.Fd()), name, b) })
		if err != nil {
			return nil, err
		}
		xattrs[name] = string(value)
	}
	return xattrs, nil
}

// readSized makes a call that says how much room it needs when it is given none.
func readSized(call func([]byte) (int, error)) ([]byte, error) {
	size, err := call(nil)
	if err != nil || size == 0 {
		return nil, err
	}
	b := make([]byte, size)
	n, err := call(b)
	return b[:max(n, 0)], err
}

func readDirSorted(f *os.File) ([]string, error) {
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}
