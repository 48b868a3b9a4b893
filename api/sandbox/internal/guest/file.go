package guest

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/client"
)

const (
	newFileMode = 0o644
	newDirMode  = 0o755
	maxMode     = 0o7777
	copyChunk   = 256 << 10 // bytes that one round trip to the agent moves
	tidyTime    = 5 * time.Second
)

// Stat describes a file. A symbolic link is not followed.
func (g *Guest) Stat(ctx context.Context, p string) (*api.FileInfo, error) {
	return onPath(ctx, g, p, lstat)
}

func lstat(f *client.FS, p string) (*api.FileInfo, error) {
	fi, err := f.Lstat(p)
	if err != nil {
		return nil, err
	}
	return describe(f, p, fi), nil
}

// RealPath follows every symbolic link of a path, whose end need not exist.
func (g *Guest) RealPath(ctx context.Context, p string) (*api.RealPath, error) {
	return onPath(ctx, g, p, func(f *client.FS, p string) (*api.RealPath, error) {
		p, err := realPath(f, p)
		if err != nil {
			return nil, err
		}
		return &api.RealPath{Path: p}, nil
	})
}

// describe makes a file's description one of the API. The target of a link that
// has gone meanwhile is empty.
func describe(f *client.FS, p string, fi fs.FileInfo) *api.FileInfo {
	out := &api.FileInfo{
		Name: path.Base(p), Path: p, Type: fileType(fi.Mode()), Size: fi.Size(), Mode: permissions(fi.Mode()),
		ModifiedAt: fi.ModTime().UTC(),
	}
	if sys, ok := fi.Sys().(client.Sys); ok {
		out.UID, out.GID = int(sys.UID), int(sys.GID)
	}
	if out.Type == api.Symlink {
		out.Target, _ = f.Readlink(p)
	}
	return out
}

func fileType(m fs.FileMode) api.FileType {
	switch m.Type() {
	case 0:
		return api.RegularFile
	case fs.ModeDir:
		return api.Directory
	case fs.ModeSymlink:
		return api.Symlink
	}
	return api.OtherFile
}

// special is the bits of chmod(2) that fs.FileMode has elsewhere.
var special = map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky}

func permissions(m fs.FileMode) uint32 {
	out := uint32(m.Perm())
	for bit, mode := range special {
		if m&mode != 0 {
			out |= bit
		}
	}
	return out
}

func fileMode(permissions uint32) fs.FileMode {
	out := fs.FileMode(permissions).Perm()
	for bit, mode := range special {
		if permissions&bit != 0 {
			out |= mode
		}
	}
	return out
}

// ListFiles lists a directory. Links in it are not followed.
func (g *Guest) ListFiles(ctx context.Context, p string) (*api.FileList, error) {
	return onPath(ctx, g, p, func(f *client.FS, p string) (*api.FileList, error) {
		entries, err := f.ReadDir(p)
		if err != nil {
			return nil, err
		}
		list := &api.FileList{Files: make([]api.FileInfo, 0, len(entries))}
		for _, e := range entries {
			fi, err := e.Info()
			if err != nil {
				return nil, err
			}
			list.Files = append(list.Files, *describe(f, path.Join(p, e.Name()), fi))
		}
		return list, nil
	})
}

// Mkdir makes a directory, and those above it. It is no error if it is there.
func (g *Guest) Mkdir(ctx context.Context, p string) (*api.FileInfo, error) {
	return onPath(ctx, g, p, func(f *client.FS, p string) (*api.FileInfo, error) {
		if err := f.MkdirAll(p, newDirMode); err != nil {
			return nil, err
		}
		fi, err := f.Stat(p)
		if err != nil {
			return nil, err
		}
		return describe(f, p, fi), nil
	})
}

// Rename moves a file, and replaces a file that has the new name. Nothing is
// made on the way, and links are moved and not followed.
func (g *Guest) Rename(ctx context.Context, from, to string) (*api.FileInfo, error) {
	from, err := CheckPath("from", from)
	if err == nil {
		to, err = CheckPath("to", to)
	}
	if err != nil {
		return nil, err
	}
	f := g.files(ctx)
	if err := f.Rename(from, to); err != nil {
		return nil, fail(ctx, err)
	}
	info, err := lstat(f, to)
	return info, fail(ctx, err)
}

// Remove removes a file or, unless it is to be recursive, an empty directory. A
// link is removed and not followed.
func (g *Guest) Remove(ctx context.Context, p string, o api.RemoveOptions) error {
	_, err := onPath(ctx, g, p, func(f *client.FS, p string) (_ struct{}, err error) {
		switch {
		case p == "/":
			return struct{}{}, badField("path", "/ is not to be removed")
		case !o.Recursive:
			return struct{}{}, f.Remove(p)
		}
		if _, err := f.Lstat(p); err != nil { // RemoveAll does not mind if there is none
			return struct{}{}, err
		}
		return struct{}{}, f.RemoveAll(p)
	})
	return err
}

