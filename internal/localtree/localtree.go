// Package localtree packs a directory of this machine into a tar archive, and
// unpacks one that a stranger made.
package localtree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// Pack writes what is in the directory dir to w.
func Pack(w io.Writer, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tar.NewWriter(w)
	if err := t.AddFS(root.FS()); err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	return t.Close()
}

// Limits bound what Unpack takes. Zero fields are no bounds.
type Limits struct {
	Bytes   int64 // of the content of all files
	Entries int   // files, links and directories, those that no entry is of included
	Name    int   // bytes of an entry's name
}

// ErrLimit: an archive has more than the limits allow.
var ErrLimit = errors.New("too large an archive")

// Unpack unpacks an archive below the directory dir, which it makes if need be.
// What is there is replaced, but for directories, which are added to. Nothing is
// written outside of dir, whatever the archive says: names and links that lead
// out are refused. Owners, set-id bits and device nodes are not taken over. Of
// what it has written when it fails nothing is removed: see Remove.
func Unpack(dir string, r io.Reader, l Limits) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{root: root, limits: l}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if err == io.EOF {
			return u.finish()
		}
		if err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
		if err := u.entry(h, t); err != nil {
			return fmt.Errorf("unpack %.200q: %w", h.Name, err)
		}
	}
}

type unpacker struct {
	root   *os.Root
	limits Limits
	dirs   []*tar.Header

	bytes   int64
	entries int
}

// account counts an entry before anything is made of it.
func (u *unpacker) account(h *tar.Header) error {
	if u.limits.Name > 0 && len(h.Name) > u.limits.Name {
		return fmt.Errorf("%w: a name is longer than %d bytes", ErrLimit, u.limits.Name)
	}
	u.entries++
	if _, err := u.root.Lstat(path.Dir(h.Name)); err != nil {
		u.entries += strings.Count(h.Name, "/") // directories that are made for it
	}
	if u.limits.Entries > 0 && u.entries > u.limits.Entries {
		return fmt.Errorf("%w: more than %d entries", ErrLimit, u.limits.Entries)
	}
	if h.Typeflag == tar.TypeReg {
		u.bytes += h.Size // holes of sparse files included: they are written
	}
	if u.limits.Bytes > 0 && (u.bytes > u.limits.Bytes || u.bytes < 0) {
		return fmt.Errorf("%w: more than %d bytes", ErrLimit, u.limits.Bytes)
	}
	return nil
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	h.Name = path.Clean(h.Name)
	if !filepath.IsLocal(h.Name) {
		return &fs.PathError{Op: "unpack", Path: h.Name, Err: syscall.EXDEV}
	}
	if err := u.account(h); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		u.dirs = append(u.dirs, h)
		return u.root.MkdirAll(h.Name, 0o777)
	}
	if h.Name == "." {
		return &fs.PathError{Op: "unpack", Path: h.Name, Err: syscall.EISDIR}
	}
	if err := u.root.MkdirAll(path.Dir(h.Name), 0o777); err != nil {
		return err
	}
	if err := u.root.Remove(h.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(h, content)
	case tar.TypeSymlink:
		if strings.HasPrefix(h.Linkname, "/") || !filepath.IsLocal(path.Join(path.Dir(h.Name), h.Linkname)) {
			return &os.LinkError{Op: "symlink", Old: h.Linkname, New: h.Name, Err: syscall.EXDEV}
		}
		return u.root.Symlink(h.Linkname, h.Name)
	case tar.TypeLink:
		return u.root.Link(path.Clean(h.Linkname), h.Name)
	}
	return fmt.Errorf("%w: entry of type %q", errors.ErrUnsupported, h.Typeflag)
}

func (u *unpacker) file(h *tar.Header, content io.Reader) error {
	f, err := u.root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	err = errors.Join(err, f.Chmod(h.FileInfo().Mode().Perm()), f.Close())
	if err != nil {
		return err
	}
	return u.root.Chtimes(h.Name, h.ModTime, h.ModTime)
}

// finish sets what directories are like once nothing is put in them any more,
// those below first.
func (u *unpacker) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		h := u.dirs[i]
		err := u.root.Chmod(h.Name, h.FileInfo().Mode().Perm())
		if err == nil {
			err = u.root.Chtimes(h.Name, h.ModTime, h.ModTime)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Remove removes a directory with all that is in it, also directories that are
// closed to their owner, as those of an archive may be.
func Remove(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() { // before it is read
			_ = os.Chmod(name, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
