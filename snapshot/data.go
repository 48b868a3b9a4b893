package snapshot

import (
	"math"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Range is a range of bytes, [Start, End), of whole pages.
type Range struct{ Start, End int64 }

// maxDataRanges bounds what is known of where a layer has holes. Past so many
// ranges the rest counts as data.
const maxDataRanges = 1 << 16

// Inode tells files of this host apart, as long as they exist or are open.
type Inode struct{ Device, Number uint64 }

// looked is what was found out about a layer's file.
type looked struct {
	inodeOnce sync.Once
	inode     Inode
	dataOnce  sync.Once
	data      []Range
}

// unknown counts layers whose inode cannot be found out.
var unknown atomic.Uint64

// Inode is the file's. Layers with the same are the same bytes, which the host
// has in memory once: a store that was asked twice may have opened a file
// twice. The caller holds a reference.
func (l *Layer) Inode() Inode {
	l.looked.inodeOnce.Do(func() {
		var st unix.Stat_t
		if err := unix.Fstat(l.FD(), &st); err != nil {
			l.looked.inode = Inode{math.MaxUint64, unknown.Add(1)} // like no other
			return
		}
		l.looked.inode = Inode{st.Dev, st.Ino}
	})
	return l.looked.inode
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
