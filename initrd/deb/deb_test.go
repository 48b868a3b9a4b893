package deb

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/forkvm/forkvm/initrd/decompress"
	"github.com/forkvm/forkvm/initrd/internal/fakekernel"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

func tarOf(t testing.TB, headers ...*tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		content := "content of " + h.Name
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		h.Mode = 0o644
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = io.WriteString(w, content)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func packed(t testing.TB, format string, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch format {
	case "":
		return data
	case ".gz":
		w = gzip.NewWriter(&out)
	case ".xz":
		w, err = xz.NewWriter(&out)
	case ".zst":
		w, err = zstd.NewWriter(&out)
	}
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func someFiles(t testing.TB) []byte {
	return tarOf(t,
		&tar.Header{Name: "./", Typeflag: tar.TypeDir},
		&tar.Header{Name: "./boot/", Typeflag: tar.TypeDir},
		&tar.Header{Name: "./boot/vmlinuz-6.1", Typeflag: tar.TypeReg},
		&tar.Header{Name: "./boot/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		&tar.Header{Name: "/lib/odd", Typeflag: tar.TypeReg},
	)
}

func walk(deb []byte) (map[string]string, error) {
	seen := map[string]string{}
	err := Walk(bytes.NewReader(deb), int64(len(deb)), func(name string, info fs.FileInfo, content io.Reader) error {
		data, err := io.ReadAll(content)
		if info.IsDir() {
			name += "/"
		}
		seen[name] = string(data)
		return err
	})
	return seen, err
}

func TestWalk(t *testing.T) {
	for _, format := range []string{"", ".gz", ".xz", ".zst"} {
		t.Run("data.tar"+format, func(t *testing.T) {
			deb := fakekernel.Ar(fakekernel.Member("debian-binary", []byte("2.0\n")),
				fakekernel.Member("control.tar.xz", []byte("odd")),
				fakekernel.Member("data.tar"+format, packed(t, format, someFiles(t))))
			got, err := walk(deb)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{"./": "", "boot/": "",
				"boot/vmlinuz-6.1": "content of ./boot/vmlinuz-6.1", "lib/odd": "content of /lib/odd"}
			if len(got) != len(want) {
				t.Errorf("got %q", got)
			}
			for name, content := range want {
				if got[name] != content {
					t.Errorf("%s = %q, want %q", name, got[name], content)
				}
			}
		})
	}
}

func TestBadPackages(t *testing.T) {
	version := fakekernel.Member("debian-binary", []byte("2.0\n"))
	data := fakekernel.Member("data.tar.gz", packed(t, ".gz", someFiles(t)))
	good := fakekernel.Ar(version, data)
	var many []fakekernel.ArMember
	for range maxMembers + 1 {
		many = append(many, version)
	}
	negative := bytes.Replace(fakekernel.Ar(version, data), []byte("100644  4 "), []byte("100644  -4"), 1)
	tests := []struct {
		name string
		deb  []byte
		want error
	}{
		{"empty", nil, ErrNotPackage},
		{"text", []byte(strings.Repeat("no package", 100)), ErrNotPackage},
		{"other ar archive", fakekernel.Ar(fakekernel.Member("a.o", []byte("x"))), ErrNotPackage},
		{"no members", []byte(Magic), ErrNotPackage},
		{"no data", fakekernel.Ar(version, fakekernel.Member("control.tar.gz", nil)), ErrNotPackage},
		{"too many members", fakekernel.Ar(many...), ErrNotPackage},
		{"negative length", negative, ErrNotPackage},
		{"header cut", good[:len(Magic)+20], ErrTruncated},
		{"data cut", good[:len(good)-20], ErrTruncated},
		{"data damaged", fakekernel.Ar(version, fakekernel.Member("data.tar.gz", data.Data[:len(data.Data)-20])), decompress.ErrCorrupt},
		{"data in no format", fakekernel.Ar(version, fakekernel.Member("data.tar.zz", []byte("hello world"))), decompress.ErrUnsupported},
		{"escape", fakekernel.Ar(version, fakekernel.Member("data.tar", tarOf(t, &tar.Header{Name: "../../etc/passwd", Typeflag: tar.TypeReg}))), ErrNotPackage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := walk(tt.deb); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

func TestVisitorsErrorEndsTheWalk(t *testing.T) {
	deb := fakekernel.Ar(fakekernel.Member("debian-binary", []byte("2.0\n")), fakekernel.Member("data.tar", someFiles(t)))
	stop := errors.New("enough")
	calls := 0
	err := Walk(bytes.NewReader(deb), int64(len(deb)), func(string, fs.FileInfo, io.Reader) error {
		calls++
		return stop
	})
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func FuzzWalk(f *testing.F) {
	version := fakekernel.Member("debian-binary", []byte("2.0\n"))
	f.Add(fakekernel.Ar(version, fakekernel.Member("data.tar", someFiles(f))))
	f.Add(fakekernel.Ar(version, fakekernel.Member("data.tar.gz", packed(f, ".gz", someFiles(f)))))
	f.Fuzz(func(t *testing.T, data []byte) {
		left := 1 << 20
		_ = Walk(bytes.NewReader(data), int64(len(data)), func(name string, _ fs.FileInfo, content io.Reader) error {
			if !fs.ValidPath(name) {
				t.Fatalf("name %q", name)
			}
			n, err := io.Copy(io.Discard, io.LimitReader(content, int64(left)))
			if left -= int(n); left <= 0 {
				return errors.New("enough")
			}
			return err
		})
	})
}
