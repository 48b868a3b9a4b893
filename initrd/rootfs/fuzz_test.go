package rootfs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"
)

// fuzzLimits keep an input of a few bytes from taking long.
var fuzzLimits = Limits{Content: 4 << 20, Entries: 1000, Metadata: 1 << 20, Document: 64 << 10}

// buildAny builds an image of an input that may be anything. What is refused must be
// refused for a reason of ours, and what is accepted must be a file system.
func buildAny(t *testing.T, src Source) {
	fd, err := unix.MemfdCreate("image", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), filepath.Join(os.TempDir(), "image"))
	defer f.Close()
	info, err := writeImage(t.Context(), f, src, Options{Limits: fuzzLimits})
	if err != nil {
		for _, known := range []error{ErrLimit, ErrFormat, ErrDigest, ErrNoImage} {
			if errors.Is(err, known) {
				return
			}
		}
		t.Fatalf("refused for no reason of ours: %v", err)
	}
	image, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[int64]bool{}
	err = fs.WalkDir(image, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		numbers[info.Sys().(*erofs.Stat).Ino] = true
		if !d.Type().IsRegular() {
			return nil
		}
		file, err := image.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.Copy(io.Discard, file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(numbers) != info.Inodes {
		t.Fatalf("%d inodes, not %d", len(numbers), info.Inodes)
	}
}

func FuzzTar(f *testing.F) {
	f.Add(pack(f))
	f.Add(pack(f, dir("d"), reg("d/a", "content"), hard("b", "d/a"), sym("l", "d"), reg("l/x", ""), reg("d", "")))
	f.Add(pack(f, withXattrs(reg("a", pattern(5000)), map[string]string{"user.x": "value", "trusted.overlay.opaque": "y"})))
	f.Add(pack(f, entry{Header: tar.Header{Typeflag: tar.TypeChar, Name: "c", Devmajor: 1, Devminor: 3}},
		entry{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "p"}}))
	f.Add(compressed(f, pack(f, reg("a", "1")), "gzip"))
	f.Add(compressed(f, pack(f, reg("a", "1")), "zstd"))
	f.Add(slices.Concat(raw("sparse", tar.TypeGNUSparse, 512, func(b []byte) {
		copy(b[257:], "ustar  \x00")
		copy(b[386:], "00000020000\x0000000001000\x00")
		copy(b[483:], "00000021000\x00")
	}), make([]byte, 512), end))
	f.Fuzz(func(t *testing.T, data []byte) { buildAny(t, Tar(bytes.NewReader(data))) })
}

// script makes layers of a text: an entry a line (f, d, l or h, a name and a target), a
// line of one dash between layers.
func script(t testing.TB, text string) [][]byte {
	var archives [][]byte
	var entries []entry
	for line := range strings.SplitSeq(text, "\n") {
		word := strings.Split(line+"  ", " ")
		if !utf8.ValidString(line) || strings.ContainsRune(line, 0) {
			continue // a writer of archives refuses it
		}
		switch name, target := word[1], word[2]; word[0] {
		case "-":
			archives, entries = append(archives, pack(t, entries...)), nil
		case "f":
			entries = append(entries, reg(strings.TrimRight(name, "/"), target))
		case "d":
			entries = append(entries, dir(name+"/"))
		case "l":
			entries = append(entries, sym(name, target))
		case "h":
			entries = append(entries, hard(name, target))
		}
	}
	return append(archives, pack(t, entries...))
}

// FuzzLayers puts layers on top of each other whose archives are well made.
func FuzzLayers(f *testing.F) {
	const base = "d d\nf d/a 1\nd d/e\nf d/e/f\nl l d\nh h d/a\n-\n"
	f.Add(base + "f d/.wh.a\nf l/.wh..wh..opq\n")
	f.Add(base + "f .wh.d\nf d/n x\n-\nf d/.wh..wh..opq\nf d 2")
	f.Add(base + "h d d/a\nf .wh.h\nd d\nl d/x ../d/x\nf d/x/y")
	f.Add("l a b\nl b /c/../d\nf a/x 1\nf .wh.b\n-\nf .wh.b\nh q a\nd a")
	f.Fuzz(func(t *testing.T, text string) {
		i := imageOf{os: "linux", arch: "amd64", archives: script(t, text)}
		i.blobs = i.archives
		s := store{}
		buildAny(t, Image(s.index(t, s.add(t, i)).open()))
	})
}

func FuzzArchive(f *testing.F) {
	layer := pack(f, reg("a", "1"))
	f.Add(simple(f, layer).tar(f))
	f.Add(dockerSave(f, true, []string{"a:1"}, layer, layer))
	f.Add(dockerSave(f, false, nil, layer))
	var buffer bytes.Buffer
	w := gzip.NewWriter(&buffer)
	if _, err := w.Write(simple(f, layer).tar(f)); err != nil {
		f.Fatal(err)
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(buffer.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) { buildAny(t, Archive(fileOf(t, data), "")) })
}

// FuzzDocuments has a go at index, manifest and configuration, whose digests are right.
func FuzzDocuments(f *testing.F) {
	layer := pack(f, reg("a", "1"))
	s := store{}
	var documents [3][]byte
	d := s.add(f, layers(f, layer))
	documents[0] = s.index(f, d)["index.json"]
	for name, content := range s {
		switch {
		case bytes.Contains(content, []byte(`"layers"`)):
			documents[1] = content
		case bytes.Contains(content, []byte(`"rootfs"`)):
			documents[2] = s[name]
		}
	}
	f.Add(documents[0], documents[1], documents[2])
	f.Add([]byte(`{"manifests":[{"mediaType":"","digest":"sha256:00","size":-1}]}`), []byte("{}"), []byte("null"))
	f.Fuzz(func(t *testing.T, list, manifest, config []byte) {
		s := store{"index.json": list}
		s.blob("", layer)
		s.blob(TypeManifest, manifest)
		s.blob("", config)
		buildAny(t, Image(s.open()))
		s.index(t, s.blob(TypeManifest, manifest))
		buildAny(t, Image(s.open()))
	})
}
