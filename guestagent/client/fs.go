package client

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// MaxReadFile is the most bytes that [FS.ReadFile] reads of a file, which is a
// guest's and may be endless. [FS.Open] reads files of any size.
const MaxReadFile = 1 << 30

// FS is the guest's file tree, in the shape of os.Root. Paths are the guest's:
// absolute, or relative to the agent's default directory. Errors are
// *fs.PathError with the guest's errno, so errors.Is(err, fs.ErrNotExist) and
// the like work. It is safe for concurrent use.
//
// [FS.DirFS] is the same tree as an io/fs file system.
type FS struct {
	c   *Client
	ctx context.Context
}

// FS returns the guest's file tree.
func (c *Client) FS() *FS { return &FS{c: c, ctx: context.Background()} }

// WithContext returns the same tree, whose calls end when ctx does.
func (f *FS) WithContext(ctx context.Context) *FS { return &FS{c: f.c, ctx: ctx} }

func (f *FS) call(op proto.Op, req proto.PathRequest, reply any) error {
	return pathError(string(op), string(req.Path), f.c.call(f.ctx, op, req, reply))
}

// FileInfo describes a file of the guest. Its Sys method returns a [Sys].
type FileInfo struct{ info proto.FileInfo }

// Sys is what a FileInfo knows beyond fs.FileInfo.
type Sys struct {
	UID, GID     uint32
	Inode, Links uint64
}

// Name returns the base name.
func (i FileInfo) Name() string { return string(i.info.Name) }

// Size returns the length in bytes.
func (i FileInfo) Size() int64 { return i.info.Size }

// Mode returns type and permissions.
func (i FileInfo) Mode() fs.FileMode { return fs.FileMode(i.info.Mode) }

// ModTime returns when the content last changed, by the guest's clock.
func (i FileInfo) ModTime() time.Time { return i.info.Mtime }

// IsDir reports whether it is a directory.
func (i FileInfo) IsDir() bool { return i.Mode().IsDir() }

// Sys returns a [Sys].
func (i FileInfo) Sys() any {
	return Sys{UID: i.info.UID, GID: i.info.GID, Inode: i.info.Inode, Links: i.info.Links}
}

// Stat describes a file, following links.
func (f *FS) Stat(name string) (fs.FileInfo, error) { return f.stat(proto.OpStat, name) }

// Lstat describes a file, not following a link that it is.
func (f *FS) Lstat(name string) (fs.FileInfo, error) { return f.stat(proto.OpLstat, name) }

func (f *FS) stat(op proto.Op, name string) (fs.FileInfo, error) {
	var info proto.FileInfo
	if err := f.call(op, proto.PathRequest{Path: proto.Text(name)}, &info); err != nil {
		return nil, err
	}
	return FileInfo{info}, nil
}

// ReadDir lists a directory, sorted by name.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	cn, err := f.c.start(f.ctx, proto.OpReadDir, proto.PathRequest{Path: proto.Text(name)})
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	defer cn.close()
	var out []fs.DirEntry
	err = cn.items(func(item []byte) error {
		var batch []proto.FileInfo
		if err := decode(item, &batch); err != nil {
			return err
		}
		if len(out)+len(batch) > maxListed {
			return fmt.Errorf("%w: endless directory", ErrProtocol)
		}
		for _, info := range batch {
			if n := string(info.Name); n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00") {
				return fmt.Errorf("%w: entry named %q", ErrProtocol, n)
			}
			out = append(out, fs.FileInfoToDirEntry(FileInfo{info}))
		}
		return nil
	})
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	slices.SortFunc(out, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return out, nil
}

// Mkdir makes a directory.
func (f *FS) Mkdir(name string, perm fs.FileMode) error {
	return f.call(proto.OpMkdir, proto.PathRequest{Path: proto.Text(name), Mode: uint32(perm)}, nil)
}

// MkdirAll makes a directory and those above it that are missing.
func (f *FS) MkdirAll(name string, perm fs.FileMode) error {
	return f.call(proto.OpMkdirAll, proto.PathRequest{Path: proto.Text(name), Mode: uint32(perm)}, nil)
}

// Rename moves a file, and replaces what has the new name.
func (f *FS) Rename(oldname, newname string) error {
	return f.call(proto.OpRename, proto.PathRequest{Path: proto.Text(oldname), To: proto.Text(newname)}, nil)
}

// Remove removes a file or an empty directory.
func (f *FS) Remove(name string) error {
	return f.call(proto.OpRemove, proto.PathRequest{Path: proto.Text(name)}, nil)
}

// RemoveAll removes a file or a whole tree. It is no error if there is none.
func (f *FS) RemoveAll(name string) error {
	return f.call(proto.OpRmAll, proto.PathRequest{Path: proto.Text(name)}, nil)
}

// Symlink makes newname a link to oldname.
func (f *FS) Symlink(oldname, newname string) error {
	return f.call(proto.OpSymlink, proto.PathRequest{Path: proto.Text(newname), To: proto.Text(oldname)}, nil)
}

// Readlink returns where a link leads.
func (f *FS) Readlink(name string) (string, error) {
	var l proto.Link
	err := f.call(proto.OpReadlink, proto.PathRequest{Path: proto.Text(name)}, &l)
	return string(l.Target), err
}

// Chmod changes the permissions of a file.
func (f *FS) Chmod(name string, mode fs.FileMode) error {
	return f.call(proto.OpChmod, proto.PathRequest{Path: proto.Text(name), Mode: uint32(mode)}, nil)
}

