package blk

import "sync"

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
