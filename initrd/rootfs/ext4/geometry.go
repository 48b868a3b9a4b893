package ext4

const (
	blockSize      = 4096
	groupBlocks    = 8 * blockSize // as many as a block of bitmap has bits
	descriptorSize = 64
	inodeSize      = 256
	inodesPerBlock = blockSize / inodeSize

	// largeDisk is from where on a file is expected to have 16 KiB, as mke2fs does;
	// smaller disks have an inode for every 4 KiB.
	largeDisk      = 512 << 20 / blockSize
	blocksPerInode = 4
)

// geometry says where everything is. Numbers are of blocks.
type geometry struct {
	blocks         int64
	groups         int64
	inodesPerGroup int64
	tableBlocks    int64 // of inodes, in each group
	gdtBlocks      int64 // of group descriptors, at each superblock
	journalBlocks  int64
}

func newGeometry(blocks int64) geometry {
	g := geometry{blocks: blocks, inodesPerGroup: groupBlocks, journalBlocks: journalSize(blocks)}
	if blocks >= largeDisk {
		g.inodesPerGroup /= blocksPerInode
	}
	if blocks < groupBlocks {
		g.inodesPerGroup = blocks / inodesPerBlock * inodesPerBlock
	}
	g.tableBlocks = g.inodesPerGroup / inodesPerBlock
	g.setGroups()
	// A last group without room for its own metadata, and some, is left out.
	if last := g.groups - 1; last > 0 && g.groupSize(last) < g.overhead(last)+64 {
		g.blocks = last * groupBlocks
		g.setGroups()
	}
	return g
}

func (g *geometry) setGroups() {
	g.groups = (g.blocks + groupBlocks - 1) / groupBlocks
	g.gdtBlocks = (g.groups*descriptorSize + blockSize - 1) / blockSize
}

// journalSize is small: a journal is written round and round, and so becomes part of
// what each fork of a machine has written.
func journalSize(blocks int64) int64 {
	switch mib := blocks >> 8; {
	case mib < 256:
		return 1024 // 4 MiB, the least the kernel takes
	case mib < 16<<10:
		return 4096
	default:
		return 16384
	}
}

func (g *geometry) start(group int64) int64 { return group * groupBlocks }

// groupSize is the number of blocks of a group.
func (g *geometry) groupSize(group int64) int64 { return min(groupBlocks, g.blocks-g.start(group)) }

// hasSuper says whether a group has a copy of superblock and descriptors: 0, 1, and the
// powers of 3, 5 and 7 (the sparse_super feature).
func hasSuper(group int64) bool {
	if group <= 1 {
		return true
	}
	for _, base := range []int64{3, 5, 7} {
		n := base
		for n < group {
			n *= base
		}
		if n == group {
			return true
		}
	}
	return false
}

// blockBitmap, inodeBitmap and table say where these are in a group.
func (g *geometry) blockBitmap(group int64) int64 {
	if hasSuper(group) {
		return g.start(group) + 1 + g.gdtBlocks
	}
	return g.start(group)
}

func (g *geometry) inodeBitmap(group int64) int64 { return g.blockBitmap(group) + 1 }
func (g *geometry) table(group int64) int64       { return g.blockBitmap(group) + 2 }

// overhead is the number of blocks at the start of a group that hold its metadata.
func (g *geometry) overhead(group int64) int64 {
	return g.table(group) + g.tableBlocks - g.start(group)
}
