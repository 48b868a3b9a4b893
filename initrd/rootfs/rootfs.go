// Package rootfs makes the root file systems of guests: a read-only EROFS image from
// a directory, a tar archive or a container image (Build). The writable disk that a
// guest lays over it is made by the sub-package ext4, and images of registries are
// read by the sub-package registry.
//
// EROFS is the base because it is made for this: it has no free space, no journal and
// nothing that a mount writes, so one file serves every fork; it keeps owners, modes,
// times to the nanosecond, hard links, device nodes and extended attributes; and it
// can be written in one pass. File contents go to the image as they arrive, metadata
// follows them, the superblock comes last. Nothing is ever unpacked into a directory of
// the host: names of the input exist only as keys of a tree in memory, so there is
// no path outside the image that an input could express.
//
// The same input gives the same bytes. An image has holes where contents are zeros, and
// where a file was replaced or deleted by what came after it.
//
// Inputs are hostile. Everything they can make large is bounded by Limits; memory grows
// with the number of entries, names and extended attributes, not with contents.
package rootfs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/forkvm/forkvm/initrd/decompress"
)

var (
	// ErrLimit is wrapped by errors about inputs that exceed Limits, or what the
	// format of the image can hold.
	ErrLimit = errors.New("limit exceeded")
	// ErrFormat is wrapped by errors about inputs that are damaged, cut short, or not
	// what they were said to be.
	ErrFormat = errors.New("bad format")
	// ErrDigest is wrapped by errors about blobs that are not what their digest or
	// their size says.
	ErrDigest = errors.New("digest mismatch")
	// ErrNoImage is wrapped by errors about sources that hold no image for
	// linux/amd64, none of the name asked for, or several while no name was given.
	ErrNoImage = errors.New("no such image")
)

// Limits bounds what an input may ask for. A zero field stands for its default.
type Limits struct {
	// Content bounds, in bytes, the sizes of all regular files together, and apart
	// from that the archives they come in, decompressed. Files that a later entry
	// replaces count. 64 GiB.
	Content int64
	// Entries bounds the number of entries read, hidden and replaced ones included. 4 Mi.
	Entries int
	// Depth bounds how many directories are above an entry. 256.
	Depth int
	// Xattrs bounds, in bytes, names and values of the extended attributes of one
	// inode. 64 KiB.
	Xattrs int
	// Metadata bounds, in bytes, all names, link targets and extended attributes
	// together. 1 GiB.
	Metadata int64
	// Layers bounds the layers of an image. 256.
	Layers int
	// Document bounds, in bytes, each index, manifest and configuration. 4 MiB.
	Document int64
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.Content, 64<<30)
	setDefault(&l.Entries, 4<<20)
	setDefault(&l.Depth, 256)
	setDefault(&l.Xattrs, 64<<10)
	setDefault(&l.Metadata, 1<<30)
	setDefault(&l.Layers, 256)
	setDefault(&l.Document, 4<<20)
	return l
}

func setDefault[T int | int64](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Options are the choices of Build. The zero value is good.
type Options struct {
	Limits Limits
	// RootOwns gives every file to uid 0 and gid 0.
	RootOwns bool
	// UUID is that of the file system.
	UUID [16]byte
	// Progress, if set, is called while the source is read, by the goroutine that
	// called Build, about once a MiB and at the end of each layer.
	Progress func(Progress)
}

// Progress is how far a Build is.
type Progress struct {
	Layer, Layers int   // which layer of how many, from 1; zero for sources without layers
	Bytes         int64 // of the source read so far, as they are stored or transferred
	Total         int64 // of the source, in bytes; zero if not known
	Entries       int   // read so far
}

// Config is what a container image says about running it. It is empty for other sources.
type Config struct {
	Env        []string
	WorkingDir string
	User       string
	Entrypoint []string
	Cmd        []string
}

// Info describes an image that was built.
type Info struct {
	Size   int64 // of the image, in bytes, holes included
	Inodes int
	Config Config
	Sum    [sha256.Size]byte // SHA-256 of the image
}

// Source is where a root file system comes from: Dir, Tar, Layout, Archive or Image.
type Source interface {
	read(ctx context.Context, b *builder) (Config, error)
}

// Build writes the EROFS image of src to path. The file appears, or replaces the one that
// is there, when it is complete and on disk, and not otherwise.
func Build(ctx context.Context, path string, src Source, opts Options) (Info, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return Info{}, fmt.Errorf("rootfs: %w", err)
	}
	defer f.Close()
	info, err := writeImage(ctx, f, src, opts)
	if err == nil {
		err = publish(f, path)
	}
	if err != nil {
		os.Remove(f.Name()) // nobody has seen it; the error that matters is err
		return Info{}, fmt.Errorf("rootfs: %s: %w", path, err)
	}
	return info, nil
}

// writeImage writes the image of src to the empty file f.
func writeImage(ctx context.Context, f *os.File, src Source, opts Options) (Info, error) {
	b := newBuilder(f, opts)
	config, err := src.read(ctx, b)
	if err != nil {
		return Info{}, classify(err)
	}
	inodes, err := b.finish()
	if err != nil {
		return Info{}, err
	}
	h := sha256.New()
	size, err := io.Copy(h, &contextReader{ctx, io.NewSectionReader(f, 0, 1<<62)})
	if err != nil {
		return Info{}, err
	}
	return Info{Size: size, Inodes: inodes, Config: config, Sum: [sha256.Size]byte(h.Sum(nil))}, nil
}

// publish makes the complete file f appear at path.
func publish(f *os.File, path string) error {
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// classify adds our sentinels to the errors of the packages that read archives.
func classify(err error) error {
	for _, known := range []error{ErrLimit, ErrFormat, ErrDigest, ErrNoImage, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return err
		}
	}
	switch {
	case errors.Is(err, decompress.ErrTooLarge):
		return fmt.Errorf("%w: %w", ErrLimit, err)
	case errors.Is(err, decompress.ErrCorrupt), errors.Is(err, decompress.ErrUnsupported),
		errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return err
}
