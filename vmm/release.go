package vmm

import (
	"context"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/devices/virtio/balloon"
)

// release forgets what is in pages that the guest gave back, sorted and apart.
// From then on they are zeros, here and in the next capture.
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
		errs = append(errs, m.releaseRun(run{start, start + int64(len(p))}))
	}
	return errors.Join(errs...)
}

func (m *memory) releaseRun(r run) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	if m.table.Maps(r.start, r.end-r.start) {
		err = m.punch(r)
	} else {
		err = unix.Madvise(m.ram[r.start:r.end], unix.MADV_DONTNEED)
	}
	if err != nil {
		return fmt.Errorf("vmm: release %#x+%#x: %w", r.start, r.end-r.start, err)
	}
	m.released = union(m.released, []run{r})
	return nil
}

// punch maps zeros over a range. The caller holds mu.
func (m *memory) punch(r run) error {
	if err := mappings.resize(&m.mappings, m.mappings+2); err != nil {
		return err
	}
	if err := mapZeros(m.ram[r.start:r.end]); err != nil {
		return err
	}
	m.holes = true
	_ = unix.Madvise(m.ram[r.start:r.end], unix.MADV_NOHUGEPAGE) // see useSmallPages
	if m.tracker != nil {
		return m.tracker.register(r)
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
	if bytes < 0 || pages > math.MaxUint32 {
		return fmt.Errorf("vmm: balloon: %w: %d bytes", ErrConfig, bytes)
	}
	b := vm.board.Load().balloon
	b.SetTarget(uint32(pages))
	if err := b.Wait(ctx); err != nil {
		return vm.because(fmt.Errorf("vmm: balloon: %w", err))
	}
	return nil
}
