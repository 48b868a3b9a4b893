package snapshot

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// disk is the one way in which a store changes its directory, so that a test
// can stop or fail it at each change. Names are relative to the store; an
// os.Root sees to it that none leads out of it.
type disk struct {
	root   *os.Root
	before beforeFunc
}

// beforeFunc, if there is one, is asked before each change and may refuse it.
// A rename has two names.
type beforeFunc func(op string, names ...string) error

func (d *disk) change(do func() error, op string, names ...string) error {
	err := error(nil)
	if d.before != nil {
		err = d.before(op, names...)
	}
	if err == nil {
		err = do()
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", op, names[0], withNoSpace(err))
	}
	return nil
}

func (d *disk) mkdir(name string) error {
	return d.change(func() error { return d.root.Mkdir(name, 0o700) }, "mkdir", name)
}

func (d *disk) remove(name string) error {
	return d.change(func() error { return d.root.Remove(name) }, "remove", name)
}

func (d *disk) rename(from, to string) error {
	return d.change(func() error { return d.root.Rename(from, to) }, "rename", from, to)
}

// syncDir makes the names in a directory durable.
func (d *disk) syncDir(name string) error {
	return d.change(func() error {
		f, err := d.root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Sync()
	}, "syncdir", name)
}

// create makes a new file that nobody will be able to open for writing.
func (d *disk) create(name string) (f *newFile, err error) {
	err = d.change(func() error {
		file, err := d.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o400)
		f = &newFile{disk: d, file: file, name: name}
		return err
	}, "create", name)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// open opens a regular file for reading and says how long it is. A device or
// a pipe in its place neither blocks nor passes.
func (d *disk) open(name string) (*os.File, int64, error) {
	f, err := d.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = corrupt("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// names lists a directory.
func (d *disk) names(dir string) ([]string, error) {
	f, err := d.root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// newFile is a file that is being written: by write calls only, since a store
// into a mapping for which the file system has no room ends the process.
type newFile struct {
	disk *disk
	file *os.File
	name string
}

func (f *newFile) truncate(size int64) error {
	return f.disk.change(func() error { return f.file.Truncate(size) }, "truncate", f.name)
}

func (f *newFile) writeAt(off int64, p []byte) error {
	return f.disk.change(func() error {
		_, err := f.file.WriteAt(p, off)
		return err
	}, "write", f.name)
}

// finish makes what was written durable and closes the file.
func (f *newFile) finish() error {
	err := f.disk.change(f.file.Sync, "sync", f.name)
	if closed := f.file.Close(); err == nil && closed != nil {
		err = fmt.Errorf("close %s: %w", f.name, withNoSpace(closed))
	}
	return err
}

// abandon closes a file that is of no use. It does nothing after finish.
func (f *newFile) abandon() { f.file.Close() }

// makeDurableDir makes a directory and what is missing above it, each of
// which survives a loss of power.
func makeDurableDir(path string) error {
	switch err := os.Mkdir(path, 0o700); {
	case err == nil:
	case os.IsExist(err):
		return nil
	case os.IsNotExist(err) && filepath.Dir(path) != path:
		if err := makeDurableDir(filepath.Dir(path)); err != nil {
			return err
		}
		if err := os.Mkdir(path, 0o700); err != nil && !os.IsExist(err) {
			return err
		}
	default:
		return err
	}
	parent, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.Sync()
}
