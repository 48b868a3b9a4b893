package vmm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/snapshot"
)

// ErrNotForked is returned for the reset of a machine that was booted.
var ErrNotForked = errors.New("the machine was booted and not started from an image")

// Reset puts a machine back to where it was forked or restored, in place: what
// it wrote since is forgotten, every connection into it is cut, and it goes on
// from there as a new child would, with a new identity that its agent has
// confirmed when Reset returns. A paused machine runs again. Images and forks
// made of it meanwhile are not touched.
//
// It costs less than a new child: nothing is built and nothing closed. If it
// fails, the machine is of no use and must be closed.
func (vm *VM) Reset(ctx context.Context) error {
	begin := time.Now()
	if err := vm.takeTurn(ctx); err != nil {
		return fmt.Errorf("vmm: reset: %w", err)
	}
	defer vm.turn.give()
	if vm.origin == nil {
		return fmt.Errorf("vmm: reset: %w", ErrNotForked)
	}
	err := vm.goOn(ctx, func(lead *vcpu) error {
		if !vm.paused {
			vm.halt(lead)
		}
		vm.paused = false
		vm.board.Load().close()
		vm.console.clear()
		vm.begin = begin
		vm.time(func(t *Timings) { *t = Timings{} })
		lead.first = vm.firstExit
		vm.renewDisks()
		return vm.mem.reset()
	})
	if err != nil {
		return fmt.Errorf("vmm: reset: %w", err)
	}
	return nil
}

// Forgetting a clean page costs it a read fault; a system call more costs
// about as much as some of those.
const forgetGap = 8 // pages

// reset brings back what was mapped at birth. The machine stands still.
func (m *memory) reset() error {
	m.settle()
	private, err := privatePages(m.ram)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range coalesce(private, forgetGap, len(private)) {
		if err := unix.Madvise(m.ram[r.start:r.end], unix.MADV_DONTNEED); err != nil {
			return fmt.Errorf("vmm: forget written pages: %w", err)
		}
		if m.tracker != nil {
			if err := m.tracker.forget(r); err != nil {
				return err
			}
		}
	}
	if m.table != m.birth || len(m.holes) > 0 {
		if err := m.remapBirth(); err != nil {
			return err
		}
	}
	m.base.Release()
	m.base = m.birth.Retain()
	m.pending, m.released = nil, nil
	return nil
}

// remapBirth undoes remaps and fills holes.
func (m *memory) remapBirth() error {
	if err := mappings.resize(&m.mappings, mappingsOf(m.birth)); err != nil {
		return err
	}
	for _, gap := range lacking([]run{{0, int64(len(m.ram))}}, runsOf(m.birth)) {
		if err := mapZeros(m.ram[gap.start:gap.end]); err != nil {
			return fmt.Errorf("vmm: map zeros over guest memory: %w", err)
		}
	}
	for _, e := range m.birth.Extents() {
		if err := m.overlay(e); err != nil {
			return err
		}
	}
	m.useSmallPages()
	m.table.Release()
	m.table, m.holes = m.birth.Retain(), nil
	if m.tracker != nil {
		return m.tracker.register(run{0, int64(len(m.ram))})
	}
	return nil
}

// runsOf is where a table has layers.
func runsOf(table *snapshot.Table) []run {
	var runs []run
	for _, e := range table.Extents() {
		runs = appendRun(runs, run{e.Start, e.End()})
	}
	return runs
}