// Chown changes the numeric owner and group of a file, or of a link itself; -1
// leaves one as it is.
func (f *FS) Chown(name string, uid, gid int) error {
	return f.call(proto.OpChown, proto.PathRequest{Path: proto.Text(name), UID: uid, GID: gid}, nil)
}

// Chtimes changes when a file was last read and written; a zero time leaves
// one as it is.
func (f *FS) Chtimes(name string, atime, mtime time.Time) error {
	return f.call(proto.OpChtimes, proto.PathRequest{Path: proto.Text(name), Atime: atime, Mtime: mtime}, nil)
}

// Open opens a file for reading.
func (f *FS) Open(name string) (*File, error) { return f.OpenFile(name, os.O_RDONLY, 0) }

// Create makes or truncates a file and opens it for reading and writing.
func (f *FS) Create(name string) (*File, error) {
	return f.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// OpenFile opens a file with flags of package os.
func (f *FS) OpenFile(name string, flag int, perm fs.FileMode) (*File, error) {
	cn, err := f.c.start(f.ctx, proto.OpOpen, proto.PathRequest{Path: proto.Text(name), Flag: flag, Mode: uint32(perm)})
	if err != nil {
		return nil, pathError("open", name, err)
	}
	var info proto.FileInfo
	if err := cn.reply(&info); err != nil {
		cn.close()
		return nil, pathError("open", name, err)
	}
	return newFile(cn, name, flag, FileInfo{info}), nil
}

// ReadFile reads a whole file, of at most [MaxReadFile] bytes.
func (f *FS) ReadFile(name string) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	out := &bounded{max: MaxReadFile}
	if _, err := file.WriteTo(out); err != nil {
		return nil, err
	}
	if out.over {
		return nil, pathError("read", name, ErrTooLarge)
	}
	return out.Bytes(), nil
}

// WriteFile writes a whole file, and makes it with permissions perm if there
// is none yet.
func (f *FS) WriteFile(name string, data []byte, perm fs.FileMode) error {
	file, err := f.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Event is what happened to a watched file, or in a watched directory.
type Event struct {
	Name string // within the directory; "" for the watched path itself
	// Op is create, write, close (after writing), attrib, remove, rename-from,
	// rename-to, overflow (events were lost), or gone (the watched path was
	// removed or moved).
	Op  string
	Dir bool // Name is a directory
}

// Watch sends what happens to a file or in a directory (not below it), until
// ctx is done or the path itself is removed. The watch is in place when Watch
// returns. The channel is closed at the end; it must be read or ctx cancelled.
func (f *FS) Watch(ctx context.Context, name string) (<-chan Event, error) {
	cn, err := f.c.start(ctx, proto.OpWatch, proto.PathRequest{Path: proto.Text(name)})
	if err != nil {
		return nil, pathError("watch", name, err)
	}
	if err := cn.reply(nil); err != nil {
		cn.close()
		return nil, pathError("watch", name, err)
	}
	events := make(chan Event)
	go func() {
		defer close(events)
		defer cn.close()
		_ = cn.items(func(item []byte) error {
			var e proto.Event
			if err := decode(item, &e); err != nil {
				return err
			}
			select {
			case events <- Event{Name: string(e.Name), Op: e.Op, Dir: e.Dir}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return events, nil
}

// TarOut writes a tree of the guest to w as a tar archive. A directory's
// entries are named relative to it; a single file has its base name. What the
// kernel makes up, such as /proc, is left empty. The archive is a guest's: unpack it as you would a stranger's.
func (f *FS) TarOut(ctx context.Context, name string, w io.Writer) error {
	cn, err := f.c.start(ctx, proto.OpTarOut, proto.PathRequest{Path: proto.Text(name)})
	if err != nil {
		return pathError("tar", name, err)
	}
	defer cn.close()
	if err := cn.reply(nil); err != nil {
		return pathError("tar", name, err)
	}
	for {
		t, payload, err := cn.next()
		switch {
		case err != nil:
			return pathError("tar", name, err)
		case t == proto.TypeEOF:
			return nil
		case t != proto.TypeData:
			return pathError("tar", name, unexpected(t))
		}
		if _, err := w.Write(payload); err != nil {
			return err
		}
	}
}

// TarIn unpacks a tar archive into a directory of the guest, which it makes if
// need be. What exists is replaced. Owners are not kept: all belongs to the
// agent's user. Entries and links that would lead out of the directory, and
// device nodes, end it with an error.
func (f *FS) TarIn(ctx context.Context, name string, r io.Reader) error {
	cn, err := f.c.start(ctx, proto.OpTarIn, proto.PathRequest{Path: proto.Text(name)})
	if err != nil {
		return pathError("untar", name, err)
	}
	defer cn.close()
	if err := cn.reply(nil); err != nil {
		return pathError("untar", name, err)
	}
	sent := make(chan error, 1)
	go func() {
		err := cn.sendAll(r)
		sent <- err // before the connection ends of it
		if err != nil {
			cn.Conn.Close()
		}
	}()
	if err := cn.reply(nil); err != nil {
		select {
		case sendErr := <-sent:
			if sendErr != nil {
				return sendErr
			}
		default:
		}
		return pathError("untar", name, err)
	}
	return nil
}

// sendAll sends r as Data frames. It returns an error of r; how the connection
// ends is the reader's to tell.
func (c *conn) sendAll(r io.Reader) error {
	buf := make([]byte, fileChunk)
	for {
		n, err := r.Read(buf)
		if n > 0 && c.w.Write(proto.TypeData, buf[:n]) != nil {
			return nil
		}
		if err == io.EOF {
			_ = c.w.Write(proto.TypeEOF)
			return nil
		}
		if err != nil {
			return err
		}
	}
}
