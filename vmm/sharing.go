package vmm

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/forkvm/forkvm/snapshot"
)

// Sharing is what a machine takes of its host's memory and disks, and which
// pages of immutable layers it still has, at about one moment: [Sharing.With]
// tells what two machines have in common. It is immutable, holds no resources
// and is safe for concurrent use.
//
// A page is shared as long as the machine has not written it since it was
// started. A machine that was captured keeps what it had written, beside the copy
// that its children share: so these have more in common with each other than
// with it. Only where writes cannot be tracked, as on Linux before 6.7, has it
// that copy from then on.
//
// Memory that was never touched, and zeros that take none, are nobody's. Of a
// machine whose shared pages lie in more than 16384 pieces the longest of these
// count, so that all figures of what is shared are at most too small.
type Sharing struct {
	MemorySize   int64 // bytes that the guest sees
	MemoryOwn    int64 // bytes in memory that are the machine's alone
	MemoryShared int64 // bytes of layers that it has and others may have too
	DiskOwn      int64 // the same of all disks, see [DiskUsage]
	DiskShared   int64

	memory, disk pieces
}

// Common is what two machines have in common, in bytes: each page of a layer
// that both have, once.
type Common struct{ Memory, Disk int64 }

// With tells what the machine and another have in common.
func (s *Sharing) With(other *Sharing) Common {
	return Common{s.memory.common(&other.memory), s.disk.common(&other.disk)}
}

// Sharing looks up what the machine takes and shares. It does so while the
// machine runs, is captured, forked or reset, and does not wait for any of that.
// Nor does the guest wait for it, unless that gives memory back or is about to be
// captured or reset: then for the part that is being looked at, of 64 MiB. Of a
// machine that runs each part is exact at some moment of the call, of one that is
// paused the whole is. It fails with [ErrClosed] once the machine is closed.
func (vm *VM) Sharing(ctx context.Context) (*Sharing, error) {
	s := &Sharing{MemorySize: vm.cfg.Memory}
	err := vm.mem.shared(ctx, s)
	if err == nil {
		err = vm.disksShared(ctx, s)
	}
	if err != nil {
		return nil, fmt.Errorf("vmm: sharing: %w", err)
	}
	s.MemoryShared, s.DiskShared = s.memory.finish(), s.disk.finish()
	return s, nil
}

// sharingPart is how much memory is looked at at once. Meanwhile captures of
// the machine, and whoever maps something in the process, may have to wait.
const sharingPart = 64 << 20

// shared adds the memory to s.
func (m *memory) shared(ctx context.Context, s *Sharing) error {
	for at := int64(0); at < s.MemorySize; at += sharingPart {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := run{at, min(at+sharingPart, s.MemorySize)}
		private, hidden, table, err := m.look(part)
		if err != nil {
			return err
		}
		s.MemoryOwn += pagesIn(private) * pageSize
		s.memory.addTable(table, part, hidden)
		table.Release()
	}
	return nil
}

// look returns what of a part of the memory is private; what hides the layers,
// which is that and zeros; and, retained, the table of those.
func (m *memory) look(part run) (private, hidden []run, table *snapshot.Table, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ram == nil {
		return nil, nil, nil, ErrClosed
	}
	private, err = privatePages(m.ram[part.start:part.end])
	if err != nil {
		return nil, nil, nil, err
	}
	for i := range private {
		private[i].start += part.start
		private[i].end += part.start
	}
	return private, union(private, m.holes), m.table.Retain(), nil
}

// disksShared adds the disks to s.
func (vm *VM) disksShared(ctx context.Context, s *Sharing) error {
	vm.disksMu.RLock()
	defer vm.disksMu.RUnlock()
	if vm.closed {
		return ErrClosed
	}
	for _, d := range vm.disks.now {
		if err := ctx.Err(); err != nil {
			return err
		}
		own, _, err := d.Usage()
		if err == nil {
			err = d.Shared(func(e snapshot.Extent) bool {
				s.disk.add(e.Layer, run{e.Offset, e.Offset + e.Length})
				return true
			})
		}
		if err != nil {
			return err
		}
		s.DiskOwn += own
	}
	return nil
}

