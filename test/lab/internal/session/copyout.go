package session

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// CopyOut copies a file or folder from inside to a path on the host. A file replaces one that is
// there; a folder's files are added to it.
func (s *Session) CopyOut(ctx context.Context, guest, host string) error {
	info, err := s.c.FS().WithContext(ctx).Stat(guest)
	if err != nil {
		return fmt.Errorf("session: copy out: %w", lost(err))
	}
	// A folder's entries are named from within it. A file's only entry has its base name.
	dir, rename := host, ""
	if !info.IsDir() {
		dir, rename = filepath.Split(host)
		if dir == "" {
			dir = "."
		}
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(s.c.FS().TarOut(ctx, guest, w)) }()
	err = unpack(r, dir, rename)
	r.CloseWithError(errStopped)
	if err != nil {
		return fmt.Errorf("session: copy %s out to %s: %w", guest, host, lost(err))
	}
	return nil
}

// Exists tells whether there is something at a path inside.
func (s *Session) Exists(ctx context.Context, guest string) (bool, error) {
	_, err := s.c.FS().WithContext(ctx).Stat(guest)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("session: %w", lost(err))
	}
	return true, nil
}

// Remove removes a file inside, if it is there.
func (s *Session) Remove(ctx context.Context, guest string) error {
	if err := s.c.FS().WithContext(ctx).Remove(guest); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("session: %w", lost(err))
	}
	return nil
}

// unpack writes an archive below a folder and nothing outside of it; with a name, the archive holds
// one file, which gets it.
func unpack(r io.Reader, dir, name string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			// What follows the archive's end is the other side's result.
			_, err := io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return err
		}
		entry := path.Clean(h.Name)
		if name != "" {
			entry = name
		}
		if err := unpackEntry(root, entry, h, tr); err != nil {
			return err
		}
	}
}

func unpackEntry(root *os.Root, name string, h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		return unpackFile(root, name, h, content)
	}
	return nil // What programs leave behind besides files and folders stays inside.
}

func unpackFile(root *os.Root, name string, h *tar.Header, content io.Reader) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, h.FileInfo().Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
