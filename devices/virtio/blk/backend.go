package blk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Backend holds the bytes of a disk. All methods may be called concurrently,
// for ranges that overlap as well; which of two concurrent calls for the same
// bytes comes first is up to the backend.
//
// A range is never empty, always inside Size and whole sectors of
// [SectorSize]. The buffers for it have its length together; each alone has any
// but zero. They alias guest memory, which the guest may change at any time.
// The slices (not what those for a write refer to) are the backend's to change
// during the call, and not to keep after it.
//
// An error fails the request, with VIRTIO_BLK_S_IOERR to the driver, and
// nothing else: what the range holds then is up to the backend.
type Backend interface {
	// Size is the length of the disk in bytes, a multiple of SectorSize. It
	// never changes.
	Size() int64
	// ReadAt fills all bufs, in order, from off on.
	ReadAt(bufs [][]byte, off int64) error
	// WriteAt stores all bufs, in order, from off on.
	WriteAt(bufs [][]byte, off int64) error
	// Flush returns when what was written, zeroed and discarded before is as
	// durable as the backend ever makes it.
	Flush() error
	// WriteZeroes makes the range read as zeros. With unmap it frees the space
	// if it can; without, later writes need none that is not there.
	WriteZeroes(off, n int64, unmap bool) error
	// Discard makes the range read as zeros and frees the space if it can.
	Discard(off, n int64) error
}

// Trier is implemented by a [Backend] that can tell whether a transfer has to
// wait: for hardware, for memory, for a lock that is held long. What need not
// wait is served without waking a thread for it, mostly on that of the vCPU
// that asked.
//
// Both methods return false, and leave the slices (not what they refer to) as
// they were, if they would have to wait. The device then calls the method of
// Backend, which does all of it again.
type Trier interface {
	Backend
	TryReadAt(bufs [][]byte, off int64) (done bool, err error)
	TryWriteAt(bufs [][]byte, off int64) (done bool, err error)
}

// Volatile is implemented by a [Backend] that has nothing to do in Flush, which
// is then not called, nor waited for.
type Volatile interface {
	Backend
	Volatile()
}

// Memory is a [Backend] in memory, for tests and small disks.
type Memory struct {
	mu   sync.RWMutex // guards what data refers to
	data []byte
}

var (
	_ Trier    = (*Memory)(nil)
	_ Volatile = (*Memory)(nil)
)

// NewMemory makes a disk of data, which is the disk's from then on.
func NewMemory(data []byte) *Memory { return &Memory{data: data} }

// Size implements [Backend].
func (m *Memory) Size() int64 { return int64(len(m.data)) }

// ReadAt implements [Backend].
func (m *Memory) ReadAt(bufs [][]byte, off int64) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.read(bufs, off)
	return nil
}

// WriteAt implements [Backend].
func (m *Memory) WriteAt(bufs [][]byte, off int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.write(bufs, off)
	return nil
}

// TryReadAt implements [Trier].
func (m *Memory) TryReadAt(bufs [][]byte, off int64) (bool, error) {
	if !m.mu.TryRLock() {
		return false, nil
	}
	defer m.mu.RUnlock()
	m.read(bufs, off)
	return true, nil
}

// TryWriteAt implements [Trier].
func (m *Memory) TryWriteAt(bufs [][]byte, off int64) (bool, error) {
	if !m.mu.TryLock() {
		return false, nil
	}
	defer m.mu.Unlock()
	m.write(bufs, off)
	return true, nil
}

func (m *Memory) read(bufs [][]byte, off int64) {
	for _, b := range bufs {
		off += int64(copy(b, m.data[off:]))
	}
}

func (m *Memory) write(bufs [][]byte, off int64) {
	for _, b := range bufs {
		off += int64(copy(m.data[off:], b))
	}
}

// Flush implements [Backend]: memory is as durable as it ever gets.
func (m *Memory) Flush() error { return nil }

// Volatile implements [Volatile].
func (m *Memory) Volatile() {}

// WriteZeroes implements [Backend].
func (m *Memory) WriteZeroes(off, n int64, _ bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.data[off:][:n])
	return nil
}

// Discard implements [Backend]. No space is freed.
func (m *Memory) Discard(off, n int64) error { return m.WriteZeroes(off, n, true) }

// maxBuffers is how many buffers one system call takes (IOV_MAX).
const maxBuffers = 1024

// zeros is what is written where a file system cannot make zeros itself.
var zeros [64 << 10]byte

// File is a [Backend] of a regular file or a block device.
type File struct {
	file *os.File // keeps fd open
	fd   int
	size int64

	// The file system cannot tell whether these have to wait.
	readsWait, writesWait atomic.Bool
}

var _ Trier = (*File)(nil)

