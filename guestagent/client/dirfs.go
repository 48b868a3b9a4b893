package client

import (
	"io"
	"io/fs"
	"path"
)

// DirFS returns the tree below dir as an io/fs file system, as os.DirFS does:
// names are slash-separated, relative and clean. Links are followed, also out
// of dir. The result implements fs.ReadFileFS, fs.StatFS, fs.ReadDirFS and
// fs.ReadLinkFS.
func (f *FS) DirFS(dir string) fs.FS { return dirFS{f, dir} }

type dirFS struct {
	fs  *FS
	dir string
}

var (
	_ fs.ReadFileFS = dirFS{}
	_ fs.StatFS     = dirFS{}
	_ fs.ReadDirFS  = dirFS{}
	_ fs.ReadLinkFS = dirFS{}
)

// on calls do with the guest's path of name, and makes errors speak of name.
func on[T any](d dirFS, op, name string, do func(string) (T, error)) (T, error) {
	if !fs.ValidPath(name) {
		var zero T
		return zero, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	v, err := do(path.Join(d.dir, name))
	if e, ok := err.(*fs.PathError); ok {
		e.Path = name
	}
	return v, err
}

func (d dirFS) Open(name string) (fs.File, error) {
	return on(d, "open", name, func(p string) (fs.File, error) {
		f, err := d.fs.Open(p)
		if err != nil {
			return nil, err
		}
		if !f.info.IsDir() {
			return f, nil
		}
		entries, err := d.fs.ReadDir(p)
		if err != nil {
			f.Close()
			return nil, err
		}
		return &dirFile{File: f, entries: entries}, nil
	})
}

func (d dirFS) ReadFile(name string) ([]byte, error) { return on(d, "read", name, d.fs.ReadFile) }

func (d dirFS) Stat(name string) (fs.FileInfo, error) { return on(d, "stat", name, d.fs.Stat) }

func (d dirFS) Lstat(name string) (fs.FileInfo, error) { return on(d, "lstat", name, d.fs.Lstat) }

func (d dirFS) ReadDir(name string) ([]fs.DirEntry, error) {
	return on(d, "readdir", name, d.fs.ReadDir)
}

func (d dirFS) ReadLink(name string) (string, error) { return on(d, "readlink", name, d.fs.Readlink) }

// dirFile is an open directory.
type dirFile struct {
	*File
	entries []fs.DirEntry // what ReadDir has yet to return
}

var _ fs.ReadDirFile = (*dirFile)(nil)

// ReadDir implements fs.ReadDirFile.
func (d *dirFile) ReadDir(n int) ([]fs.DirEntry, error) {
	if n > 0 && len(d.entries) == 0 {
		return nil, io.EOF
	}
	if n <= 0 || n > len(d.entries) {
		n = len(d.entries)
	}
	out := d.entries[:n:n]
	d.entries = d.entries[n:]
	return out, nil
}
