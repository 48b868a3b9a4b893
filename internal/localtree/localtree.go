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
	"time"
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
// out are refused, and names that go through links. Owners, set-id bits and
// device nodes are not taken over. Of what it has written when it fails nothing
// is removed: see Remove.
func Unpack(dir string, r io.Reader, l Limits) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{root: root, limits: l, real: map[string]bool{}}
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
	dirs   []dir
	real   map[string]bool // directories that are no links, as their names say

	bytes   int64
	entries int
}

// dir is what an entry says of a directory. Of a header nothing is kept: it may
// have a MiB of records.
type dir struct {
	name string
	mode fs.FileMode
	time time.Time
}

// errThroughLink: a directory on the way is a symbolic link. Where an entry comes
// to lie, and how deep, could not be told from its name.
var errThroughLink = errors.New("its name goes through a symbolic link")

// account counts an entry before anything is made of it.
func (u *unpacker) account(h *tar.Header) error {
	if u.limits.Name > 0 && len(h.Name) > u.limits.Name {
		return fmt.Errorf("%w: a name is longer than %d bytes", ErrLimit, u.limits.Name)
	}
	u.entries++
	if h.Typeflag != tar.TypeXGlobalHeader { // of which nothing is made
		missing, err := u.parents(h.Name)
		if err != nil {
			return err
		}
		u.entries += missing
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

// parents fails if a directory that name lies in is a symbolic link, and counts
// those that are not there.
func (u *unpacker) parents(name string) (missing int, err error) {
	for p := path.Dir(name); p != "." && !u.real[p]; p = path.Dir(p) {
		info, err := u.root.Lstat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing++
		case err != nil:
			return 0, err
		case info.Mode().Type() == fs.ModeSymlink:
			return 0, errThroughLink
		}
		u.real[p] = true // it is, or is made
	}
	return missing, nil
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	h.Name = strings.Clone(path.Clean(h.Name)) // it may be a part of something large
	if !filepath.IsLocal(h.Name) {
		return &fs.PathError{Op: "unpack", Path: h.Name, Err: syscall.EXDEV}
	}
	if err := u.account(h); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeXGlobalHeader: // archives of git begin with one
		return nil
	case tar.TypeDir:
		u.dirs = append(u.dirs, dir{h.Name, h.FileInfo().Mode().Perm(), h.ModTime})
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
	delete(u.real, h.Name) // an empty directory may have been
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(h, content)
	case tar.TypeSymlink:
		return u.symlink(h.Linkname, h.Name)
	case tar.TypeLink:
		old := path.Clean(h.Linkname)
		if to, err := u.root.Readlink(old); err == nil { // from elsewhere it may lead out
			return u.symlink(to, h.Name)
		}
		return u.root.Link(old, h.Name)
	}
	return fmt.Errorf("%w: entry of type %q", errors.ErrUnsupported, h.Typeflag)
}

func (u *unpacker) symlink(to, name string) error {
	if !staysInside(to, name) {
		return &os.LinkError{Op: "symlink", Old: to, New: name, Err: syscall.EXDEV}
	}
	return u.root.Symlink(to, name)
}

// staysInside tells whether a symbolic link does, whatever other links are on its
// way, if all do: first it goes up by no more than it lies deep, and then only down.
// What comes back up from another link is anywhere.
func staysInside(to, name string) bool {
	if strings.HasPrefix(to, "/") {
		return false
	}
	up, down := 0, false
	for e := range strings.SplitSeq(to, "/") {
		switch {
		case e == "" || e == ".":
		case e != "..":
			down = true
		case down:
			return false
		default:
			up++
		}
	}
	return up <= strings.Count(name, "/")
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
		d := u.dirs[i]
		err := u.root.Chmod(d.name, d.mode)
		if err == nil {
			err = u.root.Chtimes(d.name, d.time, d.time)
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
