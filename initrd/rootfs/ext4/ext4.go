// Package ext4 makes empty ext4 file systems: the writable disks of guests. Nothing is
// read here, and nothing but one kind of file system is written: 4 KiB blocks, extents,
// a journal, metadata checksums.
//
// The image is a sparse file of a few MiB at most whatever its size: inode tables and
// journal are holes, which read as the zeros they must hold, and the descriptors say so.
// The kernel has nothing to initialise in the background, which would write to the disk of
// every machine that is forked.
//
// The format is described by the kernel's Documentation/filesystems/ext4. Same options,
// same bytes.
package ext4

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// MinSize and MaxSize bound the size of a file system, in bytes.
	MinSize = 16 << 20
	MaxSize = 1 << 40
)

var (
	// ErrSize is wrapped by errors about sizes out of bounds.
	ErrSize = errors.New("bad size of a file system")
	// ErrOption is wrapped by errors about options that cannot be.
	ErrOption = errors.New("bad option")
)

// Options are the choices of Write.
type Options struct {
	// UUID is that of the file system. Directory hashes are seeded with it as well.
	UUID [16]byte
	// Label is the name of the volume, of at most 16 bytes.
	Label string
	// Directories are made in the root, for anybody to read and for root to write.
	// Up to 16.
	Directories []string
	// Time is when the file system was made; all its times. Zero is 1970.
	Time time.Time
}

// maxDirectories keeps the root directory within one block.
const maxDirectories = 16

func (o Options) validate() error {
	if len(o.Label) > 16 || strings.ContainsRune(o.Label, 0) {
		return fmt.Errorf("%w: label %.40q", ErrOption, o.Label)
	}
	if len(o.Directories) > maxDirectories {
		return fmt.Errorf("%w: more than %d directories", ErrOption, maxDirectories)
	}
	seen := map[string]bool{"": true, ".": true, "..": true, lostFound: true}
	for _, name := range o.Directories {
		if seen[name] || len(name) > 100 || strings.ContainsAny(name, "/\x00") {
			return fmt.Errorf("%w: directory %.100q", ErrOption, name)
		}
		seen[name] = true
	}
	if t := o.unixTime(); t < 0 || t > 1<<32-1 {
		return fmt.Errorf("%w: time %s", ErrOption, o.Time)
	}
	return nil
}

func (o Options) unixTime() int64 {
	if o.Time.IsZero() {
		return 0
	}
	return o.Time.Unix()
}

// Write makes an empty file system of size bytes, rounded down to whole blocks of
// 4 KiB, in a new file at path. The file appears, or replaces the one that is there, when it
// is complete. It is not synced: it is cheap to make again.
func Write(path string, size int64, opts Options) error {
	if size < MinSize || size > MaxSize {
		return fmt.Errorf("ext4: %w: %d bytes, not from %d to %d", ErrSize, size, int64(MinSize), int64(MaxSize))
	}
	if err := opts.validate(); err != nil {
		return fmt.Errorf("ext4: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("ext4: %w", err)
	}
	defer f.Close()
	err = newWriter(f, size/blockSize, opts).write()
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name()) // nobody has seen it; the error that matters is err
		return fmt.Errorf("ext4: %s: %w", path, err)
	}
	return nil
}