// ReadFile opens a regular file, through links. Anything else is bad_request,
// and is not opened, as that may have effects. The reader ends with ctx. Size is
// what the guest says, and is 0 for files that the kernel makes up: what is read
// may be more or less.
func (g *Guest) ReadFile(ctx context.Context, p string) (io.ReadCloser, *api.FileInfo, error) {
	var info *api.FileInfo
	r, err := onPath(ctx, g, p, func(f *client.FS, p string) (*fileReader, error) {
		if fi, err := f.Stat(p); err != nil {
			return nil, err
		} else if err := checkRegular(p, fi.Mode()); err != nil {
			return nil, err
		}
		file, err := f.Open(p)
		if err != nil {
			return nil, err
		}
		fi, err := file.Stat()
		if err == nil {
			err = checkRegular(p, fi.Mode()) // it may have become something else
		}
		if err != nil {
			file.Close()
			return nil, err
		}
		info = describe(f, p, fi)
		return &fileReader{ctx, file}, nil
	})
	if err != nil {
		return nil, nil, err
	}
	return r, info, nil
}

func checkRegular(p string, m fs.FileMode) error {
	switch {
	case m.IsDir():
		return badField("path", "%.200s is a directory", p)
	case !m.IsRegular():
		return badField("path", "%.200s is no regular file", p)
	}
	return nil
}

// fileReader reads a file with errors of the API.
type fileReader struct {
	ctx  context.Context
	file *client.File
}

// Read implements io.Reader.
func (r *fileReader) Read(b []byte) (int, error) {
	n, err := r.file.Read(b)
	switch {
	case err == io.EOF:
		return n, err
	case errors.Is(err, os.ErrClosed):
		return n, os.ErrClosed
	}
	return n, fail(r.ctx, err)
}

// WriteTo implements io.WriterTo, so that io.Copy reads in large pieces.
func (r *fileReader) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, copyChunk))
}

// Close implements io.Closer. There is nothing that could go wrong.
func (r *fileReader) Close() error {
	_ = r.file.Close()
	return nil
}

// WriteFile makes or replaces a file, and makes the directories that it is in.
// It is written under another name beside, and renamed when it is complete: who
// reads the old file goes on to, and if content fails nothing has changed.
// A link is followed to what it names, there or not. A file that was there keeps
// its permissions and owner; a new one is the agent's user's. Directories,
// devices and the like are bad_request.
func (g *Guest) WriteFile(ctx context.Context, p string, r io.Reader, o api.WriteOptions) (*api.FileInfo, error) {
	mode := uint32(newFileMode)
	if o.Mode != nil {
		mode = *o.Mode
	}
	if mode > maxMode {
		return nil, badField("mode", "%#o is not within 0 and %#o", mode, maxMode)
	}
	c := &content{r: r}
	info, err := onPath(ctx, g, p, func(f *client.FS, p string) (*api.FileInfo, error) {
		w := &fileWriter{fs: f, mode: fileMode(mode)}
		err := w.find(p)
		if err == nil {
			err = w.create()
		}
		if err == nil {
			if err = w.write(c); err != nil {
				w.remove(ctx)
			}
		}
		if err != nil {
			return nil, err
		}
		fi, err := f.Lstat(w.target)
		if err != nil {
			return nil, err
		}
		return describe(f, p, fi), nil
	})
	if err != nil && ctx.Err() == nil {
		return nil, c.close("content", err)
	}
	return info, err
}

// fileWriter replaces one file.
type fileWriter struct {
	fs     *client.FS
	target string      // to be replaced
	old    fs.FileInfo // what it is; nil: there is none
	mode   fs.FileMode // of the new file

	temp string // beside the target
	file *client.File
}

// find finds what is to be replaced.
func (w *fileWriter) find(p string) (err error) {
	if w.target, err = throughLinks(w.fs, p); err != nil {
		return err
	}
	old, err := w.fs.Lstat(w.target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	w.old, w.mode = old, old.Mode()&^fs.ModeType
	return checkRegular(p, old.Mode())
}

// create makes the file that is written, and the directory that it is in.
func (w *fileWriter) create() (err error) {
	dir := path.Dir(w.target)
	w.temp = path.Join(dir, ".forkvm-"+rand.Text())
	open := func() (*client.File, error) {
		return w.fs.OpenFile(w.temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	}
	w.file, err = open()
	if errors.Is(err, fs.ErrNotExist) {
		if err := w.fs.MkdirAll(dir, newDirMode); err != nil {
			return err
		}
		w.file, err = open()
	}
	return err
}

// write fills the file and puts it in its place.
func (w *fileWriter) write(r io.Reader) error {
	_, err := w.file.ReadFrom(r)
	if closeErr := w.file.Close(); err == nil {
		err = closeErr
	}
	if err == nil && w.old != nil {
		if sys, ok := w.old.Sys().(client.Sys); ok {
			err = w.fs.Chown(w.temp, int(sys.UID), int(sys.GID))
		}
	}
	if err == nil { // after the owner, whose change takes set-id bits away
		err = w.fs.Chmod(w.temp, w.mode)
	}
	if err == nil {
		err = w.fs.Rename(w.temp, w.target)
	}
	return err
}

// remove removes a file that did not become complete, also if ctx has ended.
func (w *fileWriter) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	_ = w.fs.WithContext(ctx).Remove(w.temp) // it is as it was before, otherwise
}
