package vmm

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
)

// footprint is which pages a child touches until its first command has ended.
// It is much the same for every child of a line of forks, since all go on from
// nearly the same state; so it is recorded now and then, and the next children
// get these pages before they ask for them. A page that is copied and mapped
// ahead costs less than half of what a fault of the guest does.
//
// What is prefaulted has no effect on what a machine computes. A wrong record
// costs memory and time, so it is bounded.
type footprint struct {
	mu      sync.Mutex
	written []run // guarded by mu: pages that were copied
	touched []run // guarded by mu: pages that were mapped at all
	starts  int   // guarded by mu: since it was recorded
}

// newFootprint is nil for a bare guest, of which nobody knows when it has come
// up.
func newFootprint(cfg Config) *footprint {
	if cfg.Bare {
		return nil
	}
	return new(footprint)
}

const (
	maxFootprint    = 16384 // pages of a record worth keeping
	footprintStarts = 64    // after which a new one is taken
)

// get returns the record for one more start.
func (f *footprint) get() (written, touched []run) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.starts++
	return f.written, f.touched
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

func (f *footprint) set(written, touched []run) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written, f.touched = written, touched
}

// recordFootprint takes the record of a child whose first command has ended.
func (vm *VM) recordFootprint() {
	if vm.footprint == nil || vm.recorded.Swap(true) || !vm.footprint.wanted() {
		return
	}
	written, touched, err := vm.mem.footprint()
	if err == nil && pagesIn(touched) <= maxFootprint {
		vm.footprint.set(written, touched)
	}
}

// footprint finds the pages that are private, and those present at all. It
// looks through /proc, for which the memory must be mapped: not once the
// machine is closed.
func (m *memory) footprint() (written, touched []run, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ram == nil {
		return nil, nil, errNotRAM
	}
	if written, err = privatePages(m.ram); err != nil {
		return nil, nil, err
	}
	f, err := pagemap()
	if err != nil {
		return nil, nil, err
	}
	touched, err = scanPresent(f, m.ram)
	return written, touched, err
}

// prefault gives a child the pages of a footprint: what it will write is copied
// while it starts, on another CPU if there is one, and what it will touch is
// mapped into it by prepare, on the first vCPU's thread before it runs. Whatever
// is refused the guest will fault in. wait returns when nothing touches the
// child's memory any more.
func (vm *VM) prefault() (prepare func(lead *vcpu) error, wait func()) {
	none := func(*vcpu) error { return nil }
	if vm.footprint == nil {
		return none, func() {}
	}
	written, touched := vm.footprint.get()
	if !vm.shell.preFault {
		done := make(chan struct{})
		go func() { populate(vm.mem.ram, written); close(done) }()
		return none, func() { <-done }
	}
	return func(lead *vcpu) error {
		populate(vm.mem.ram, written)
		for _, r := range coalesce(touched, 4, len(touched)) {
			preFault(lead.kvm, r)
		}
		return nil
	}, func() {}
}

// populate copies the pages that are to be private.
func populate(ram []byte, runs []run) {
	for _, r := range runs {
		if unix.Madvise(ram[r.start:r.end], unix.MADV_POPULATE_WRITE) != nil {
			return
		}
	}
}

// preFault maps a range of RAM for the guest.
func preFault(c *kvm.VCPU, r run) {
	at, size := gpaOf(uint64(r.start)), uint64(r.end-r.start)
	for size > 0 {
		n, err := c.PreFaultMemory(at, size)
		if err != nil && n == 0 {
			return
		}
		at, size = at+n, size-n
	}
}

// gpaOf is the guest-physical address of a RAM offset.
func gpaOf(offset uint64) uint64 {
	if offset < gapStart {
		return offset
	}
	return offset - gapStart + gapEnd
}
