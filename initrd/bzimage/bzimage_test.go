package bzimage

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/forkvm/forkvm/initrd/decompress"
	"github.com/forkvm/forkvm/initrd/internal/fakekernel"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz/lzma"
)

const testRelease = "6.12.1-test"

// testdata/payload.* hold tinyVmlinux as compressed by xz (with its x86 filter),
// bzip2 and lz4 (legacy frame), the way the kernel's build calls them.
func tinyVmlinux() []byte { return fakekernel.Vmlinux(testRelease) }

func image(payload []byte) []byte { return fakekernel.Image(testRelease, payload) }

// withSize appends the length of the uncompressed data, as the kernel's build does.
func withSize(packed []byte, size int) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(packed), uint32(size))
}

func payloads(t testing.TB) map[string][]byte {
	t.Helper()
	elf := tinyVmlinux()
	pack := func(newWriter func(io.Writer) (io.WriteCloser, error)) []byte {
		var out bytes.Buffer
		w, err := newWriter(&out)
		if err == nil {
			_, err = w.Write(elf)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	file := func(name string) []byte {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return withSize(data, len(elf))
	}
	return map[string][]byte{
		"gzip": pack(func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil }),
		"zstd": withSize(pack(func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) }), len(elf)),
		"lzma": withSize(pack(func(w io.Writer) (io.WriteCloser, error) { return lzma.NewWriter(w) }), len(elf)),
		"xz":   file("payload.xz"), "bzip2": file("payload.bz2"), "lz4": file("payload.lz4"),
	}
}

func unpack(img []byte) ([]byte, error) {
	var out bytes.Buffer
	_, err := Unpack(&out, bytes.NewReader(img), int64(len(img)))
	return out.Bytes(), err
}

func TestUnpackEveryCompressor(t *testing.T) {
	want := tinyVmlinux()
	for name, payload := range payloads(t) {
		t.Run(name, func(t *testing.T) {
			img := image(payload)
			h, err := Parse(bytes.NewReader(img), int64(len(img)))
			if err != nil {
				t.Fatal(err)
			}
			if h.Release != testRelease || h.Compression.String() != name || h.Version != 0x020f {
				t.Errorf("header %+v", h)
			}
			got, err := unpack(img)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes, %v; want %d", len(got), err, len(want))
			}
			if err := CheckVmlinux(bytes.NewReader(got), int64(len(got))); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestBadImages(t *testing.T) {
	good := image(payloads(t)["gzip"])
	edit := func(f func([]byte) []byte) []byte { return f(bytes.Clone(good)) }
	put32 := func(offset int, v uint32) []byte {
		return edit(func(b []byte) []byte { binary.LittleEndian.PutUint32(b[offset:], v); return b })
	}
	arm64 := make([]byte, 4096)
	copy(arm64[0x38:], "ARM\x64")
	tests := []struct {
		name string
		img  []byte
		want error
	}{
		{"empty", nil, ErrTruncated},
		{"text", []byte(strings.Repeat("no kernel ", 1000)), ErrNotKernel},
		{"boot sector cut", good[:300], ErrTruncated},
		{"header cut", good[:0x220], ErrTruncated},
		{"payload cut", good[:len(good)-400], ErrTruncated},
		{"payload far away", put32(offPayloadOffset, 0xfffffff0), ErrTruncated},
		{"payload huge", put32(offPayloadLength, 0xffffffff), ErrTruncated},
		{"payload empty", put32(offPayloadLength, 0), ErrNotKernel},
		{"no boot flag", edit(func(b []byte) []byte { b[offBootFlag] = 0; return b }), ErrNotKernel},
		{"old protocol", edit(func(b []byte) []byte { b[offVersion] = 7; return b }), ErrTooOld},
		{"32-bit", edit(func(b []byte) []byte { b[offXLoadFlags] = 0; return b }), ErrWrongArch},
		{"arm64", arm64, ErrWrongArch},
		{"lzo", image(withSize([]byte("\x89LZO\x00\r\n\x1a\nxxxx"), 100)), decompress.ErrUnsupported},
		{"unknown payload", image(make([]byte, 64)), decompress.ErrUnsupported},
		{"unpacks to too much", image(withSize(payloads(t)["zstd"], 1<<30)), ErrTooLarge},
		{"unpacks to less", image(withSize(payloads(t)["zstd"][:len(payloads(t)["zstd"])-4], 1<<20)), decompress.ErrCorrupt},
		{"unpacks to more", image(withSize(payloads(t)["zstd"][:len(payloads(t)["zstd"])-4], 10)), decompress.ErrTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := unpack(tt.img); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

func TestReleaseThatIsNoFileName(t *testing.T) {
	img := image(payloads(t)["gzip"])
	copy(img[0x300:], "6/../../etc (a@b)")
	h, err := Parse(bytes.NewReader(img), int64(len(img)))
	if err != nil || h.Release != "" {
		t.Errorf("release %q, %v; want none", h.Release, err)
	}
}

func TestCheckVmlinux(t *testing.T) {
	good := tinyVmlinux()
	edit := func(offset int, v ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[offset:], v)
		return b
	}
	tests := []struct {
		name string
		elf  []byte
		want error
	}{
		{"good", good, nil},
		{"header cut", good[:40], ErrTruncated},
		{"program headers cut", good[:80], ErrTruncated},
		{"segment cut", good[:len(good)-1], ErrTruncated},
		{"32-bit", edit(4, 1), ErrWrongArch},
		{"big-endian", edit(5, 2), ErrWrongArch},
		{"arm64", edit(18, 183), ErrWrongArch},
		{"object file", edit(16, 1), ErrNotKernel},
		{"no segments", edit(56, 0), ErrNotKernel},
		{"nothing to load", edit(64, 4), ErrNotKernel},
		{"table offset overflows", edit(32, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), ErrTruncated},
		{"segment offset overflows", edit(64+8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), ErrTruncated},
		{"not ELF", []byte("MZ"), ErrNotKernel},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := CheckVmlinux(bytes.NewReader(tt.elf), int64(len(tt.elf))); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

func TestRelease(t *testing.T) {
	got, err := Release(bytes.NewReader(tinyVmlinux()))
	if err != nil || got != testRelease {
		t.Errorf("%q, %v", got, err)
	}
	// Across the boundary of the buffer it is searched in.
	for shift := range 40 {
		data := append(make([]byte, 1<<20-shift), "Linux version 6.1.0-x (a@b)"...)
		if got, err := Release(bytes.NewReader(data)); err != nil || got != "6.1.0-x" {
			t.Errorf("shift %d: %q, %v", shift, got, err)
		}
	}
	if got, err := Release(strings.NewReader("Linux version of nothing")); err != nil || got != "" {
		t.Errorf("%q, %v; want none", got, err)
	}
}

func FuzzUnpack(f *testing.F) {
	for _, payload := range payloads(f) {
		f.Add(image(payload))
	}
	f.Add(tinyVmlinux())
	f.Fuzz(func(t *testing.T, img []byte) {
		// A header may claim half a GiB; what matters here is that nothing panics,
		// and that no more comes out than was announced.
		out := &limitedWriter{left: 4 << 20}
		_, _ = Unpack(out, bytes.NewReader(img), int64(len(img)))
		_ = CheckVmlinux(bytes.NewReader(img), int64(len(img)))
		if release, _ := Release(bytes.NewReader(img)); strings.ContainsAny(release, "/ \x00") {
			t.Errorf("release %q", release)
		}
	})
}

var errFull = errors.New("full")

type limitedWriter struct{ left int }

func (w *limitedWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		return 0, errFull
	}
	w.left -= len(p)
	return len(p), nil
}
