package blk

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A system call may be interrupted, or do less than it was asked for.
func TestTransfersGoOn(t *testing.T) {
	data := []byte("0123456789abcdefghijklmnopqrstuvwxyz")
	for step := 1; step <= len(data)+1; step++ {
		var got []byte
		calls := 0
		move := func(_ int, bufs [][]byte, off int64) (int, error) {
			if calls++; calls%2 == 0 {
				return -1, unix.EINTR
			}
			if off != int64(len(got)) {
				t.Fatalf("at %d, want %d", off, len(got))
			}
			n := 0
			for _, b := range bufs {
				k := min(len(b), step-n)
				got = append(got, b[:k]...)
				n += k
			}
			return n, nil
		}
		bufs := [][]byte{nil, data[:1], data[1:5], {}, data[5:6], data[6:30], data[30:], {}}
		if err := transfer("test", -1, bufs, 0, move); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d at a time: %q, %v", step, got, err)
		}
	}
}

func TestTransfersFail(t *testing.T) {
	for _, want := range []error{unix.ENOSPC, unix.EIO, io.ErrUnexpectedEOF} {
		calls := 0
		err := transfer("test", -1, [][]byte{make([]byte, 10)}, 0, func(int, [][]byte, int64) (int, error) {
			if calls++; calls == 1 {
				return 4, nil
			}
			if want == io.ErrUnexpectedEOF {
				return 0, nil
			}
			return -1, want
		})
		if !errors.Is(err, want) || calls != 2 {
			t.Errorf("%v after %d calls, want %v after 2", err, calls, want)
		}
	}
}

// Where a file system has no other way, zeros are written.
func TestZerosAreWritten(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := bytes.Repeat([]byte{0xff}, 3*len(zeros))
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	b, err := NewFile(f)
	if err != nil {
		t.Fatal(err)
	}
	off, n := SectorSize, 2*len(zeros)+SectorSize
	if err := b.fill(int64(off), int64(n)); err != nil {
		t.Fatal(err)
	}
	clear(data[off:][:n])
	got := make([]byte, len(data))
	if err := b.ReadAt([][]byte{got}, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("not the range and nothing else was zeroed (%v)", err)
	}
}

// A request is no longer than what a device can wait for, however often a chain
// names the same memory.
func TestLongTransfersAreRefused(t *testing.T) {
	r := &request{dev: &Device{backend: NewMemory(make([]byte, SectorSize))}}
	do := func(Backend, [][]byte, int64) error {
		t.Error("the backend was asked")
		return nil
	}
	if err := r.transfer(maxTransfer+SectorSize, 0, nil, 0, nil, do); err != errInvalid {
		t.Errorf("%v", err)
	}
}