// NewFile makes a disk of what f holds, as long as f is now. The caller opened
// f, for writing unless the device is read-only, does not make it shorter, and
// closes it when the device was reset for good.
func NewFile(f *os.File) (*File, error) {
	size, err := f.Seek(0, io.SeekEnd) // of a block device Stat does not tell
	if err != nil {
		return nil, fmt.Errorf("blk: size of %s: %w", f.Name(), err)
	}
	if size == 0 || size%SectorSize != 0 {
		return nil, fmt.Errorf("blk: %s has %d bytes: not whole sectors of %d", f.Name(), size, SectorSize)
	}
	return &File{file: f, fd: int(f.Fd()), size: size}, nil
}

// Size implements [Backend].
func (f *File) Size() int64 { return f.size }

// ReadAt implements [Backend].
func (f *File) ReadAt(bufs [][]byte, off int64) error {
	return transfer("read", f.fd, bufs, off, readv)
}

// WriteAt implements [Backend].
func (f *File) WriteAt(bufs [][]byte, off int64) error {
	return transfer("write", f.fd, bufs, off, writev)
}

// TryReadAt implements [Trier] for what is in the page cache.
func (f *File) TryReadAt(bufs [][]byte, off int64) (bool, error) {
	return f.try(&f.readsWait, bufs, off, unix.Preadv2)
}

// TryWriteAt implements [Trier] where the file system can tell.
func (f *File) TryWriteAt(bufs [][]byte, off int64) (bool, error) {
	return f.try(&f.writesWait, bufs, off, unix.Pwritev2)
}

// try is one call of move that must not wait. Any error but that it cannot tell
// is for the call that may wait to find again.
func (f *File) try(waits *atomic.Bool, bufs [][]byte, off int64, move func(fd int, bufs [][]byte, off int64, flags int) (int, error)) (bool, error) {
	if waits.Load() || len(bufs) > maxBuffers {
		return false, nil
	}
	n, err := move(f.fd, bufs, off, unix.RWF_NOWAIT)
	if unsupported(err) {
		waits.Store(true)
	}
	return err == nil && uint64(n) == length(bufs), nil
}

// unsupported tells whether err is that the kernel or the file system has no
// such thing.
func unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)
}

// Flush implements [Backend] by fdatasync.
func (f *File) Flush() error {
	if err := uninterrupted(func() error { return unix.Fdatasync(f.fd) }); err != nil {
		return fmt.Errorf("blk: flush: %w", err)
	}
	return nil
}

// WriteZeroes implements [Backend] by fallocate, and by writing zeros where
// the file system has no such thing.
func (f *File) WriteZeroes(off, n int64, unmap bool) error {
	mode := uint32(unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE)
	if unmap {
		mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	}
	err := uninterrupted(func() error { return unix.Fallocate(f.fd, mode, off, n) })
	switch {
	case unsupported(err):
		return f.fill(off, n)
	case err != nil:
		return fmt.Errorf("blk: zero %d bytes at %d: %w", n, off, err)
	}
	return nil
}

// Discard implements [Backend] by punching a hole.
func (f *File) Discard(off, n int64) error { return f.WriteZeroes(off, n, true) }

// fill writes n zeros at off, a piece at a time.
func (f *File) fill(off, n int64) error {
	for n > 0 {
		piece := zeros[:min(n, int64(len(zeros)))]
		if err := f.WriteAt([][]byte{piece}, off); err != nil {
			return err
		}
		off, n = off+int64(len(piece)), n-int64(len(piece))
	}
	return nil
}

// transfer calls move until all of bufs has been read or written.
func transfer(what string, fd int, bufs [][]byte, off int64, move func(fd int, bufs [][]byte, off int64) (int, error)) error {
	for bufs = advance(bufs, 0); len(bufs) > 0; {
		n, err := move(fd, bufs[:min(len(bufs), maxBuffers)], off)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("blk: %s at %d: %w", what, off, err)
		case n == 0: // the file was made shorter
			return fmt.Errorf("blk: %s at %d: %w", what, off, io.ErrUnexpectedEOF)
		}
		off += int64(n)
		bufs = advance(bufs, n)
	}
	return nil
}

// readv is preadv. The call for a single buffer needs no list of them.
func readv(fd int, bufs [][]byte, off int64) (int, error) {
	if len(bufs) == 1 {
		return unix.Pread(fd, bufs[0], off)
	}
	return unix.Preadv(fd, bufs, off)
}

// writev is pwritev.
func writev(fd int, bufs [][]byte, off int64) (int, error) {
	if len(bufs) == 1 {
		return unix.Pwrite(fd, bufs[0], off)
	}
	return unix.Pwritev(fd, bufs, off)
}

// advance takes the first n bytes off bufs, and empty buffers behind them.
func advance(bufs [][]byte, n int) [][]byte {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if n > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}

func uninterrupted(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
