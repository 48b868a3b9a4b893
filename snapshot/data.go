package snapshot

import (
	"math"
	"sync"

	"golang.org/x/sys/unix"
)

// Range is a range of bytes, [Start, End), of whole pages.
type Range struct{ Start, End int64 }

// maxDataRanges bounds what is known of where a layer has holes. Past so many
// ranges the rest counts as data.
const maxDataRanges = 1 << 16

// Inode tells files apart that are layers of this process, those that are no more
// included.
type Inode struct{ device, number, life uint64 }

// looked is what was found out about a layer's file.
type looked struct {
	inodeOnce sync.Once
	inode     Inode
	dataOnce  sync.Once
	data      []Range
}

// openInodes are those of layers that are open and were asked for theirs. A file
// system gives the number of a file that is gone to the next one, as often as not.
var openInodes = struct {
	mu    sync.Mutex
	lives uint64                 // guarded by mu: given so far
	uses  map[[2]uint64]inodeUse // guarded by mu: by device and number
}{uses: map[[2]uint64]inodeUse{}}

// inodeUse is which life of a number it is, and how many layers have it.
type inodeUse struct {
	life   uint64
	layers int
}

// Inode is the file's. Layers with the same are the same bytes, which the host
// has in memory once: a store that was asked twice may have opened a file
// twice. The caller holds a reference.
func (l *Layer) Inode() Inode {
	l.looked.inodeOnce.Do(func() { l.looked.inode = findInode(l.FD()) })
	return l.looked.inode
}

func findInode(fd int) Inode {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	openInodes.mu.Lock()
	defer openInodes.mu.Unlock()
	at := [2]uint64{st.Dev, st.Ino}
	use := openInodes.uses[at]
	if err != nil || use.layers == 0 {
		openInodes.lives++
		use.life = openInodes.lives
	}
	if err != nil {
		return Inode{math.MaxUint64, math.MaxUint64, use.life} // like no other
	}
	use.layers++
	openInodes.uses[at] = use
	return Inode{st.Dev, st.Ino, use.life}
}

// forget is called when the layer is about to be closed.
func (k *looked) forget() {
	if k.inode.life == 0 {
		return // nobody has asked
	}
	openInodes.mu.Lock()
	defer openInodes.mu.Unlock()
	at := [2]uint64{k.inode.device, k.inode.number}
	use := openInodes.uses[at]
	if use.layers--; use.layers > 0 {
		openInodes.uses[at] = use
	} else {
		delete(openInodes.uses, at)
	}
}

// Data is where the layer has bytes, in order and apart; what is between is
// zeros that take no memory and no space. It is looked up once: of zeros that
// only become pages because somebody read them through a mapping it says nothing.
// The caller holds a reference, and must not change the slice.
func (l *Layer) Data() []Range {
	l.looked.dataOnce.Do(func() { l.looked.data = l.findData() })
	return l.looked.data
}

func (l *Layer) findData() (found []Range) {
	for at := int64(0); at < l.size; {
		start, ok, err := seek(l.file, at, unix.SEEK_DATA)
		if err == nil && !ok {
			return found
		}
		end, ok, err2 := seek(l.file, max(start, at), unix.SEEK_HOLE)
		if err != nil || err2 != nil || !ok || len(found) == maxDataRanges-1 {
			return append(found, Range{at, l.size}) // nothing is known of it: as if it had no holes
		}
		// A file system's blocks may be smaller than pages, or larger.
		start = max(at, start/PageSize*PageSize)
		end = min((end+PageSize-1)/PageSize*PageSize, l.size)
		if start < end {
			found = append(found, Range{start, end})
		}
		at = max(end, at+PageSize)
	}
	return found
}
