package virtio

import (
	"errors"
	"io"
)

// Chain is one descriptor chain: a request of the driver. Its slices alias
// guest memory, which the guest may change at any time: what is validated is
// copied first.
type Chain struct {
	// Head is the index that goes back to the driver with [Queue.Push].
	Head uint16
	// Readable is what the device may only read, in order.
	Readable [][]byte
	// Writable is what the device may only write, in order.
	Writable [][]byte
	// WritableAt are the guest-physical addresses of Writable, for a device to
	// which a buffer is a place rather than bytes.
	WritableAt []uint64
}

var (
	_ io.ReaderAt = (*Chain)(nil)
	_ io.WriterAt = (*Chain)(nil)
)

// ReadableLen is the number of bytes in Readable.
func (c *Chain) ReadableLen() int { return total(c.Readable) }

// WritableLen is the number of bytes in Writable.
func (c *Chain) WritableLen() int { return total(c.Writable) }

// ReadAt copies the readable bytes from offset off on into p. It returns
// io.EOF if there are fewer than len(p).
func (c *Chain) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errNegativeOffset
	}
	n := 0
	for _, b := range c.Readable {
		skip := min(off, int64(len(b)))
		off -= skip
		n += copy(p[n:], b[skip:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt copies p to the writable bytes from offset off on. It returns
// io.ErrShortWrite if they do not hold all of p.
func (c *Chain) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errNegativeOffset
	}
	n := 0
	for _, b := range c.Writable {
		skip := min(off, int64(len(b)))
		off -= skip
		n += copy(b[skip:], p[n:])
	}
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

var errNegativeOffset = errors.New("virtio: chain: negative offset")

func total(bufs [][]byte) int {
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	return n
}
