package rootfs

import (
	"slices"

	"golang.org/x/sys/unix"
)

const (
	inodeSize       = 64 // of an extended inode
	slot            = 32 // inodes are numbered by the slots of this size before them
	xattrHeaderSize = 12
	xattrEntrySize  = 4
	direntSize      = 12
	// maxInline bounds what is stored behind its inode instead of in blocks of its own:
	// the end of a directory, the target of a link. Half a block always finds a place.
	maxInline = blockSize / 2
)

// place is where an inode and what belongs to it are in the image.
type place struct {
	offset int64    // from the start of the metadata
	xattrs int      // bytes of attributes behind the inode
	inline int      // bytes of data behind those
	names  []string // of a directory, in order, with . and ..
	parent *inode   // of a directory
}

// number is the inode number, which says where the inode is.
func (i *inode) number() uint64 { return uint64(i.place.offset / slot) }

// layout gives every inode its place. It returns them in the order of their places, and
// the size of all.
func layout(root *inode) ([]*inode, int64) {
	// Number 0 would be legal and is avoided: programs that read directories take
	// it for a deleted entry.
	l := layouter{end: slot}
	l.directory(root, root)
	return l.inodes, l.end
}

type layouter struct {
	inodes []*inode
	end    int64
}

func (l *layouter) directory(i, parent *inode) {
	names := make([]string, 0, len(i.children)+2)
	names = append(names, ".", "..")
	for name := range i.children {
		names = append(names, name)
	}
	slices.Sort(names) // as bytes, which is how the kernel searches
	i.links = 2
	i.size = direntBytes(names)
	l.put(i, &place{names: names, parent: parent, inline: inlineBytes(i.size % blockSize)})
	for _, name := range names {
		if name == "." || name == ".." {
			continue
		}
		switch c := i.children[name]; {
		case c.is(unix.S_IFDIR):
			i.links++
			l.directory(c.inode, i)
		case c.place != nil: // another name of a file that has its place
		case c.is(unix.S_IFLNK):
			c.size = int64(len(c.target))
			l.put(c.inode, &place{inline: inlineBytes(c.size)})
		default:
			l.put(c.inode, &place{})
		}
	}
}

// inlineBytes is how many of the last size bytes of something go behind its inode.
func inlineBytes(size int64) int {
	if size > maxInline {
		return 0
	}
	return int(size)
}

// put places i at the next offset where neither the inode nor the data behind its
// attributes crosses the end of a block.
func (l *layouter) put(i *inode, p *place) {
	p.xattrs = xattrBytes(i.xattrs)
	p.offset = (l.end + slot - 1) / slot * slot
	for crosses(p.offset, inodeSize) || crosses(p.offset+inodeSize+int64(p.xattrs), p.inline) {
		p.offset += slot
	}
	l.end = p.offset + inodeSize + int64(p.xattrs) + int64(p.inline)
	l.inodes = append(l.inodes, i)
	i.place = p
}

func crosses(offset int64, size int) bool {
	return size > 0 && offset/blockSize != (offset+int64(size)-1)/blockSize
}

func xattrBytes(list []xattr) int {
	if len(list) == 0 {
		return 0
	}
	size := xattrHeaderSize
	for _, x := range list {
		size += (xattrEntrySize + len(x.name) + len(x.value) + 3) &^ 3
	}
	return size
}

// direntBytes is the size of a directory: whole blocks and what the last one uses.
func direntBytes(names []string) int64 {
	size := int64(0)
	for len(names) > 0 {
		n, used := direntBlock(names)
		if names = names[n:]; len(names) > 0 {
			used = blockSize
		}
		size += int64(used)
	}
	return size
}

// direntBlock says how many of the first names fit into one block of a directory, and
// how many bytes of it they use.
func direntBlock(names []string) (n, used int) {
	for ; n < len(names); n++ {
		size := direntSize + len(names[n])
		if used+size > blockSize {
			break
		}
		used += size
	}
	return n, used
}
