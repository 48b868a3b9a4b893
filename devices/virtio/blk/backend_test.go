package blk_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/forkvm/forkvm/devices/virtio/blk"
)

// pieces cuts p into buffers of the size given.
func pieces(p []byte, size int) (bufs [][]byte) {
	for len(p) > 0 {
		n := min(size, len(p))
		bufs = append(bufs, p[:n:n])
		p = p[n:]
	}
	return bufs
}

// Memory does what a byte slice does, whatever the buffers.
func TestMemoryAgreesWithASlice(t *testing.T) {
	const sectors = 64
	b := blk.NewMemory(pattern(sectors * sector))
	if b.Size() != sectors*sector {
		t.Fatalf("%d bytes, want %d", b.Size(), sectors*sector)
	}
	want := pattern(sectors * sector)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 500 {
		at := random.IntN(sectors)
		n := (random.IntN(sectors-at) + 1) * sector
		off := at * sector
		var err error
		switch random.IntN(6) {
		case 0, 1:
			got := make([]byte, n)
			err = b.ReadAt(pieces(got, 1+random.IntN(2*sector)), int64(off))
			if !bytes.Equal(got, want[off:][:n]) {
				t.Fatalf("step %d: read of %d bytes at %d is wrong", i, n, off)
			}
		case 2, 3:
			data := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, n/2)
			copy(want[off:], data)
			err = b.WriteAt(pieces(data, 1+random.IntN(2*sector)), int64(off))
		case 4:
			clear(want[off:][:n])
			err = b.WriteZeroes(int64(off), int64(n), i%2 == 0)
		case 5:
			clear(want[off:][:n])
			err = b.Discard(int64(off), int64(n))
		}
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	if err := b.Flush(); err != nil {
		t.Error(err)
	}
	got := make([]byte, len(want))
	if err := b.ReadAt([][]byte{got}, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the disk has not what it should in the end (%v)", err)
	}
}

// What need not wait is right, and in memory nothing has to.
func TestMemoryNeedNotWait(t *testing.T) {
	const sectors = 64
	b := blk.NewMemory(pattern(sectors * sector))
	want := pattern(sectors * sector)
	for i := range 50 {
		off, n := i*sector, (i%10+1)*sector
		got := make([]byte, n)
		if done, err := b.TryReadAt(pieces(got, 100+i), int64(off)); !done || err != nil {
			t.Fatalf("read has to wait (%v, %v)", !done, err)
		}
		if !bytes.Equal(got, want[off:][:n]) {
			t.Fatalf("read of %d bytes at %d is wrong", n, off)
		}
		data := bytes.Repeat([]byte{byte(i)}, n)
		if done, err := b.TryWriteAt(pieces(data, 100+i), int64(off)); !done || err != nil {
			t.Fatalf("write has to wait (%v, %v)", !done, err)
		}
		copy(want[off:], data)
	}
	got := make([]byte, len(want))
	if err := b.ReadAt([][]byte{got}, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the disk has not what it should in the end (%v)", err)
	}
}
