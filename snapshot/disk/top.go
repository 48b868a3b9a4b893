package disk

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/snapshot"
)

// top is what one machine has written since it was started or last captured: a
// sparse file in which every page is at its place on the disk, and a note of
// which pages those are. What is in the file of others means nothing.
type top struct {
	file   *os.File
	memory bool // no access waits for a disk
	seals  bool // the file can be sealed
	size   int64
	cover  *cover
}

// newTop makes an empty top in a file without a name: in dir, or in memory if
// that is empty.
func newTop(dir string, size int64) (*top, error) {
	file, err := newFile(dir)
	if err != nil {
		return nil, fmt.Errorf("disk: file for what is written: %w", err)
	}
	if err := file.Truncate(size); err != nil {
		file.Close()
		return nil, fmt.Errorf("disk: file for what is written: %w", err)
	}
	return &top{file, snapshot.InMemory(file), dir == "", size, newCover(size / pageSize)}, nil
}

func newFile(dir string) (*os.File, error) {
	const name = "forkvm-disk"
	if dir == "" {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			return nil, os.NewSyscallError("memfd_create", err)
		}
		return os.NewFile(uintptr(fd), name), nil
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC|unix.O_EXCL, 0o600)
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), name), nil
	case !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR):
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	// A file system without O_TMPFILE, as overlayfs was for long.
	file, err := os.CreateTemp(dir, name)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func (t *top) fd() int { return int(t.file.Fd()) }

// write writes to pages that are the top's or whole.
func (t *top) write(v *vector, off, n int64) error {
	first, end := off/pageSize, (off+n+pageSize-1)/pageSize
	t.cover.notZero(first, end) // even if it fails half way
	if err := v.write(t.fd(), off, n); err != nil {
		return err
	}
	t.cover.set(first, end, false)
	return nil
}

// zero makes whole pages zeros that take no space, or as little as the file
// system can.
func (t *top) zero(first, end int64) error {
	if err := t.punch(first, end); err != nil {
		return err
	}
	t.cover.set(first, end, true)
	return nil
}

func (t *top) punch(first, end int64) error {
	off, n := first*pageSize, (end-first)*pageSize
	err := unix.Fallocate(t.fd(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	if errors.Is(err, unix.EOPNOTSUPP) { // as of NFS before 4.2
		_, err = io.Copy(io.NewOffsetWriter(t.file, off), io.LimitReader(zeroReader{}, n))
	}
	if err != nil {
		return fmt.Errorf("disk: free space: %w", err)
	}
	return nil
}

// zeroReader reads zeros for ever.
type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// lacksEdge tells whether the page in which off lies has bytes before off, or
// after, that are not the top's.
func (t *top) lacksEdge(off int64) bool {
	return off%pageSize != 0 && !t.cover.owns(off/pageSize)
}

// fill copies from base what it has of the pages from first to before end and
// the top has not. All of them are the top's then.
func (t *top) fill(base *snapshot.Table, first, end int64) error {
	for first < end {
		owned, next := t.cover.run(first, end)
		if !owned {
			if err := t.copyFrom(base, first*pageSize, next*pageSize); err != nil {
				return err
			}
		}
		first = next
	}
	return nil
}

func (t *top) copyFrom(base *snapshot.Table, off, end int64) error {
	buf := make([]byte, min(end-off, 1<<20))
	for off < end {
		layer, at, n := base.Locate(off)
		n = min(n, end-off)
		if layer == nil {
			if err := t.punch(off/pageSize, (off+n)/pageSize); err != nil {
				return err
			}
			t.cover.set(off/pageSize, (off+n)/pageSize, false)
			off += n
			continue
		}
		p := buf[:min(n, int64(len(buf)))]
		if _, err := layer.ReadAt(p, at); err != nil {
			return fmt.Errorf("disk: read layer: %w", err)
		}
		if _, err := t.file.WriteAt(p, off); err != nil {
			return fmt.Errorf("disk: write: %w", err)
		}
		t.cover.set(off/pageSize, (off+int64(len(p)))/pageSize, false)
		off += int64(len(p))
	}
	return nil
}

// allocated is the number of bytes that the file takes.
func (t *top) allocated() (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(t.fd(), &st); err != nil {
		return 0, fmt.Errorf("disk: %w", err)
	}
	return st.Blocks * 512, nil
}

func (t *top) close() { t.file.Close() }

// seal makes a layer of the top, which must not be used afterwards.
func (t *top) seal() (*snapshot.Layer, error) {
	if t.seals { // of a file without a name nobody else has a descriptor
		// FUTURE_WRITE, as there is no mapping: WRITE looks at every page, and
		// fails if the kernel happens to hold one.
		const seals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
		// A kernel that refuses leaves a layer that nobody else can open.
		_, _ = unix.FcntlInt(t.file.Fd(), unix.F_ADD_SEALS, seals)
	}
	return snapshot.NewLayer(t.file, t.size)
}
