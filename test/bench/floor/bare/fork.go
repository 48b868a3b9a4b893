package bare

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/test/bench/microguest"
)

// Parent is a machine whose guest has done a round. It stands still but for
// [Parent.Round].
type Parent struct {
	h       *Host
	m       *machine
	base    *layer // its memory when it was last written in full
	scanner *scanner
	memory  int64 // bytes
	pages   int64 // that it writes
	runs    []run // scratch
}

// NewParent boots a guest of so many bytes of memory, and puts what it wrote until its first exit into a
// layer below it, as if it had been forked before.
func (h *Host) NewParent(memory int64, g microguest.Params) (*Parent, error) {
	p := &Parent{h: h, memory: memory, pages: g.Pages}
	if err := p.boot(g); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Parent) boot(g microguest.Params) (err error) {
	if g.End(1) > p.memory {
		return fmt.Errorf("bare: the guest needs %d bytes of memory, there are %d", g.End(1), p.memory)
	}
	image, err := microguest.Image(g)
	if err != nil {
		return err
	}
	if p.scanner, err = newScanner(); err != nil {
		return err
	}
	if p.m, err = p.h.newMachine(p.memory, nil); err != nil {
		return err
	}
	copy(p.m.ram[microguest.Base:], image)
	if err := enter(p.m.vcpu); err != nil {
		return err
	}
	if err := p.m.run(); err != nil {
		return err
	}
	if p.runs, err = p.scanner.private(p.m.ram, p.runs[:0]); err != nil {
		return err
	}
	if p.base, err = newLayer(p.memory, false); err != nil {
		return err
	}
	for _, r := range p.runs {
		if err := p.base.write(p.m.ram[r.start:r.end], r.start); err != nil {
			return err
		}
	}
	return overlay(p.m.ram, p.base.fd, 0)
}

// enter puts the vCPU at the guest's entry as the 64-bit boot protocol of Linux
// does, with the guest's own page tables.
func enter(c *kvm.VCPU) error {
	const (
		cr0PE, cr0ET, cr0NE, cr0PG = 1 << 0, 1 << 4, 1 << 5, 1 << 31
		cr4PAE                     = 1 << 5
		eferLME, eferLMA           = 1 << 8, 1 << 10
	)
	s, err := c.Sregs()
	if err != nil {
		return err
	}
	data := kvm.Segment{Limit: 0xffffffff, Selector: 0x18, Type: 3, Present: 1, DB: 1, S: 1, G: 1}
	s.CS = kvm.Segment{Limit: 0xffffffff, Selector: 0x10, Type: 11, Present: 1, S: 1, L: 1, G: 1}
	s.DS, s.ES, s.FS, s.GS, s.SS = data, data, data, data, data
	s.CR0, s.CR4, s.EFER = cr0PE|cr0ET|cr0NE|cr0PG, cr4PAE, eferLME|eferLMA
	s.CR3 = microguest.PageTables
	if err := c.SetSregs(&s); err != nil {
		return err
	}
	return c.SetRegs(&kvm.Regs{RIP: microguest.Entry, RFLAGS: 2})
}

// Close frees the parent. Its children live on.
func (p *Parent) Close() error {
	var errs []error
	if p.m != nil {
		errs = append(errs, p.m.close())
	}
	p.base.close()
	if p.scanner != nil {
		p.scanner.close()
	}
	return errors.Join(errs...)
}

// Round lets the guest write its pages once more.
func (p *Parent) Round() error { return p.m.run() }

// Pool is what is made ahead of a fork: machines with the parent's memory but
// for what it has written, and without state; and memory for a layer.
type Pool struct {
	shells []*machine
	layer  *layer
}

// Prepare makes a pool for a fork of n children.
func (p *Parent) Prepare(n int) (*Pool, error) {
	pool := new(Pool)
	var err error
	if pool.layer, err = newLayer(max(p.pages, 1)*pageSize, true); err != nil {
		return nil, err
	}
	for range n {
		m, err := p.h.newMachine(p.memory, p.mapBase)
		if err != nil {
			pool.close()
			return nil, err
		}
		pool.shells = append(pool.shells, m)
	}
	return pool, nil
}

func (p *Pool) close() {
	closeAll(p.shells)
	p.layer.close()
}

// Times of a child, from the start of the fork.
type Times struct{ StateReady, FirstInstruction time.Duration }

// Family is the outcome of a fork. Its children stand still after their first
// exit.
type Family struct {
	Pause      time.Duration // how long the parent would have stood still
	DirtyPages int64
	Children   []Times

	machines []*machine
	st       *state
	layer    *layer
}

// Close frees the children.
func (f *Family) Close() {
	closeAll(f.machines)
	f.layer.close()
}

// closeAll closes machines some at a time: each waits for the kernel, which is
// waited for in vain one by one.
func closeAll(machines []*machine) {
	slots := make(chan struct{}, 32)
	var wg sync.WaitGroup
	for _, m := range machines {
		slots <- struct{}{}
		wg.Go(func() {
			_ = m.close()
			<-slots
		})
	}
	wg.Wait()
}

// Fork makes n children, of a pool that was prepared for as many, which it
// uses up, or, with nil, from nothing.
func (p *Parent) Fork(n int, pool *Pool) (*Family, error) {
	f := &Family{Children: make([]Times, n)}
	if pool != nil {
		f.machines, f.layer = pool.shells, pool.layer
	}
	if err := p.fork(f, n); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (p *Parent) fork(f *Family, n int) (err error) {
	begin := time.Now()
	if f.st, err = p.h.save(p.m); err != nil {
		return err
	}
	runs, err := p.capture(f)
	if err != nil {
		return err
	}
	f.Pause = time.Since(begin)
	pooled := len(f.machines) > 0
	for i := range n {
		var m *machine
		if pooled {
			m = f.machines[i]
			err = f.layer.lay(m.ram, runs)
		} else {
			m, err = p.h.newMachine(p.memory, func(ram []byte) error {
				return errors.Join(p.mapBase(ram), f.layer.lay(ram, runs))
			})
			if err == nil {
				f.machines = append(f.machines, m)
			}
		}
		if err != nil {
			return err
		}
		if err := p.h.restore(m, f.st); err != nil {
			return err
		}
		f.Children[i].StateReady = time.Since(begin)
		if err := m.run(); err != nil {
			return err
		}
		f.Children[i].FirstInstruction = time.Since(begin)
	}
	return nil
}

// capture copies what the parent has written into the family's layer.
func (p *Parent) capture(f *Family) (runs []run, err error) {
	if runs, err = p.scanner.private(p.m.ram, p.runs[:0]); err != nil {
		return nil, err
	}
	p.runs = runs
	if f.layer == nil {
		if f.layer, err = newLayer(max(p.pages, 1)*pageSize, false); err != nil {
			return nil, err
		}
	}
	var at int64
	for _, r := range runs {
		if err := f.layer.write(p.m.ram[r.start:r.end], at); err != nil {
			return nil, err
		}
		at += r.end - r.start
	}
	f.DirtyPages = at / pageSize
	return runs, nil
}

// mapBase maps what parent and children have in common.
func (p *Parent) mapBase(ram []byte) error { return overlay(ram, p.base.fd, 0) }
