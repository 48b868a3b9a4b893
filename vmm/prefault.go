package vmm

import (
	"sync"

	"golang.org/x/sys/unix"
)

// footprint is which pages a child writes until its first command has ended. It
// is much the same for every child of a line of forks, since all go on from
// nearly the same state; so where [Config] Prefault asks for it, it is recorded
// now and then, and the next children get copies of these pages while they
// start.
//
// What is prefaulted has no effect on what a machine computes. A wrong record
// costs memory and time, so it is bounded.
type footprint struct {
	mu      sync.Mutex
	written []run // guarded by mu
	starts  int   // guarded by mu: since it was recorded
}

// newFootprint is nil for a guest that does without: one that was not asked
// for it, or a bare one, of which nobody knows when it has come up.
func newFootprint(cfg Config) *footprint {
	if cfg.Bare || !cfg.Prefault {
		return nil
	}
	return new(footprint)
}

const (
	maxFootprint    = 16384 // pages of a record worth keeping
	footprintStarts = 64    // after which a new one is taken
)

// get returns the record for one more start.
func (f *footprint) get() []run {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.starts++
	return f.written
}

// wanted tells whether a new record should be taken, and has nobody else told
// so for a while.
func (f *footprint) wanted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.written != nil && f.starts < footprintStarts {
		return false
	}
	f.starts = 0
	return true
}

func (f *footprint) set(written []run) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written = written
}

// recordFootprint takes the record of a child whose first command has ended.
func (vm *VM) recordFootprint() {
	// What a machine wrote since it was booted is no guide for a child.
	if vm.footprint == nil || vm.origin == nil || vm.recorded.Swap(true) || !vm.footprint.wanted() {
		return
	}
	written, err := vm.mem.footprint()
	if err == nil && pagesIn(written) <= maxFootprint {
		vm.footprint.set(written)
	}
}

// footprint finds the pages that are private. The memory must be mapped: not
// once the machine is closed.
func (m *memory) footprint() ([]run, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ram == nil {
		return nil, errNotRAM
	}
	return privatePages(m.ram)
}

// prefault gives a child the pages of a footprint, while it starts, on another
// CPU if there is one. Whatever is refused the guest will fault in. wait
// returns when nothing touches the child's memory any more.
func (vm *VM) prefault() (wait func()) {
	if vm.footprint == nil {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		populate(vm.mem.ram, vm.footprint.get())
	}()
	return func() { <-done }
}

// populate copies the pages that are to be private.
func populate(ram []byte, runs []run) {
	for _, r := range runs {
		if unix.Madvise(ram[r.start:r.end], unix.MADV_POPULATE_WRITE) != nil {
			return
		}
	}
}
