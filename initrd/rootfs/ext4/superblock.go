package ext4

// The features, by their names in mke2fs(8) and ext4(5).
const (
	compatHasJournal = 0x4
	compatExtAttr    = 0x8
	compatDirIndex   = 0x20

	incompatFiletype = 0x2
	incompatExtents  = 0x40
	incompat64bit    = 0x80

	roSparseSuper  = 0x1
	roLargeFile    = 0x2
	roHugeFile     = 0x8
	roDirNlink     = 0x20
	roExtraIsize   = 0x40
	roMetadataCsum = 0x400
)

// superblock returns the superblock as it is stored in a group.
func (w *writer) superblock(group int64) []byte {
	b := make([]byte, 1024)
	put := func(at int, v int64) { le.PutUint32(b[at:], uint32(v)) }
	put16 := func(at int, v uint16) { le.PutUint16(b[at:], v) }

	put(0x00, w.inodesPerGroup*w.groups)
	put(0x04, w.blocks) // at most 2^28: the high halves stay zero
	put(0x0c, w.freeBlocks())
	put(0x10, w.inodesPerGroup*w.groups-w.usedInodes())
	put(0x18, 2) // block size: 1024 << 2
	put(0x1c, 2) // cluster size
	put(0x20, groupBlocks)
	put(0x24, groupBlocks)
	put(0x28, w.inodesPerGroup)
	put(0x30, int64(w.time)) // last written
	put16(0x36, 0xffff)      // no check after a number of mounts
	put16(0x38, 0xef53)
	put16(0x3a, 1)           // clean
	put16(0x3c, 1)           // on errors, continue
	put(0x40, int64(w.time)) // last checked
	put(0x4c, 1)             // dynamic inode sizes
	put(0x54, firstFreeInode)
	put16(0x58, inodeSize)
	put16(0x5a, uint16(group))
	put(0x5c, compatHasJournal|compatExtAttr|compatDirIndex)
	put(0x60, incompatFiletype|incompatExtents|incompat64bit)
	put(0x64, roSparseSuper|roLargeFile|roHugeFile|roDirNlink|roExtraIsize|roMetadataCsum)
	copy(b[0x68:0x78], w.opts.UUID[:])
	copy(b[0x78:0x88], w.opts.Label)
	put(0xe0, journalInode)
	copy(b[0xec:0xfc], w.opts.UUID[:]) // seed of the hashes of names
	b[0xfc] = 1                        // of which the default is half MD4
	b[0xfd] = 1                        // i_blocks of the journal are below
	put16(0xfe, descriptorSize)
	put(0x100, 0xc) // mount with user_xattr and acl
	put(0x108, int64(w.time))
	copy(b[0x10c:], extentTree(inode{block: w.journalBlock(), blocks: w.journalBlocks}))
	put(0x14c, w.journalBlocks*blockSize) // behind its high half, where directories have ACLs
	put16(0x15c, 32)                      // extra inode bytes, at least
	put16(0x15e, 32)                      // and wanted
	put(0x160, 1)                         // hashes are of signed characters
	b[0x175] = 1                          // checksums are CRC-32C
	put(0x3fc, int64(checksum(^uint32(0), b[:0x3fc])))
	return b
}

func (w *writer) freeBlocks() int64 {
	free := w.blocks + w.overhead(0) - w.usedBlocks()
	for group := range w.groups {
		free -= w.overhead(group)
	}
	return free
}
