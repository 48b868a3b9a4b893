package disk

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

// A system call may be interrupted, or do less than it was asked for.
func TestTransfersGoOn(t *testing.T) {
	data := []byte("0123456789abcdefghijklmnopqrstuvwxyz")
	for step := 1; step <= len(data)+1; step++ {
		var got []byte
		calls := 0
		v := newVector([][]byte{nil, data[:1], data[1:5], {}, data[5:6], data[6:30], data[30:], {}})
		err := v.each(int64(len(data)), func(bufs [][]byte) (n int, _ error) {
			if calls++; calls%2 == 0 {
				return -1, unix.EINTR
			}
			for _, b := range bufs {
				k := min(len(b), step-n)
				got = append(got, b[:k]...)
				n += k
			}
			return n, nil
		})
		v.free()
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d at a time: %q, %v", step, got, err)
		}
	}
}

func TestTransfersFail(t *testing.T) {
	for _, want := range []error{unix.ENOSPC, unix.EIO, io.ErrUnexpectedEOF} {
		calls := 0
		v := newVector([][]byte{make([]byte, 10)})
		err := v.each(10, func([][]byte) (int, error) {
			if calls++; calls == 1 {
				return 4, nil
			}
			if want == io.ErrUnexpectedEOF {
				return 0, nil
			}
			return -1, want
		})
		v.free()
		if !errors.Is(err, want) || calls != 2 {
			t.Errorf("%v after %d calls, want %v after 2", err, calls, want)
		}
	}
}

// No call gets more buffers than the kernel takes.
func TestManyBuffers(t *testing.T) {
	bufs := make([][]byte, 3*maxBuffers+1)
	for i := range bufs {
		bufs[i] = make([]byte, 1)
	}
	v := newVector(bufs)
	defer v.free()
	var calls []int
	err := v.each(int64(len(bufs)), func(bufs [][]byte) (int, error) {
		calls = append(calls, len(bufs))
		return len(bufs), nil
	})
	if err != nil || len(calls) != 4 || calls[0] != maxBuffers || calls[3] != 1 {
		t.Errorf("calls with %d buffers, %v", calls, err)
	}
}
