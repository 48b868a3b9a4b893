package disk

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// maxBuffers is IOV_MAX, what the kernel takes in one call.
const maxBuffers = 1024

// vector goes through the bytes of several buffers in order.
type vector struct {
	bufs [][]byte // what is left
	own  [][]byte // where bufs began, to be used again
	part [][]byte // scratch

	// prompt has reads fail with errWait rather than wait for a disk.
	prompt bool
}

var errWait = errors.New("disk: would have to wait")

var vectors = sync.Pool{New: func() any { return new(vector) }}

func newVector(bufs [][]byte) *vector {
	v := vectors.Get().(*vector)
	v.own = v.own[:0]
	for _, b := range bufs {
		if len(b) > 0 {
			v.own = append(v.own, b)
		}
	}
	v.bufs = v.own
	return v
}

func (v *vector) free() {
	clear(v.own)
	clear(v.part[:cap(v.part)])
	v.bufs, v.prompt = nil, false
	vectors.Put(v)
}

func total(bufs [][]byte) (n int64) {
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}

// peek is the next n bytes, or as many as one call of the kernel can take.
func (v *vector) peek(n int64) [][]byte {
	v.part = v.part[:0]
	for _, b := range v.bufs {
		if n == 0 || len(v.part) == maxBuffers {
			break
		}
		b = b[:min(n, int64(len(b)))]
		v.part = append(v.part, b)
		n -= int64(len(b))
	}
	return v.part
}

// skip leaves n bytes behind.
func (v *vector) skip(n int64) {
	for n > 0 {
		k := min(n, int64(len(v.bufs[0])))
		v.bufs[0] = v.bufs[0][k:]
		n -= k
		if len(v.bufs[0]) == 0 {
			v.bufs = v.bufs[1:]
		}
	}
}

// each calls do with the next n bytes, in as many parts as it takes: do says
// how many it has dealt with.
func (v *vector) each(n int64, do func(bufs [][]byte) (int, error)) error {
	for n > 0 {
		k, err := do(v.peek(n))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case k == 0:
			return io.ErrUnexpectedEOF
		}
		v.skip(int64(k))
		n -= int64(k)
	}
	return nil
}

// read fills the next n bytes with those of a file, which is memory or not.
func (v *vector) read(fd int, memory bool, off, n int64) error {
	flags := 0
	if v.prompt && !memory {
		flags = unix.RWF_NOWAIT
	}
	err := v.each(n, func(bufs [][]byte) (int, error) {
		k, err := unix.Preadv2(fd, bufs, off, flags)
		off += int64(max(k, 0))
		return k, err
	})
	if err != nil && flags != 0 {
		return errWait // whatever it is, who waits will find it again
	}
	if err != nil {
		return fmt.Errorf("disk: read: %w", err)
	}
	return nil
}

// write writes the next n bytes to a file.
func (v *vector) write(fd int, off, n int64) error {
	err := v.each(n, func(bufs [][]byte) (int, error) {
		k, err := unix.Pwritev(fd, bufs, off)
		off += int64(max(k, 0))
		return k, err
	})
	if err != nil {
		return fmt.Errorf("disk: write: %w", err)
	}
	return nil
}

// clear makes the next n bytes zeros.
func (v *vector) clear(n int64) {
	_ = v.each(n, func(bufs [][]byte) (k int, _ error) {
		for _, b := range bufs {
			clear(b)
			k += len(b)
		}
		return k, nil
	})
}
