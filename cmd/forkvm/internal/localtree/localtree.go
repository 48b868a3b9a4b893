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

// Unpack unpacks an archive below the directory dir, which it makes if need be.
// What is there is replaced, but for directories, which are added to. Nothing is
// written outside of dir, whatever the archive says: names and links that lead
// out are refused. Owners, set-id bits and device nodes are not taken over.
func Unpack(dir string, r io.Reader) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{root: root}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if err == io.EOF {
			return u.finish()
		}
		if err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
		if err := u.entry(h, t); err != nil {
			return fmt.Errorf("unpack %q: %w", h.Name, err)
		}
	}
}

type unpacker struct {
	root *os.Root
	dirs []*tar.Header
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	h.Name = path.Clean(h.Name)
	if !filepath.IsLocal(h.Name) {
		return &fs.PathError{Op: "unpack", Path: h.Name, Err: syscall.EXDEV}
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
