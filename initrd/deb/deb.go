// Package deb reads Debian binary packages: an ar archive of which one member is a
// compressed tar archive of the files to install (deb(5)). It is enough to take a
// kernel out of a linux-image package without dpkg, and it checks nothing but
// structure: who wants a package's authenticity gets the package through apt.
package deb

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/forkvm/forkvm/initrd/decompress"
)

// MaxData bounds, in bytes, the unpacked size of a package's files.
const MaxData = 4 << 30

// maxMembers bounds the walk over an archive's members; packages have three or so.
const maxMembers = 64

var (
	// ErrNotPackage is wrapped by errors about files that are no Debian package.
	ErrNotPackage = errors.New("not a Debian package")
	// ErrTruncated is wrapped by errors about packages that end too early.
	ErrTruncated = errors.New("truncated Debian package")
)

// Magic is how every package begins.
const Magic = "!<arch>\n"

const memberHeaderLen = 60

// member is one file of an ar archive.
type member struct {
	name string
	data *io.SectionReader
}

// members lists the ar archive r of size bytes: names and extents, no data read.
func members(r io.ReaderAt, size int64) ([]member, error) {
	magic := make([]byte, len(Magic))
	if n, err := r.ReadAt(magic, 0); err != nil && err != io.EOF {
		return nil, err
	} else if string(magic[:n]) != Magic {
		return nil, fmt.Errorf("%w: no ar archive", ErrNotPackage)
	}
	var list []member
	for offset := int64(len(Magic)); offset < size; {
		if len(list) == maxMembers {
			return nil, fmt.Errorf("%w: more than %d members", ErrNotPackage, maxMembers)
		}
		m, err := readMember(r, offset, size)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
		length := m.data.Size()
		offset += memberHeaderLen + length + length%2 // members start at even offsets
	}
	return list, nil
}

func readMember(r io.ReaderAt, offset, size int64) (member, error) {
	var raw [memberHeaderLen]byte
	n, err := r.ReadAt(raw[:], offset)
	if n < memberHeaderLen {
		if err == io.EOF {
			return member{}, fmt.Errorf("%w: within a member's header", ErrTruncated)
		}
		return member{}, err
	}
	if string(raw[58:]) != "`\n" {
		return member{}, fmt.Errorf("%w: damaged ar archive", ErrNotPackage)
	}
	name := strings.TrimSuffix(strings.TrimRight(string(raw[:16]), " "), "/")
	length, err := strconv.ParseInt(strings.TrimRight(string(raw[48:58]), " "), 10, 64)
	if err != nil || length < 0 {
		return member{}, fmt.Errorf("%w: member %q has no length", ErrNotPackage, name)
	}
	start := offset + memberHeaderLen
	if length > size-start {
		return member{}, fmt.Errorf("%w: within member %q", ErrTruncated, name)
	}
	return member{name, io.NewSectionReader(r, start, length)}, nil
}

// Walk calls visit for each file and directory of the package r of size bytes, in
// the package's order. Names are slash-separated, relative and clean: package
// entries that would leave the root are an error. Links and devices are left out.
// The content is valid until visit returns; an error of visit ends the walk and is
// returned as it is.
func Walk(r io.ReaderAt, size int64, visit func(name string, info fs.FileInfo, content io.Reader) error) error {
	list, err := members(r, size)
	if err != nil {
		return fmt.Errorf("deb: %w", err)
	}
	if len(list) == 0 || list[0].name != "debian-binary" {
		return fmt.Errorf("deb: %w: an ar archive of something else", ErrNotPackage)
	}
	for _, m := range list {
		if strings.HasPrefix(m.name, "data.tar") {
			return walkData(m, visit)
		}
	}
	return fmt.Errorf("deb: %w: it has no data.tar", ErrNotPackage)
}

func walkData(m member, visit func(string, fs.FileInfo, io.Reader) error) error {
	data, err := openData(m)
	if err != nil {
		return fmt.Errorf("deb: %s: %w", m.name, err)
	}
	defer data.Close()
	archive := tar.NewReader(data)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("deb: %s: %w", m.name, err)
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir {
			continue
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "/"))
		if !fs.ValidPath(name) {
			return fmt.Errorf("deb: %s: %w: entry %q leaves the root", m.name, ErrNotPackage, h.Name)
		}
		if err := visit(name, h.FileInfo(), archive); err != nil {
			return err
		}
	}
}

// openData opens a data.tar by its content, not its extension: both say the same
// in sound packages.
func openData(m member) (io.ReadCloser, error) {
	br := bufio.NewReader(m.data)
	magic, err := br.Peek(decompress.DetectLen)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if m.name == "data.tar" {
		return io.NopCloser(io.LimitReader(br, MaxData)), nil
	}
	return decompress.NewReader(br, decompress.Detect(magic), MaxData)
}
