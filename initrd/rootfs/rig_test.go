package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/erofs/go-erofs"

	"github.com/forkvm/forkvm/initrd/rootfs/internal/tooltest"
)

// tool runs a program of erofs-utils, which must succeed.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	return tooltest.Run(t, "erofs-utils", name, args...)
}

// built is an image in a file.
type built struct {
	path string
	Info
}

func build(t *testing.T, src Source, opts Options) built {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	info, err := Build(t.Context(), path, src, opts)
	if err != nil {
		t.Fatal(err)
	}
	return built{path, info}
}

// refused returns the error of a build that must fail, and leave nothing. A nil want is
// any error.
func refused(t *testing.T, src Source, opts Options, want error) error {
	t.Helper()
	dir := t.TempDir()
	_, err := Build(t.Context(), filepath.Join(dir, "image"), src, opts)
	if err == nil {
		t.Fatal("accepted")
	}
	if want != nil && !errors.Is(err, want) {
		t.Errorf("%v; want %v", err, want)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	return err
}

// file is what of a file is compared.
type file struct {
	kind    string // d, -, l, c, b, p, s
	mode    uint32 // permissions
	uid     uint32
	gid     uint32
	mtime   int64
	nsec    uint32
	nlink   int
	rdev    uint32
	size    int64
	content string // its SHA-256, or the target of a link
	xattrs  string
}

// kinds are the letters that ls uses.
var kinds = map[fs.FileMode]string{
	0: "-", fs.ModeDir: "d", fs.ModeSymlink: "l", fs.ModeNamedPipe: "p", fs.ModeSocket: "s",
	fs.ModeDevice: "b", fs.ModeDevice | fs.ModeCharDevice: "c",
}

// list reads an image with a reader that is not ours.
func (b built) list(t *testing.T) map[string]file {
	t.Helper()
	f, err := os.Open(b.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	image, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]file{}
	err = fs.WalkDir(image, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		files[name], err = describe(image, name, d)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func describe(image fs.FS, name string, d fs.DirEntry) (file, error) {
	info, err := d.Info()
	if err != nil {
		return file{}, err
	}
	st := info.Sys().(*erofs.Stat)
	f := file{
		kind: kinds[info.Mode().Type()], mode: uint32(info.Mode().Perm()), uid: st.UID, gid: st.GID,
		mtime: int64(st.Mtime), nsec: st.MtimeNs, nlink: st.Nlink, rdev: st.Rdev, size: st.Size,
	}
	for bit, value := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if st.Mode&bit != 0 {
			f.mode |= value
		}
	}
	for _, key := range slices.Sorted(maps.Keys(st.Xattrs)) {
		f.xattrs += fmt.Sprintf("%s=%s;", key, sumIfLong(st.Xattrs[key]))
	}
	switch f.kind {
	case "-":
		content, err := image.Open(name)
		if err != nil {
			return file{}, err
		}
		defer content.Close()
		h := sha256.New()
		if _, err := io.Copy(h, content); err != nil {
			return file{}, err
		}
		f.content = fmt.Sprintf("%x", h.Sum(nil))
	case "l":
		f.content, err = image.(fs.ReadLinkFS).ReadLink(name)
	case "d":
		f.size = 0 // the reader's business
	}
	return f, err
}

func sumIfLong(s string) string {
	if len(s) > 64 {
		return sum(s)
	}
	return s
}

func sum(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

// names lists an image, with / behind directories and a * for each other name of a file.
func (b built) names(t *testing.T) string {
	t.Helper()
	var names []string
	for name, f := range b.list(t) {
		switch {
		case name == ".":
			continue
		case f.kind == "d":
			name += "/"
		case f.nlink > 1:
			name += strings.Repeat("*", f.nlink-1)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func (b built) fsck(t *testing.T) {
	t.Helper()
	tool(t, "fsck.erofs", b.path)
}

// read returns the content of a file of the image.
func (b built) read(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(b.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	image, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	content, err := fs.ReadFile(image, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// Entries of archives under construction.
type entry struct {
	tar.Header
	content string
}

var epoch = time.Unix(1_700_000_000, 0)

func reg(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: epoch}, content}
}

func dir(name string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: epoch}}
}

func sym(name, target string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: epoch}}
}

func hard(name, target string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, ModTime: epoch}}
}

// pack makes a tar archive.
func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, e := range entries {
		if e.Format == tar.FormatUnknown {
			e.Format = tar.FormatPAX
		}
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

// raw makes one header as it is stored, with nothing checked. Archives end with end.
func raw(name string, kind byte, size int64, change func(block []byte)) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00%011o\x00", size, 0))
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	if change != nil {
		change(b)
	}
	copy(b[148:], "        ")
	total := 0
	for _, c := range b {
		total += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", total))
	return b
}

var end = make([]byte, 1024)

// padded fills content up to blocks of tar.
func padded(content string) []byte {
	return append([]byte(content), make([]byte, -len(content)&511)...)
}

func tarOf(t testing.TB, entries ...entry) Source {
	return Tar(bytes.NewReader(pack(t, entries...)))
}

// cancelAt is a reader that cancels a context when it has read so much.
type cancelAt struct {
	r      io.Reader
	left   int
	cancel context.CancelFunc
}

// Read implements io.Reader.
func (c *cancelAt) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.left -= n; c.left <= 0 {
		c.cancel()
	}
	return n, err
}