// maxPieces bounds the pieces in which something is shared, so that a guest
// that writes every other page costs no more than others. It is a variable for
// tests.
var maxPieces = 1 << 14

// pieces are what is had of layers, by offset in them.
type pieces struct {
	of map[snapshot.Inode][]run
	n  int // in all
}

// addTable adds what is in part of a table, less what is hidden, which are runs
// of the same space, and holes of the layers.
func (p *pieces) addTable(table *snapshot.Table, part run, hidden []run) {
	extents := table.Extents()
	first := sort.Search(len(extents), func(i int) bool { return extents[i].End() > part.start })
	for _, e := range extents[first:] {
		if e.Start >= part.end {
			return
		}
		for len(hidden) > 0 && hidden[0].end <= e.Start {
			hidden = hidden[1:]
		}
		shift := e.Offset - e.Start
		for _, r := range lacking([]run{{max(e.Start, part.start), min(e.End(), part.end)}}, hidden) {
			p.addData(e.Layer, run{r.start + shift, r.end + shift})
		}
	}
}

// addData adds what of a range of a layer is no hole.
func (p *pieces) addData(layer *snapshot.Layer, r run) {
	data := layer.Data()
	first := sort.Search(len(data), func(i int) bool { return data[i].End > r.start })
	for _, d := range data[first:] {
		if d.Start >= r.end {
			return
		}
		p.add(layer, run{max(d.Start, r.start), min(d.End, r.end)})
	}
}

func (p *pieces) add(layer *snapshot.Layer, r run) {
	if p.of == nil {
		p.of = map[snapshot.Inode][]run{}
	}
	file := layer.Inode()
	before := len(p.of[file])
	p.of[file] = appendRun(p.of[file], r)
	p.n += len(p.of[file]) - before
	if p.n > 2*maxPieces {
		p.trim()
	}
}

// trim keeps the longest pieces if they are too many.
func (p *pieces) trim() {
	if p.n <= maxPieces {
		return
	}
	lengths := make([]int64, 0, p.n)
	for _, runs := range p.of {
		for _, r := range runs {
			lengths = append(lengths, r.end-r.start)
		}
	}
	slices.Sort(lengths)
	shortest := lengths[len(lengths)-maxPieces]
	first, _ := slices.BinarySearch(lengths, shortest)
	drop := len(lengths) - maxPieces - first // of those that are just as long
	p.n = 0
	for file, runs := range p.of {
		runs = slices.DeleteFunc(runs, func(r run) bool {
			if r.end-r.start == shortest && drop > 0 {
				drop--
				return true
			}
			return r.end-r.start < shortest
		})
		p.of[file] = runs
		p.n += len(runs)
	}
}

// finish is called when all is added, and returns how many bytes that is. A
// page that is mapped twice is one.
func (p *pieces) finish() (bytes int64) {
	p.trim()
	for file, runs := range p.of {
		slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.start, b.start) })
		joined := runs[:0]
		for _, r := range runs {
			if n := len(joined); n > 0 && r.start <= joined[n-1].end {
				joined[n-1].end = max(joined[n-1].end, r.end)
				continue
			}
			joined = append(joined, r)
		}
		p.of[file] = joined
		bytes += pagesIn(joined) * pageSize
	}
	return bytes
}

// common is how many bytes are in both. Both are finished.
func (p *pieces) common(other *pieces) (bytes int64) {
	for file, runs := range p.of {
		bytes += overlap(runs, other.of[file])
	}
	return bytes
}

// overlap is how many bytes are in both; each is in order and apart.
func overlap(a, b []run) (bytes int64) {
	for len(a) > 0 && len(b) > 0 {
		if n := min(a[0].end, b[0].end) - max(a[0].start, b[0].start); n > 0 {
			bytes += n
		}
		if a[0].end < b[0].end {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return bytes
}
