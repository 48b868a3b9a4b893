package rootfs

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/initrd/decompress"
)

// Tar reads a root file system from a tar archive: plain, or compressed with gzip,
// zstd, xz, lz4 or bzip2. A Source made of a reader can be used once. Names of
// whiteouts mean nothing here: only layers of images have them.
func Tar(r io.Reader) Source { return tarSource{r} }

type tarSource struct{ r io.Reader }

func (s tarSource) read(ctx context.Context, b *builder) (Config, error) {
	m, closer, err := b.decompressed(b.progress.read(&contextReader{ctx, s.r}))
	if err != nil {
		return Config{}, fmt.Errorf("tar: %w", err)
	}
	defer closer.Close()
	if err := b.readTar(m, m, false); err != nil {
		return Config{}, fmt.Errorf("tar: %w", err)
	}
	b.progress.tell()
	return Config{}, nil
}

// xattrRecord begins the PAX records that hold extended attributes.
const xattrRecord = "SCHILY.xattr."

// decompressed returns the archive in r, decompressed and metered.
func (b *builder) decompressed(r io.Reader) (*meter, io.Closer, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	head, err := br.Peek(tarMagicEnd)
	if err != nil && err != io.EOF {
		return nil, nil, err
	}
	if len(head) == 0 {
		return nil, nil, fmt.Errorf("%w: empty file", ErrFormat)
	}
	format := decompress.Detect(head)
	if isTar(head) || format == decompress.Unknown {
		return &meter{r: br, b: b}, io.NopCloser(nil), nil
	}
	// The meter is the limit: it counts over all archives of a source.
	d, err := decompress.NewReader(br, format, 1<<62)
	if err != nil {
		return nil, nil, err
	}
	return &meter{r: bufio.NewReaderSize(d, 64<<10), b: b}, d, nil
}

const (
	tarMagic    = "ustar"
	tarMagicAt  = 257
	tarMagicEnd = tarMagicAt + len(tarMagic)
)

// isTar recognises archives whose first name looks like a compressed file.
func isTar(head []byte) bool {
	return len(head) >= tarMagicEnd && string(head[tarMagicAt:tarMagicEnd]) == tarMagic
}

// readTar adds the archive r to the tree and reads r to its end. With layer, names that
// begin with .wh. are whiteouts. If m is not nil, an archive without its end marker is
// refused as cut short.
func (b *builder) readTar(r io.Reader, m *meter, layer bool) error {
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return tarError(err)
		}
		if err := b.addTar(header, archive, layer); err != nil {
			return fmt.Errorf("%.200q: %w", header.Name, tarError(err))
		}
	}
	if m != nil && m.zeros < 512 {
		return fmt.Errorf("%w: the archive has no end", ErrFormat)
	}
	// A pipe wants to be read, and a digest is one of all bytes.
	_, err := io.Copy(io.Discard, r)
	return err
}

func tarError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, tar.ErrInsecurePath) {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return err
}

func (b *builder) addTar(header *tar.Header, content io.Reader, layer bool) error {
	if header.Typeflag == tar.TypeXGlobalHeader {
		return b.count(nil, 0)
	}
	parts, err := splitPath(header.Name)
	if err != nil {
		return err
	}
	if layer && len(parts) > 0 && strings.HasPrefix(parts[len(parts)-1], whiteout) {
		return b.whiteout(parts)
	}
	if header.Typeflag == tar.TypeLink {
		return b.addLink(parts, header.Linkname)
	}
	i, err := tarInode(header)
	if err != nil {
		return err
	}
	return b.add(parts, i, tarXattrs(header), content)
}

func (b *builder) addLink(parts []string, target string) error {
	to, err := splitPath(target)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return fmt.Errorf("%w: the root is a hard link", ErrFormat)
	}
	if err := b.count(parts, 0); err != nil {
		return err
	}
	return b.tree.link(parts, to)
}

// tarTypes are the types of entries that become files, with the mode bits of their types.
var tarTypes = map[byte]uint16{
	tar.TypeReg:       unix.S_IFREG,
	tar.TypeCont:      unix.S_IFREG,
	tar.TypeGNUSparse: unix.S_IFREG,
	tar.TypeSymlink:   unix.S_IFLNK,
	tar.TypeChar:      unix.S_IFCHR,
	tar.TypeBlock:     unix.S_IFBLK,
	tar.TypeDir:       unix.S_IFDIR,
	tar.TypeFifo:      unix.S_IFIFO,
}

func tarInode(h *tar.Header) (*inode, error) {
	format, ok := tarTypes[h.Typeflag]
	if !ok {
		return nil, fmt.Errorf("%w: entry of type %q", ErrFormat, h.Typeflag)
	}
	if !isID(h.Uid) || !isID(h.Gid) {
		return nil, fmt.Errorf("%w: owner %d:%d", ErrFormat, h.Uid, h.Gid)
	}
	i := &inode{
		mode: format | uint16(h.Mode&0o7777), uid: uint32(h.Uid), gid: uint32(h.Gid), links: 1,
		mtime: h.ModTime.Unix(), nsec: uint32(h.ModTime.Nanosecond()),
	}
	switch format {
	case unix.S_IFREG:
		i.size = h.Size
	case unix.S_IFLNK:
		i.target = h.Linkname
	case unix.S_IFDIR:
		i.children = map[string]child{}
	case unix.S_IFCHR, unix.S_IFBLK:
		if h.Devmajor < 0 || h.Devmajor >= 1<<12 || h.Devminor < 0 || h.Devminor >= 1<<20 {
			return nil, fmt.Errorf("%w: device %d:%d", ErrFormat, h.Devmajor, h.Devminor)
		}
		i.rdev = deviceNumber(uint32(h.Devmajor), uint32(h.Devminor))
	}
	return i, nil
}

// isID says whether id is a user or group; the largest number means none.
func isID(id int) bool { return id >= 0 && id < 1<<32-1 }

// deviceNumber is the kernel's new_encode_dev.
func deviceNumber(major, minor uint32) uint32 { return minor&0xff | major<<8 | minor>>8<<20 }

func tarXattrs(h *tar.Header) map[string]string {
	var xattrs map[string]string
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, xattrRecord); ok {
			if xattrs == nil {
				xattrs = map[string]string{}
			}
			xattrs[name] = value
		}
	}
	return xattrs
}

const (
	whiteout = ".wh."
	// opaqueMarker hides everything lower layers have in its directory. Other names
	// that begin with two of the prefixes are the bookkeeping of aufs.
	opaqueMarker = ".wh..wh..opq"
	markerPrefix = ".wh..wh."
)

// whiteout applies the marker that parts name.
func (b *builder) whiteout(parts []string) error {
	if err := b.count(parts, 0); err != nil {
		return err
	}
	dir, marker := parts[:len(parts)-1], parts[len(parts)-1]
	switch {
	case marker == opaqueMarker:
		return b.tree.hideBelow(dir)
	case strings.HasPrefix(marker, markerPrefix):
		return nil
	}
	name := strings.TrimPrefix(marker, whiteout)
	if name == "" || name != path.Base(name) || name == "." || name == ".." {
		return fmt.Errorf("%w: whiteout of nothing", ErrFormat)
	}
	return b.tree.hide(append(dir[:len(dir):len(dir)], name))
}
