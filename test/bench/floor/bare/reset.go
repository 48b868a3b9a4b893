package bare

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/test/bench/microguest"
)

// Wander has the first child write its pages besides, which it does when its
// generation id changes.
func (f *Family) Wander() error {
	m := f.machines[0]
	id := m.ram[microguest.GenerationAddr:]
	binary.LittleEndian.PutUint64(id, binary.LittleEndian.Uint64(id)+1)
	if err := m.run(); err != nil { // it knows that it is a fork
		return err
	}
	return m.run()
}

// Reset puts the first child back to where it was forked: what it has written
// since is dropped, and its state written anew. It ends with the child's first
// exit, and returns the pages that were dropped.
func (p *Parent) Reset(f *Family) (t Times, pages int64, err error) {
	begin := time.Now()
	m := f.machines[0]
	if p.runs, err = p.scanner.private(m.ram, p.runs[:0]); err != nil {
		return t, 0, err
	}
	for _, r := range p.runs {
		if err := unix.Madvise(m.ram[r.start:r.end], unix.MADV_DONTNEED); err != nil {
			return t, 0, err
		}
		pages += (r.end - r.start) / pageSize
	}
	if err := p.h.restore(m, f.st); err != nil {
		return t, 0, err
	}
	t.StateReady = time.Since(begin)
	if err := m.run(); err != nil {
		return t, 0, err
	}
	t.FirstInstruction = time.Since(begin)
	return t, pages, nil
}
