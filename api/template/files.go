package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// maxRecord is how long a file of ours may be, in bytes.
const maxRecord = 4 << 20

// files is a directory of small JSON files, each of which is written as a
// whole.
type files struct{ dir string }

func (d files) path(name string) string { return filepath.Join(d.dir, name) }

func (d files) read(name string, v any) error {
	f, err := os.Open(d.path(name))
	if err != nil {
		return err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return err
	}
	if len(raw) > maxRecord {
		return fmt.Errorf("%s: longer than %d bytes", f.Name(), maxRecord)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	return nil
}

// write writes a file, which appears or replaces another in one instant when
// it is on disk.
func (d files) write(name string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if len(raw) > maxRecord {
		return fmt.Errorf("%s: would be longer than %d bytes", name, maxRecord)
	}
	f, err := os.CreateTemp(d.dir, tmpPrefix)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // it fails once the file has its name
	_, err = f.Write(append(raw, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), d.path(name))
	}
	if err == nil {
		err = syncDir(d.dir)
	}
	return err
}

// tmpPrefix begins the names of files that are being written.
const tmpPrefix = ".new-"

func (d files) remove(name string) error {
	err := os.Remove(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// names are those of all files that end in suffix, without it.
func (d files) names(suffix string) ([]string, error) {
	list, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range list {
		n := e.Name()
		if len(n) > len(suffix) && n[0] != '.' && n[len(n)-len(suffix):] == suffix {
			names = append(names, n[:len(n)-len(suffix)])
		}
	}
	return names, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// lock is a flock(2) on a file. Each is a descriptor of its own, so goroutines
// of one process exclude each other as processes do.
type lock struct{ file *os.File }

type lockKind int

const (
	shared    lockKind = unix.LOCK_SH
	exclusive lockKind = unix.LOCK_EX
)

// tryLock returns nil if somebody else has the lock. The file is made if need
// be, and never removed: who waits for it would wait for another one.
func tryLock(path string, kind lockKind) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), int(kind)|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		return &lock{f}, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// waitLock waits until it has the lock or ctx ends. It asks again and again:
// a thread that waits in flock(2) cannot be called back.
func waitLock(ctx context.Context, path string, kind lockKind) (*lock, error) {
	const longest = 50 * time.Millisecond
	for wait := time.Millisecond; ; wait = min(2*wait, longest) {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		l, err := tryLock(path, kind)
		if l != nil || err != nil {
			return l, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

func (l *lock) unlock() {
	_ = unix.Flock(int(l.file.Fd()), unix.LOCK_UN) // a child being started may have the descriptor
	l.file.Close()
}
