package vmm

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/devices/virtio/balloon"
)

// maxHoles bounds the places where zeros are mapped over one machine's layers.
// A guest that scatters what it gives back must not use up the mappings of the
// whole process.
const maxHoles = 256

// release forgets what is in pages that the guest gave back, sorted and apart.
// Where it had anything of its own they are zeros from then on, here and in the
// next capture; where it had not, there is nothing to be gained.
//
// Dropping the pages alone would bring back the bytes of the layer below; so
// where there is a layer, fresh zeros are mapped over it. That takes a mapping
// or two, and is not done when those run short: the pages keep what they have.
func (m *memory) release(ranges []balloon.Range) error {
	var errs []error
	for _, r := range ranges {
		p, err := m.Slice(r.GPA, r.Size)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		start := int64(hostAddr(p) - hostAddr(m.ram))
		if err := m.releaseRun(run{start, start + int64(len(p))}); err != nil {
			errs = append(errs, fmt.Errorf("vmm: release %#x+%#x: %w", r.GPA, r.Size, err))
		}
	}
	return errors.Join(errs...)
}

func (m *memory) releaseRun(r run) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if private, err := privatePages(m.ram[r.start:r.end]); err != nil || len(private) == 0 {
		return err
	}
	drop, err := m.punch(r)
	for _, r := range drop {
		if err := unix.Madvise(m.ram[r.start:r.end], unix.MADV_DONTNEED); err != nil {
			return err
		}
	}
	m.released = union(m.released, drop)
	return err
}

// punch sees to it that no layer shows through where pages of a range are
// dropped, and returns where it has. The caller holds mu.
func (m *memory) punch(r run) (drop []run, err error) {
	drop = []run{r}
	for _, part := range lacking(drop, m.holes) {
		if !m.table.Maps(part.start, part.end-part.start) {
			continue
		}
		if err = m.punchHole(part); err != nil {
			drop = lacking(drop, []run{part})
		}
	}
	return drop, err
}

// punchHole maps zeros over a range.
func (m *memory) punchHole(r run) error {
	holes := union(m.holes, []run{r})
	if len(holes) > maxHoles {
		return fmt.Errorf("%w: more than %d holes in the layers of one machine", ErrTooMany, maxHoles)
	}
	if err := mappings.resize(&m.mappings, mappingsOf(m.table)+2*int64(len(holes))); err != nil {
		return err
	}
	if err := mapZeros(m.ram[r.start:r.end]); err != nil {
		return err
	}
	m.holes = holes
	_ = unix.Madvise(m.ram[r.start:r.end], unix.MADV_NOHUGEPAGE) // see useSmallPages
	if m.tracker != nil && m.tracker.register(r) != nil {
		m.tracker.close() // captures do without, see trackWrites
		m.tracker = nil
	}
	return nil
}

// SetBalloon asks the guest to give back bytes of memory, rounded down to
// pages, and keep off them until told otherwise; 0 gives it all back. It
// returns when the guest's driver has done so, or with the error of ctx: a
// guest that is short of memory gives back less. Pages that nobody in the
// guest uses come back without being asked for.
func (vm *VM) SetBalloon(ctx context.Context, bytes int64) error {
	pages := bytes / pageSize
	if bytes < 0 || bytes > vm.cfg.Memory {
		return fmt.Errorf("vmm: balloon: %w: %d bytes of %d", ErrConfig, bytes, vm.cfg.Memory)
	}
	b := vm.board.Load().balloon
	b.SetTarget(uint32(pages))
	if err := b.Wait(ctx); err != nil {
		return vm.because(fmt.Errorf("vmm: balloon: %w", err))
	}
	return nil
}
