package decompress

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
	"github.com/ulikunitz/xz/lzma"
)

// branchy returns bytes dense in x86 branch opcodes and plain top bytes, so that
// every case of the filter's heuristics occurs. testdata/branchy-*.xz hold it as
// compressed by xz 5.4 with --x86 (and --x86=start=4096).
func branchy() []byte {
	r := rand.New(rand.NewPCG(1, 2))
	common := []byte{0xe8, 0xe9, 0xe8, 0, 0xff, 0xff, 0, 0x90}
	b := make([]byte, 12000)
	for i := range b {
		if r.IntN(3) > 0 {
			b[i] = common[r.IntN(len(common))]
		} else {
			b[i] = byte(r.Uint32())
		}
	}
	return b
}

// sample is compressible, long enough for several blocks, and not all alike.
func sample() []byte {
	return bytes.Repeat([]byte("vmlinux and its modules; "), 20000)
}

func compress(t testing.TB, f Format, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch f {
	case Gzip:
		w = gzip.NewWriter(&out)
	case XZ:
		w, err = xz.NewWriter(&out)
	case Zstd:
		w, err = zstd.NewWriter(&out)
	case LZ4:
		lw := lz4.NewWriter(&out)
		err = lw.Apply(lz4.LegacyOption(true))
		w = lw
	case LZMA:
		w, err = lzma.NewWriter(&out)
	default:
		t.Fatalf("no compressor for %s", f)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func decompress(data []byte, f Format, limit int64) ([]byte, error) {
	r, err := NewReader(bytes.NewReader(data), f, limit)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

var formats = []Format{Gzip, XZ, Zstd, LZ4, LZMA}

func TestRoundTrip(t *testing.T) {
	want := sample()
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			packed := compress(t, f, want)
			if got := Detect(packed[:DetectLen]); got != f {
				t.Errorf("Detect = %s", got)
			}
			got, err := decompress(packed, f, int64(len(want)))
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("got %d bytes, %v; want %d", len(got), err, len(want))
			}
		})
	}
}

func TestLimit(t *testing.T) {
	data := sample()
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			got, err := decompress(compress(t, f, data), f, int64(len(data))-1)
			if !errors.Is(err, ErrTooLarge) {
				t.Errorf("error %v, want ErrTooLarge", err)
			}
			if len(got) != len(data)-1 {
				t.Errorf("%d bytes came out, limit was %d", len(got), len(data)-1)
			}
		})
	}
}

func TestTruncated(t *testing.T) {
	data := sample()
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			packed := compress(t, f, data)
			for _, n := range []int{0, 3, 9, len(packed) / 2, len(packed) - 5} {
				got, err := decompress(packed[:n], f, 1<<30)
				// Legacy LZ4 frames have no end mark: cut between two blocks, one is
				// just shorter. Kernel images carry their length besides.
				if err == nil && !(f == LZ4 && len(got) < len(data)) {
					t.Errorf("%d of %d bytes: no error", n, len(packed))
				}
				if err != nil && !errors.Is(err, ErrCorrupt) {
					t.Errorf("%d of %d bytes: %v is no ErrCorrupt", n, len(packed), err)
				}
			}
		})
	}
}

func TestBzip2(t *testing.T) {
	packed, err := os.ReadFile("testdata/hello.bz2")
	if err != nil {
		t.Fatal(err)
	}
	got, err := decompress(packed, Detect(packed), 100)
	if err != nil || string(got) != "hello, bzip2\n" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestXZWithX86Filter(t *testing.T) {
	for _, name := range []string{"branchy-x86.xz", "branchy-x86-start.xz"} {
		t.Run(name, func(t *testing.T) {
			packed, err := os.ReadFile("testdata/" + name)
			if err != nil {
				t.Fatal(err)
			}
			// The integrity check inside the file is over the unfiltered bytes too.
			got, err := decompress(packed, XZ, 1<<20)
			if err != nil || !bytes.Equal(got, branchy()) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
		})
	}
}

// TestX86FilterInPieces feeds the filter a few bytes at a time: what it does must
// not depend on how its input is cut.
func TestX86FilterInPieces(t *testing.T) {
	data := branchy()
	whole := bytes.Clone(data)
	new(x86Filter).decode(whole)
	for size := 1; size < 12; size++ {
		r := newX86Reader(&pieces{data, size}, 0)
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, whole) {
			t.Errorf("pieces of %d: differs from one piece (%v)", size, err)
		}
	}
}

type pieces struct {
	data []byte
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.data[:min(p.size, len(p.data))])
	p.data = p.data[n:]
	return n, nil
}

func TestXZConcatenatedAndPadded(t *testing.T) {
	one := compress(t, XZ, []byte("first "))
	two := compress(t, XZ, []byte("second"))
	file := append(append(append([]byte{}, one...), make([]byte, 8)...), two...)
	got, err := decompress(file, XZ, 100)
	if err != nil || string(got) != "first second" {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := decompress(append(file, 0), XZ, 100); !errors.Is(err, ErrCorrupt) {
		t.Errorf("padding of one byte: %v", err)
	}
}

// TestXZDamage flips each byte of a file in turn: none may pass unnoticed.
func TestXZDamage(t *testing.T) {
	packed, err := os.ReadFile("testdata/branchy-x86.xz")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 7, 8, 12, 13, 14, 16, 20, 24, 30, 500, len(packed) / 2, len(packed) - 30, len(packed) - 20, len(packed) - 12, len(packed) - 8, len(packed) - 4, len(packed) - 1} {
		damaged := bytes.Clone(packed)
		damaged[i] ^= 0x55
		_, err := decompress(damaged, XZ, 1<<20)
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) {
			t.Errorf("byte %d of %d damaged: error %v", i, len(packed), err)
		}
	}
}

func TestUnsupported(t *testing.T) {
	lzo := "\x89LZO\x00\r\n\x1a\n"
	if got := Detect([]byte(lzo)); got != LZO {
		t.Fatalf("Detect = %s", got)
	}
	_, err := NewReader(strings.NewReader(lzo), LZO, 1)
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "lzo") {
		t.Errorf("error %v", err)
	}
	if got := Detect([]byte("nothing")); got != Unknown {
		t.Errorf("Detect = %s", got)
	}
}

func FuzzReader(f *testing.F) {
	for _, format := range formats {
		f.Add(byte(format), compress(f, format, []byte("some bytes, some bytes, some bytes")))
	}
	for _, name := range []string{"branchy-x86.xz", "hello.bz2"} {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(Detect(data)), data)
	}
	f.Fuzz(func(t *testing.T, format byte, data []byte) {
		const limit = 1 << 20
		got, err := decompress(data, Format(format), limit)
		if len(got) > limit {
			t.Fatalf("%d bytes came out of a reader limited to %d", len(got), limit)
		}
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrUnsupported) {
			t.Fatalf("error without a sentinel: %v", err)
		}
	})
}
