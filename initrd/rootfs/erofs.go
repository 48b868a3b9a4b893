package rootfs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"golang.org/x/sys/unix"
)

// The on-disk format is described by the kernel's Documentation/filesystems/erofs.rst
// and fs/erofs/erofs_fs.h. The images are of the plainest kind, which every kernel with
// EROFS reads: nothing compressed, extended inodes, no shared attributes.

const (
	superOffset = 1024
	superMagic  = 0xe0f5e1e2
	// compatChecksum says that the superblock has a checksum, and compatMtime that
	// times are of modification.
	compatChecksum = 0x1
	compatMtime    = 0x2
	blockBits      = 12

	formatExtended = 1
	formatPlain    = 0 << 1
	formatInline   = 2 << 1
)

var le = binary.LittleEndian

// finish writes the metadata of the image and returns the number of inodes. The tree is
// of no use afterwards.
func (b *builder) finish() (int, error) {
	inodes, size := layout(b.tree.root)
	for _, i := range inodes {
		if err := b.writeBlocks(i); err != nil {
			return 0, err
		}
	}
	if err := b.image.flush(); err != nil {
		return 0, err
	}
	start := b.image.end()
	end := start + (size+blockSize-1)/blockSize
	if end > b.image.limit {
		return 0, fmt.Errorf("%w: the image has more than %d blocks", ErrLimit, b.image.limit)
	}
	if err := b.writeInodes(inodes, start*blockSize); err != nil {
		return 0, err
	}
	if err := b.image.f.Truncate(end * blockSize); err != nil {
		return 0, err
	}
	return len(inodes), b.writeSuper(len(inodes), start, end)
}

// writeBlocks writes what directories and links have in blocks of their own.
func (b *builder) writeBlocks(i *inode) (err error) {
	var data []byte
	switch {
	case i.is(unix.S_IFDIR):
		data = i.dirents()
	case i.is(unix.S_IFLNK):
		data = []byte(i.target)
	}
	data = data[:max(0, len(data)-i.place.inline)]
	if len(data) > 0 {
		i.block, err = b.image.write(bytes.NewReader(data), int64(len(data)))
	}
	return err
}

func (b *builder) writeInodes(inodes []*inode, start int64) error {
	w := bufio.NewWriterSize(io.NewOffsetWriter(b.image.f, start), bufferSize)
	at := int64(0)
	var record []byte
	for number, i := range inodes {
		record = append(record[:0], zeroBlock[:i.place.offset-at]...)
		record = i.append(record, uint32(number+1))
		if _, err := w.Write(record); err != nil {
			return err
		}
		at += int64(len(record))
	}
	return w.Flush()
}

// append appends the inode and what is stored behind it. The serial is what 32-bit
// programs see as its number.
func (i *inode) append(b []byte, serial uint32) []byte {
	format := uint16(formatExtended | formatPlain)
	if i.place.inline > 0 {
		format = formatExtended | formatInline
	}
	count := 0 // of attributes: in units of four bytes, with the header as one
	if i.place.xattrs > 0 {
		count = (i.place.xattrs-xattrHeaderSize)/4 + 1
	}
	union := i.block
	if i.is(unix.S_IFCHR) || i.is(unix.S_IFBLK) {
		union = i.rdev
	}
	b = le.AppendUint16(b, format)
	b = le.AppendUint16(b, uint16(count))
	b = le.AppendUint16(b, i.mode)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, uint64(i.size))
	b = le.AppendUint32(b, union)
	b = le.AppendUint32(b, serial)
	b = le.AppendUint32(b, i.uid)
	b = le.AppendUint32(b, i.gid)
	b = le.AppendUint64(b, uint64(i.mtime))
	b = le.AppendUint32(b, i.nsec)
	b = le.AppendUint32(b, i.links)
	b = append(b, make([]byte, 16)...)
	b = appendXattrs(b, i.xattrs)
	switch {
	case i.place.inline == 0:
	case i.is(unix.S_IFDIR):
		data := i.dirents()
		b = append(b, data[len(data)-i.place.inline:]...)
	default:
		b = append(b, i.target...)
	}
	return b
}

func appendXattrs(b []byte, list []xattr) []byte {
	if len(list) == 0 {
		return b
	}
	b = append(b, make([]byte, xattrHeaderSize)...)
	for _, x := range list {
		b = append(b, uint8(len(x.name)), x.prefix)
		b = le.AppendUint16(b, uint16(len(x.value)))
		b = append(b, x.name...)
		b = append(b, x.value...)
		// The sizes of inode and header are multiples of four.
		b = append(b, make([]byte, -(xattrEntrySize+len(x.name)+len(x.value))&3)...)
	}
	return b
}

// dirents returns the data of a directory.
func (i *inode) dirents() []byte {
	data := make([]byte, 0, i.size)
	for names := i.place.names; len(names) > 0; {
		n, _ := direntBlock(names)
		data = i.appendDirents(data, names[:n])
		if names = names[n:]; len(names) > 0 {
			data = append(data, make([]byte, -len(data)&(blockSize-1))...)
		}
	}
	return data
}

// appendDirents appends one block of a directory: the entries, then their names.
func (i *inode) appendDirents(data []byte, names []string) []byte {
	nameAt := len(names) * direntSize
	for _, name := range names {
		file := i.entry(name)
		data = le.AppendUint64(data, file.number())
		data = le.AppendUint16(data, uint16(nameAt))
		data = append(data, direntType(file), 0)
		nameAt += len(name)
	}
	for _, name := range names {
		data = append(data, name...)
	}
	return data
}

// entry returns the file with a name in the directory i.
func (i *inode) entry(name string) *inode {
	switch name {
	case ".":
		return i
	case "..":
		return i.place.parent
	}
	return i.children[name].inode
}

func direntType(i *inode) byte {
	switch i.mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 1
	case unix.S_IFDIR:
		return 2
	case unix.S_IFCHR:
		return 3
	case unix.S_IFBLK:
		return 4
	case unix.S_IFIFO:
		return 5
	case unix.S_IFSOCK:
		return 6
	default:
		return 7 // a symbolic link
	}
}

// writeSuper writes the first block, in which the superblock is.
func (b *builder) writeSuper(inodes int, start, end int64) error {
	s := make([]byte, blockSize-superOffset)
	le.PutUint32(s[0:], superMagic)
	le.PutUint32(s[8:], compatChecksum|compatMtime)
	s[12] = blockBits
	le.PutUint16(s[14:], uint16(b.tree.root.number()))
	le.PutUint64(s[16:], uint64(inodes))
	le.PutUint32(s[36:], uint32(end))
	le.PutUint32(s[40:], uint32(start))
	copy(s[48:], b.uuid[:])
	// The kernel's CRC-32C is not inverted at its end; Go's is.
	le.PutUint32(s[4:], ^crc32.Checksum(s, crc32.MakeTable(crc32.Castagnoli)))
	_, err := b.image.f.WriteAt(s, superOffset)
	return err
}
