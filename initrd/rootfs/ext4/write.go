package ext4

import (
	"encoding/binary"
	"hash/crc32"
	"os"
)

const (
	rootInode      = 2
	journalInode   = 8
	firstFreeInode = 11
	lostFound      = "lost+found"

	groupInodesUnused = 0x1
	groupBlocksUnused = 0x2
	groupTableZeroed  = 0x4

	modeDirectory = 0o040000
	modeFile      = 0o100000
)

var (
	le         = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// checksum continues the CRC-32C crc, which in ext4 is not inverted at its end.
func checksum(crc uint32, b []byte) uint32 { return ^crc32.Update(^crc, castagnoli, b) }

// writer writes one file system.
type writer struct {
	f    *os.File
	size int64 // of the file, which may end behind the last group
	geometry
	opts Options
	time uint32
	seed uint32 // of all checksums but the superblock's
	// directories are those in the root, from inode firstFreeInode on. Each has one
	// block, behind the root's, which is the first after the metadata of group 0.
	directories []string
}

func newWriter(f *os.File, blocks int64, opts Options) *writer {
	return &writer{
		f: f, size: blocks * blockSize, geometry: newGeometry(blocks), opts: opts, time: uint32(opts.unixTime()),
		seed:        checksum(^uint32(0), opts.UUID[:]),
		directories: append([]string{lostFound}, opts.Directories...),
	}
}

// The blocks and inodes that are in use, all of them in group 0.
func (w *writer) rootBlock() int64    { return w.overhead(0) }
func (w *writer) journalBlock() int64 { return w.rootBlock() + 1 + int64(len(w.directories)) }
func (w *writer) usedBlocks() int64   { return w.journalBlock() + w.journalBlocks }
func (w *writer) usedInodes() int64   { return firstFreeInode - 1 + int64(len(w.directories)) }

func (w *writer) write() error {
	if err := w.f.Truncate(w.size); err != nil {
		return err
	}
	for _, part := range []func() error{w.writeInodes, w.writeDirectories, w.writeJournal, w.writeGroups} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) writeBlock(block int64, data []byte) error {
	_, err := w.f.WriteAt(data, block*blockSize)
	return err
}

// writeGroups writes the bitmaps in use, and superblock and descriptors to every place.
func (w *writer) writeGroups() error {
	descriptors := make([]byte, w.gdtBlocks*blockSize)
	for group := range w.groups {
		d, err := w.writeBitmaps(group)
		if err != nil {
			return err
		}
		copy(descriptors[group*descriptorSize:], d)
	}
	for group := range w.groups {
		if !hasSuper(group) {
			continue
		}
		at := w.start(group) * blockSize
		if group == 0 {
			at = 1024
		}
		if _, err := w.f.WriteAt(w.superblock(group), at); err != nil {
			return err
		}
		if err := w.writeBlock(w.start(group)+1, descriptors); err != nil {
			return err
		}
	}
	return nil
}

// writeBitmaps writes the bitmaps of a group, if anything says more than its descriptor,
// and returns the descriptor.
func (w *writer) writeBitmaps(group int64) ([]byte, error) {
	d := descriptor{
		blockBitmap: w.blockBitmap(group), inodeBitmap: w.inodeBitmap(group), table: w.table(group),
		freeBlocks: w.groupSize(group) - w.overhead(group), freeInodes: w.inodesPerGroup,
		unusedInodes: w.inodesPerGroup, flags: groupTableZeroed | groupInodesUnused,
	}
	used := w.overhead(group)
	switch group {
	case 0:
		used = w.usedBlocks()
		d.freeBlocks = w.groupSize(0) - used
		d.freeInodes -= w.usedInodes()
		d.unusedInodes = d.freeInodes
		d.directories = 1 + int64(len(w.directories))
		d.flags = groupTableZeroed
		bitmap := bits(w.usedInodes(), w.inodesPerGroup)
		d.inodeSum = checksum(w.seed, bitmap[:w.inodesPerGroup/8])
		if err := w.writeBlock(d.inodeBitmap, bitmap); err != nil {
			return nil, err
		}
	case w.groups - 1: // its end is in the bitmap
	default:
		d.flags |= groupBlocksUnused
		return d.encode(w.seed, group), nil
	}
	bitmap := bits(used, w.groupSize(group))
	d.blockSum = checksum(w.seed, bitmap)
	return d.encode(w.seed, group), w.writeBlock(d.blockBitmap, bitmap)
}

// bits returns a bitmap: the first used bits are set, and those from end on.
func bits(used, end int64) []byte {
	b := make([]byte, blockSize)
	set := func(from, to int64) {
		for i := from; i < to; i++ {
			b[i/8] |= 1 << (i % 8)
		}
	}
	set(0, used)
	set(end, 8*blockSize)
	return b
}

// descriptor is a group descriptor.
type descriptor struct {
	blockBitmap, inodeBitmap, table                   int64
	freeBlocks, freeInodes, unusedInodes, directories int64
	flags                                             uint16
	blockSum, inodeSum                                uint32
}

func (d *descriptor) encode(seed uint32, group int64) []byte {
	b := make([]byte, descriptorSize)
	split32 := func(low, high int, v int64) {
		le.PutUint32(b[low:], uint32(v))
		le.PutUint32(b[high:], uint32(v>>32))
	}
	split16 := func(low, high int, v uint32) {
		le.PutUint16(b[low:], uint16(v))
		le.PutUint16(b[high:], uint16(v>>16))
	}
	split32(0x00, 0x20, d.blockBitmap)
	split32(0x04, 0x24, d.inodeBitmap)
	split32(0x08, 0x28, d.table)
	split16(0x0c, 0x2c, uint32(d.freeBlocks))
	split16(0x0e, 0x2e, uint32(d.freeInodes))
	split16(0x10, 0x30, uint32(d.directories))
	le.PutUint16(b[0x12:], d.flags)
	split16(0x18, 0x38, d.blockSum)
	split16(0x1a, 0x3a, d.inodeSum)
	split16(0x1c, 0x32, uint32(d.unusedInodes))
	number := le.AppendUint32(nil, uint32(group))
	le.PutUint16(b[0x1e:], uint16(checksum(checksum(seed, number), b)))
	return b
}

// inode is what the inodes in use differ in.
type inode struct {
	number int64
	mode   uint16
	links  uint16
	block  int64 // of the first of its consecutive blocks
	blocks int64
}

// writeInodes writes the start of the first inode table: the reserved inodes, which but
// for root and journal are empty, and the directories.
func (w *writer) writeInodes() error {
	table := make([]byte, w.usedInodes()*inodeSize)
	for n := range w.usedInodes() {
		i := inode{number: n + 1}
		switch {
		case i.number == rootInode:
			i.mode, i.links = modeDirectory|0o755, uint16(2+len(w.directories))
			i.block, i.blocks = w.rootBlock(), 1
		case i.number == journalInode:
			i.mode, i.links = modeFile|0o600, 1
			i.block, i.blocks = w.journalBlock(), w.journalBlocks
		case i.number == firstFreeInode:
			i.mode, i.links = modeDirectory|0o700, 2
			i.block, i.blocks = w.rootBlock()+1, 1
		case i.number > firstFreeInode:
			i.mode, i.links = modeDirectory|0o755, 2
			i.block, i.blocks = w.rootBlock()+1+i.number-firstFreeInode, 1
		}
		copy(table[n*inodeSize:], w.encodeInode(i))
	}
	return w.writeBlock(w.table(0), table)
}

func (w *writer) encodeInode(i inode) []byte {
	b := make([]byte, inodeSize)
	le.PutUint16(b[0x80:], 32) // i_extra_isize
	if i.blocks > 0 {
		le.PutUint16(b[0x00:], i.mode)
		le.PutUint32(b[0x04:], uint32(i.blocks*blockSize)) // the journal is the largest, and below 4 GiB
		for _, at := range []int{0x08, 0x0c, 0x10, 0x90} { // access, change, modification, creation
			le.PutUint32(b[at:], w.time)
		}
		le.PutUint16(b[0x1a:], i.links)
		le.PutUint32(b[0x1c:], uint32(i.blocks*blockSize/512))
		le.PutUint32(b[0x20:], 0x80000) // extents
		copy(b[0x28:], extentTree(i))
	}
	number := le.AppendUint32(nil, uint32(i.number))
	sum := checksum(checksum(checksum(w.seed, number), make([]byte, 4)), b) // generation 0
	le.PutUint16(b[0x7c:], uint16(sum))
	le.PutUint16(b[0x82:], uint16(sum>>16))
	return b
}

// extentTree is the content of i_block: a tree of one extent.
func extentTree(i inode) []byte {
	b := make([]byte, 60)
	le.PutUint16(b[0:], 0xf30a)
	le.PutUint16(b[2:], 1) // entries
	le.PutUint16(b[4:], 4) // room
	le.PutUint16(b[16:], uint16(i.blocks))
	le.PutUint16(b[18:], uint16(i.block>>32))
	le.PutUint32(b[20:], uint32(i.block))
	return b
}

// dirent is a directory entry.
type dirent struct {
	inode int64
	name  string
}

func (w *writer) writeDirectories() error {
	root := []dirent{{rootInode, "."}, {rootInode, ".."}}
	for n, name := range w.directories {
		number := firstFreeInode + int64(n)
		root = append(root, dirent{number, name})
		block := w.encodeDirectory(number, []dirent{{number, "."}, {rootInode, ".."}})
		if err := w.writeBlock(w.rootBlock()+1+int64(n), block); err != nil {
			return err
		}
	}
	return w.writeBlock(w.rootBlock(), w.encodeDirectory(rootInode, root))
}

// encodeDirectory returns the only block of a directory. Its last 12 bytes look like
// an entry to those that do not know checksums.
func (w *writer) encodeDirectory(number int64, list []dirent) []byte {
	const tail = 12
	b := make([]byte, blockSize)
	at := 0
	for n, d := range list {
		length := (8 + len(d.name) + 3) &^ 3
		if n == len(list)-1 {
			length = blockSize - tail - at
		}
		le.PutUint32(b[at:], uint32(d.inode))
		le.PutUint16(b[at+4:], uint16(length))
		b[at+6] = uint8(len(d.name))
		b[at+7] = 2 // a directory
		copy(b[at+8:], d.name)
		at += length
	}
	le.PutUint16(b[at+4:], tail)
	b[at+7] = 0xde
	seed := checksum(checksum(w.seed, le.AppendUint32(nil, uint32(number))), make([]byte, 4))
	le.PutUint32(b[at+8:], checksum(seed, b[:at]))
	return b
}

// writeJournal writes the superblock of an empty journal (jbd2, big-endian).
func (w *writer) writeJournal() error {
	be := binary.BigEndian
	b := make([]byte, 1024)
	be.PutUint32(b[0x00:], 0xc03b3998)
	be.PutUint32(b[0x04:], 4) // superblock, version 2
	be.PutUint32(b[0x0c:], blockSize)
	be.PutUint32(b[0x10:], uint32(w.journalBlocks))
	be.PutUint32(b[0x14:], 1) // first block of the log
	be.PutUint32(b[0x18:], 1) // first commit
	copy(b[0x30:], w.opts.UUID[:])
	be.PutUint32(b[0x40:], 1) // file systems that use it
	return w.writeBlock(w.journalBlock(), b)
}
