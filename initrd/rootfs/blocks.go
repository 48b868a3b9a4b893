package rootfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

const (
	blockSize = 4096
	// bufferSize is what is gathered before it is written.
	bufferSize = 1 << 20
)

var zeroBlock [blockSize]byte

// blocks writes the data of an image, block after block. Blocks of zeros become holes.
type blocks struct {
	f     *os.File
	next  int64  // number of the block at which buf goes
	buf   []byte // whole blocks between calls
	limit int64  // number of the first block that must not be written
}

// newBlocks writes to the empty file f, from block first on.
func newBlocks(f *os.File, first int64) *blocks {
	return &blocks{f: f, next: first, buf: make([]byte, 0, bufferSize), limit: math.MaxUint32}
}

// end returns the number of the block that follows all data.
func (b *blocks) end() int64 { return b.next + int64(len(b.buf)/blockSize) }

// write appends size bytes of r, filled up with zeros to a whole block, and returns the
// number of their first block, 0 if there are none. A shorter r is an error.
func (b *blocks) write(r io.Reader, size int64) (uint32, error) {
	if size == 0 {
		return 0, nil
	}
	first := b.end()
	if (size+blockSize-1)/blockSize > b.limit-first {
		return 0, fmt.Errorf("%w: the image has more than %d blocks", ErrLimit, b.limit)
	}
	for size > 0 {
		if len(b.buf) == cap(b.buf) {
			if err := b.flush(); err != nil {
				return 0, err
			}
		}
		free := b.buf[len(b.buf):min(int64(cap(b.buf)), int64(len(b.buf))+size)]
		n, err := r.Read(free)
		b.buf, size = b.buf[:len(b.buf)+n], size-int64(n)
		if size > 0 && err == io.EOF {
			err = fmt.Errorf("%w: %d bytes are missing", io.ErrUnexpectedEOF, size)
		}
		if err != nil && size > 0 {
			return 0, err
		}
	}
	if rest := len(b.buf) % blockSize; rest > 0 {
		b.buf = append(b.buf, zeroBlock[rest:]...)
	}
	return uint32(first), nil
}

// flush writes what was gathered, run after run of blocks that are not zeros.
func (b *blocks) flush() error {
	offset := b.next * blockSize
	for from := 0; from < len(b.buf); {
		to := from
		for to < len(b.buf) && !bytes.Equal(b.buf[to:to+blockSize], zeroBlock[:]) {
			to += blockSize
		}
		if _, err := b.f.WriteAt(b.buf[from:to], offset+int64(from)); err != nil {
			return err
		}
		from = to + blockSize
	}
	b.next, b.buf = b.end(), b.buf[:0]
	return nil
}

// erase turns the blocks of the size bytes from block first on into zeros, and into a
// hole where the host's file system can.
func (b *blocks) erase(first uint32, size int64) error {
	if size == 0 {
		return nil
	}
	from := int64(first)
	to := from + (size+blockSize-1)/blockSize
	if low := max(from, b.next); low < to { // not written yet
		clear(b.buf[(low-b.next)*blockSize : (to-b.next)*blockSize])
	}
	if to = min(to, b.next); from >= to {
		return nil
	}
	err := unix.Fallocate(int(b.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE,
		from*blockSize, (to-from)*blockSize)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return b.writeZeros(from, to)
	}
	return err
}

func (b *blocks) writeZeros(from, to int64) error {
	for ; from < to; from++ {
		if _, err := b.f.WriteAt(zeroBlock[:], from*blockSize); err != nil {
			return err
		}
	}
	return nil
}
