package agent

import (
	"archive/tar"
	"bufio"
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

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// dataWriter turns a stream into Data frames.
type dataWriter struct{ w *proto.Writer }

func (d dataWriter) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n := min(len(b)-done, proto.MaxPayload)
		if err := d.w.Write(proto.TypeData, b[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return len(b), nil
}

// dataReader turns Data frames up to EOF into a stream.
type dataReader struct {
	r    *proto.Reader
	rest []byte
	err  error
}

func (d *dataReader) Read(b []byte) (int, error) {
	for len(d.rest) == 0 && d.err == nil {
		t, payload, err := d.r.Next()
		switch {
		case err == io.EOF:
			d.err = io.ErrUnexpectedEOF
		case err != nil:
			d.err = err
		case t == proto.TypeData:
			d.rest = payload
		case t == proto.TypeEOF:
			d.err = io.EOF
		default:
			d.err = fmt.Errorf("%w: %v", proto.ErrUnexpectedFrame, t)
		}
	}
	n := copy(b, d.rest)
	d.rest = d.rest[n:]
	if n == 0 {
		return 0, d.err
	}
	return n, nil
}

// tarOut sends a tree as a tar archive. A directory's entries are named
// relative to it; a single file is named by its base name. File systems that
// are views of the kernel are left empty.
func (s *server) tarOut(c *conn, h proto.Handshake) error {
	req, err := decodePath(h)
	if err != nil {
		return err
	}
	root := s.path(req.Path)
	fi, err := os.Lstat(root)
	if err != nil {
		return err
	}
	if c.w.WriteValue(proto.TypeReply, proto.Empty{}) != nil {
		return nil
	}
	buf := bufio.NewWriterSize(dataWriter{c.w}, chunk)
	tw := tar.NewWriter(buf)
	if fi.IsDir() {
		err = tarTree(tw, root)
	} else {
		err = tarFile(tw, root, filepath.Base(root), fi)
	}
	if err = errors.Join(err, tw.Close()); err == nil {
		err = buf.Flush()
	}
	if err != nil {
		return err
	}
	return ignoreGone(c.w.Write(proto.TypeEOF))
}

func tarTree(tw *tar.Writer, root string) error {
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		var fi fs.FileInfo
		if err == nil {
			fi, err = d.Info()
		}
		if errors.Is(err, fs.ErrNotExist) && p != root {
			return nil // it went while we walked
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		err = tarFile(tw, p, name, fi)
		if err == nil && fi.IsDir() && p != root && isKernelView(p) {
			return filepath.SkipDir
		}
		return err
	})
}

// isKernelView reports whether a directory shows what the kernel makes up, as
// /proc does: that is endless, and is nothing to take along.
func isKernelView(dir string) bool {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return false
	}
	switch st.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEVPTS_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC:
		return true
	}
	return false
}

// tarFile adds one file. Sockets have no place in an archive and are left out.
func tarFile(tw *tar.Writer, p, name string, fi fs.FileInfo) error {
	if fi.Mode()&fs.ModeSocket != 0 {
		return nil
	}
	var target string
	if fi.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = os.Readlink(p); err != nil {
			return err
		}
	}
	if !fi.Mode().IsRegular() {
		return tarHeader(tw, fi, name, target)
	}
	// O_NONBLOCK: should the file have become a FIFO, open must not wait.
	f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := tarHeader(tw, fi, name, ""); err != nil {
		return err
	}
	n, err := io.Copy(tw, io.LimitReader(f, fi.Size()))
	if err == nil && n < fi.Size() {
		_, err = io.CopyN(tw, zeros{}, fi.Size()-n) // it shrank meanwhile
	}
	return err
}

func tarHeader(tw *tar.Writer, fi fs.FileInfo, name, target string) error {
	h, err := tar.FileInfoHeader(fi, target)
	if err != nil {
		return err
	}
	h.Name = name
	if fi.IsDir() {
		h.Name += "/"
	}
	h.Uname, h.Gname = "", "" // numbers mean the same on both sides, names may not
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	return tw.WriteHeader(h)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// tarIn unpacks an archive below a directory, which it makes if need be.
// Nothing is written outside of it, whatever the archive says: os.Root refuses
// names and links that lead out, and a link that would lead out is not made.
func (s *server) tarIn(c *conn, h proto.Handshake) error {
	req, err := decodePath(h)
	if err != nil {
		return err
	}
	dir := s.path(req.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if c.w.WriteValue(proto.TypeReply, proto.Empty{}) != nil {
		return nil
	}
	data := &dataReader{r: c.r}
	x := &extractor{root: root, dir: dir}
	if err := x.extract(tar.NewReader(data)); err != nil {
		return err
	}
	// Archives are padded; the client is told once it has sent everything.
	if _, err := io.Copy(io.Discard, data); err != nil {
		return protocolError(err)
	}
	return ignoreGone(c.w.WriteValue(proto.TypeReply, proto.Empty{}))
}

// extractor unpacks one archive.
type extractor struct {
	root *os.Root
	dir  string // root's absolute path
	dirs []*tar.Header
}

func (x *extractor) extract(tr *tar.Reader) error {
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return x.finishDirs()
		}
		if err != nil {
			return fmt.Errorf("agent: unpack: %w", err)
		}
		if err := x.entry(h, tr); err != nil {
			return fmt.Errorf("agent: unpack %q: %w", h.Name, err)
		}
	}
}

func (x *extractor) entry(h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	if strings.HasPrefix(name, "/") || !filepath.IsLocal(name) {
		return &fs.PathError{Op: "unpack", Path: h.Name, Err: syscall.EXDEV}
	}
	if h.Typeflag == tar.TypeDir {
		h.Name = name
		x.dirs = append(x.dirs, h)
		return x.root.MkdirAll(name, 0o755)
	}
	if name == "." {
		return &fs.PathError{Op: "unpack", Path: h.Name, Err: syscall.EISDIR}
	}
	if err := x.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := x.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return x.file(name, h, content)
	case tar.TypeSymlink:
		if !x.inside(name, h.Linkname) {
			return &os.LinkError{Op: "symlink", Old: h.Linkname, New: name, Err: syscall.EXDEV}
		}
		return x.root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return x.root.Link(path.Clean(h.Linkname), name)
	}
	return fmt.Errorf("%w: entry of type %q", errors.ErrUnsupported, h.Typeflag)
}

// inside reports whether a symbolic link stays below the root, by its letters.
// Links that pass through other links are os.Root's to judge, when followed.
func (x *extractor) inside(name, target string) bool {
	if filepath.IsAbs(target) {
		rel, err := filepath.Rel(x.dir, target)
		return err == nil && filepath.IsLocal(rel)
	}
	return filepath.IsLocal(path.Join(path.Dir(name), target))
}

func (x *extractor) file(name string, h *tar.Header, content io.Reader) error {
	f, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	// The mode through the descriptor: Root.Chmod may follow a link.
	err = errors.Join(err, f.Chmod(h.FileInfo().Mode()), f.Close())
	if err != nil {
		return err
	}
	return x.root.Chtimes(name, h.ModTime, h.ModTime)
}

// finishDirs sets what directories are like, once nothing is put in them any
// more: a read-only directory could not have been filled, and its time would
// have changed.
func (x *extractor) finishDirs() error {
	for i := len(x.dirs) - 1; i >= 0; i-- {
		h := x.dirs[i]
		err := x.root.Chmod(h.Name, h.FileInfo().Mode().Perm())
		if err == nil {
			err = x.root.Chtimes(h.Name, h.ModTime, h.ModTime)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
