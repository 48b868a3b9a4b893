package vmm

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/forkvm/forkvm/snapshot"
)

// ErrTooMany is wrapped by the error of a start or fork for which the process
// has no room left: memory mappings or threads. The Go runtime ends a process
// that runs out of either, so forkvm stops before.
var ErrTooMany = errors.New("too many machines in one process")

// budget is a number of things that all machines of the process share.
type budget struct {
	what  string
	limit int64
	used  atomic.Int64
}

var (
	mappings = &budget{what: "memory mappings (vm.max_map_count)", limit: maxMapCount() / 4 * 3}
	threads  = &budget{what: "vCPU threads", limit: 8000} // of 10,000 that the Go runtime allows
)

// maxMapCount is how many mappings the kernel allows a process.
func maxMapCount() int64 {
	const usual = 65530
	b, err := os.ReadFile("/proc/sys/vm/max_map_count")
	if err != nil {
		return usual
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n <= 0 {
		return usual
	}
	return n
}

// mappingsOf is how many mappings a table's memory takes at most: one for each
// extent and one for the zeros before it.
func mappingsOf(table *snapshot.Table) int64 { return 2*int64(len(table.Extents())) + 1 }

// resize changes a share of the budget to n. On an error it is as it was.
func (b *budget) resize(share *int64, n int64) error {
	more := n - *share
	if used := b.used.Add(more); more > 0 && used > b.limit {
		b.used.Add(-more)
		return fmt.Errorf("vmm: %w: %d %s in use of %d, %d more needed", ErrTooMany, used-more, b.what, b.limit, more)
	}
	*share = n
	return nil
}

// room is how much of the budget is left.
func (b *budget) room() int64 { return b.limit - b.used.Load() }
