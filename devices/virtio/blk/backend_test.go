package blk_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/devices/virtio/blk"
)

// image is a file of so many sectors.
func image(t testing.TB, sectors int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(pattern(sectors * sector)); err != nil {
		t.Fatal(err)
	}
	return f
}

func fileBackend(t testing.TB, f *os.File) *blk.File {
	t.Helper()
	b, err := blk.NewFile(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pieces cuts p into buffers of the size given.
func pieces(p []byte, size int) (bufs [][]byte) {
	for len(p) > 0 {
		n := min(size, len(p))
		bufs = append(bufs, p[:n:n])
		p = p[n:]
	}
	return bufs
}

// Each backend does what a byte slice does, whatever the buffers.
func TestBackendsAgreeWithASlice(t *testing.T) {
	const sectors = 64
	f := image(t, sectors)
	for name, b := range map[string]blk.Backend{
		"memory": blk.NewMemory(pattern(sectors * sector)),
		"file":   fileBackend(t, f),
		"memfd":  fileBackend(t, memfd(t, sectors)),
	} {
		t.Run(name, func(t *testing.T) {
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
		})
	}
	if st, err := f.Stat(); err != nil || st.Size() != sectors*sector {
		t.Errorf("the file has %d bytes, want %d (%v)", st.Size(), sectors*sector, err)
	}
}

// More buffers than one system call takes.
func TestFileTakesAnyNumberOfBuffers(t *testing.T) {
	const sectors = 16
	b := fileBackend(t, image(t, sectors))
	data := bytes.Repeat([]byte{1, 2, 3}, sectors*sector/3+1)[:sectors*sector]
	if err := b.WriteAt(pieces(data, 3), 0); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(data))
	if err := b.ReadAt(pieces(got, 2), 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read is not what was written (%v)", err)
	}
}

// memfd is a file of a file system that punches holes, but has no other way to
// make zeros.
func memfd(t testing.TB, sectors int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("disk", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "disk")
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(pattern(sectors * sector)); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFileFreesSpace(t *testing.T) {
	const sectors = 4096
	f := memfd(t, sectors)
	b := fileBackend(t, f)
	blocks := func() int64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks
	}
	for _, step := range []struct {
		name string
		do   func() error
		want int64
	}{
		{"at first", func() error { return nil }, sectors},
		{"discard half", func() error { return b.Discard(0, sectors/2*sector) }, sectors / 2},
		{"zero and free the rest", func() error { return b.WriteZeroes(sectors/2*sector, sectors/2*sector, true) }, 0},
		{"zero half and keep it", func() error { return b.WriteZeroes(0, sectors/2*sector, false) }, sectors / 2},
	} {
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		if got := blocks(); got != step.want {
			t.Errorf("%s: %d blocks in use, want %d", step.name, got, step.want)
		}
	}
}

// What need not wait is right, and what would is left alone.
func TestTries(t *testing.T) {
	const sectors = 64
	for name, b := range map[string]blk.Trier{
		"memory": blk.NewMemory(pattern(sectors * sector)),
		"file":   fileBackend(t, image(t, sectors)),
		"memfd":  fileBackend(t, memfd(t, sectors)),
	} {
		t.Run(name, func(t *testing.T) {
			want := pattern(sectors * sector)
			for i := range 50 {
				off, n := i*sector, (i%10+1)*sector
				got := make([]byte, n)
				bufs := pieces(got, 100+i)
				count := len(bufs)
				switch done, err := b.TryReadAt(bufs, int64(off)); {
				case err != nil:
					t.Fatal(err)
				case done && !bytes.Equal(got, want[off:][:n]):
					t.Fatalf("read of %d bytes at %d is wrong", n, off)
				case !done && (len(bufs) != count || total(bufs) != int64(n)):
					t.Fatal("buffers were changed by a read that was not done")
				case !done && name == "memory":
					t.Fatal("memory has to wait for nobody")
				}
				data := bytes.Repeat([]byte{byte(i)}, n)
				done, err := b.TryWriteAt(pieces(data, 100+i), int64(off))
				if err != nil {
					t.Fatal(err)
				}
				if !done {
					if err := b.WriteAt(pieces(data, 100+i), int64(off)); err != nil {
						t.Fatal(err)
					}
				}
				copy(want[off:], data)
			}
			got := make([]byte, len(want))
			if err := b.ReadAt([][]byte{got}, 0); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the disk has not what it should in the end (%v)", err)
			}
		})
	}
}

func TestFileErrors(t *testing.T) {
	if _, err := blk.NewFile(image(t, 0)); err == nil {
		t.Error("an empty file is a disk")
	}
	f := image(t, 4)
	if err := f.Truncate(2*sector + 1); err != nil {
		t.Fatal(err)
	}
	if _, err := blk.NewFile(f); err == nil {
		t.Error("half a sector is a disk")
	}
	if err := f.Truncate(4 * sector); err != nil {
		t.Fatal(err)
	}
	b := fileBackend(t, f)
	if err := f.Truncate(sector); err != nil {
		t.Fatal(err)
	}
	if err := b.ReadAt(pieces(make([]byte, 2*sector), 100), 0); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("read of a file that was made shorter: %v", err)
	}
	if done, err := b.TryReadAt(pieces(make([]byte, 2*sector), 100), 0); done {
		t.Errorf("read of a file that was made shorter need not wait, and fails with %v", err)
	}
	ro, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	b = fileBackend(t, ro)
	for what, err := range map[string]error{
		"write":   b.WriteAt([][]byte{make([]byte, sector)}, 0),
		"zero":    b.WriteZeroes(0, sector, false),
		"discard": b.Discard(0, sector),
	} {
		if !errors.Is(err, unix.EBADF) {
			t.Errorf("%s of a file that is open for reading: %v", what, err)
		}
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, err := blk.NewFile(null); err == nil {
		t.Error("a character device is a disk")
	}
}
