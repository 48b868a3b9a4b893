package snapshot

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Range is a range of bytes, [Start, End), of whole pages.
type Range struct{ Start, End int64 }

// maxDataRanges bounds what is known of where a layer has holes. Past so many
// ranges the rest counts as data.
const maxDataRanges = 1 << 16

// dataRanges is what Data has found.
type dataRanges struct {
	once   sync.Once
	ranges []Range
}

// Data is where the layer has bytes, in order and apart; what is between is
// zeros that take no memory and no space. It is looked up once: of zeros that
// only become pages because somebody read them through a mapping it says nothing.
// The caller holds a reference, and must not change the slice.
func (l *Layer) Data() []Range {
	l.data.once.Do(func() { l.data.ranges = l.findData() })
	return l.data.ranges
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
