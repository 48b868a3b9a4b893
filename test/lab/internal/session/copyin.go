package session

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A Copy is a file or folder of the host's and its place inside.
type Copy struct {
	Host, Guest string
	// Skip, if not nil, leaves out files and whole folders below Host.
	Skip func(path string) bool
}

// largeFile is from which size on it pays, within a folder, to ask whether a file is there already.
const largeFile = 256 << 10

// CopyIn copies files and folders to their places inside, as one stream. Files keep their modes and
// times; a link on the way to Host is followed, links within folders are copied. A file that is there
// with the same size and time is not sent again, if it was named or is large.
func (s *Session) CopyIn(ctx context.Context, copies ...Copy) error {
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		err := s.writeAll(ctx, tw, copies)
		w.CloseWithError(errors.Join(err, tw.Close()))
	}()
	err := s.c.FS().TarIn(ctx, "/", r)
	r.CloseWithError(errStopped)
	if err != nil {
		return fmt.Errorf("session: copy in: %w", lost(err))
	}
	return nil
}

var errStopped = errors.New("the lab does not take it")

func (s *Session) writeAll(ctx context.Context, tw *tar.Writer, copies []Copy) error {
	for _, c := range copies {
		if err := s.writeTree(ctx, tw, c); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) writeTree(ctx context.Context, tw *tar.Writer, c Copy) error {
	root, err := filepath.EvalSymlinks(c.Host)
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if c.Skip != nil && c.Skip(path) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // It went away while we walked.
		}
		if err != nil {
			return err
		}
		guest := filepath.Join(c.Guest, strings.TrimPrefix(path, root))
		if info.Mode().IsRegular() && (path == root || info.Size() >= largeFile) && s.has(ctx, guest, info) {
			return nil
		}
		return writeEntry(tw, path, guest, info)
	})
}

func writeEntry(tw *tar.Writer, host, guest string, info fs.FileInfo) error {
	mode := info.Mode()
	var target string
	switch {
	case mode.IsRegular():
	case mode&fs.ModeSymlink != 0:
		var err error
		if target, err = os.Readlink(host); err != nil {
			return err
		}
	case !mode.IsDir():
		return nil // Sockets, devices and pipes have no content to copy.
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name = strings.TrimPrefix(guest, "/")
	h.Uname, h.Gname = "", ""
	if mode.IsDir() {
		h.Name += "/"
	}
	if !mode.IsRegular() {
		return tw.WriteHeader(h)
	}
	return writeFile(tw, h, host)
}

func writeFile(tw *tar.Writer, h *tar.Header, host string) error {
	f, err := os.Open(host)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.CopyN(tw, f, h.Size); err != nil {
		return fmt.Errorf("%s: %w", host, err)
	}
	return nil
}

// has tells whether a file is inside already. If in doubt it is sent.
func (s *Session) has(ctx context.Context, guest string, info fs.FileInfo) bool {
	there, err := s.c.FS().WithContext(ctx).Stat(guest)
	return err == nil && there.Mode() == info.Mode() && there.Size() == info.Size() && sameTime(there, info)
}

// SameTime tells whether there is a file or folder at the same path here and inside, last changed at
// the same time.
func (s *Session) SameTime(ctx context.Context, path string) bool {
	here, err := os.Stat(path)
	if err != nil {
		return false
	}
	there, err := s.c.FS().WithContext(ctx).Stat(path)
	return err == nil && sameTime(here, there)
}

// sameTime compares seconds: an archive keeps no fractions.
func sameTime(a, b fs.FileInfo) bool {
	return a.ModTime().Truncate(time.Second).Equal(b.ModTime().Truncate(time.Second))
}
