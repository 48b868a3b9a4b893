package native

import (
	"context"
	"errors"
	"fmt"

	"github.com/forkvm/forkvm/test/bench/floor/bare"
	"github.com/forkvm/forkvm/test/bench/microguest"
	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

// pause measures how long a parent stands still that has written so many pages
// since its last capture. It is paused before, so that nothing can be copied
// while it runs.
func (b *bench) pause(ctx context.Context) error {
	for _, c := range []struct {
		pages  int64
		rounds int
	}{{0, 80}, {100, 80}, {1000, 60}, {10_000, 32}, {100_000, 12}} {
		if b.leftOut(c.pages) {
			continue
		}
		if err := b.pauseOf(ctx, c.pages, b.rounds(c.rounds)); err != nil {
			return fmt.Errorf("%d pages: %w", c.pages, err)
		}
	}
	return nil
}

func (b *bench) pauseOf(ctx context.Context, pages int64, rounds int) error {
	guest := microguest.Params{Pages: pages, Halt: true}
	vm, err := b.startForked(ctx, guest, memoryFor(guest))
	if err != nil {
		return err
	}
	defer vm.Close()
	ours := func() error {
		if err := prepare(ctx, vm, 1); err != nil {
			return err
		}
		if err := vm.Pause(ctx); err != nil {
			return err
		}
		children, err := vm.Fork(ctx, 1)
		if err != nil {
			return err
		}
		t := children[0].Timings()
		k := result.Key{Scenario: forkPooled, N: 1, DirtyPages: pages, Depth: 1}
		if t.DirtyPages < pages {
			err = fmt.Errorf("a fork found %d dirty pages where %d are", t.DirtyPages, pages)
		}
		b.time(k, result.Pause, t.Pause)
		b.time(k, result.StateReady, t.StateReady)
		if err := errors.Join(err, closeAll(children), vm.Resume(ctx)); err != nil {
			return err
		}
		return awaitRounds(ctx, vm, 2)
	}
	floor := func() error {
		s, err := b.floor.Measure(bare.Request{Kind: bare.Pooled, N: 1, Memory: memoryFor(guest), Guest: guest})
		if err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		k := result.Key{Scenario: floorPooled, N: 1, DirtyPages: s.DirtyPages, Depth: 1}
		b.time(k, result.Pause, s.Pause)
		b.time(k, result.StateReady, s.Children[0].StateReady)
		return nil
	}
	return b.eachRound(ctx, rounds, floor, ours)
}

// memoryFor is what a guest needs that is forked once: powers of two.
func memoryFor(g microguest.Params) int64 {
	size := int64(memory)
	for size < g.End(2) {
		size *= 2
	}
	return size
}

// rewriting measures how long a parent stands still that has written 100,000
// pages since its last capture, here its boot, and goes on rewriting a hundredth
// of them about every 10 ms.
func (b *bench) rewriting(ctx context.Context) error {
	once := int64(100_000)
	if b.leftOut(once) {
		once = b.o.Most
	}
	pages := max(1, once/100)
	// Two instructions a nanosecond or so, on a machine of 2 to 4 GHz.
	guest := microguest.Params{Once: once - pages, Pages: pages, Spin: 25_000_000, Halt: true}
	return b.eachRound(ctx, b.rounds(12), func() error {
		vm, err := b.start(ctx, guest, memoryFor(guest))
		if err != nil {
			return err
		}
		k := result.Key{Scenario: forkRewriting, N: 1, DirtyPages: once, Depth: 1}
		return errors.Join(b.forkRewriting(ctx, vm, k), vm.Close())
	})
}

func (b *bench) forkRewriting(ctx context.Context, vm *vmm.VM, k result.Key) error {
	if err := awaitRounds(ctx, vm, 2); err != nil {
		return err
	}
	children, err := vm.Fork(ctx, k.N)
	if err != nil {
		return err
	}
	t := children[0].Timings()
	b.time(k, result.Pause, t.Pause)
	b.time(k, result.StateReady, t.StateReady)
	return closeAll(children)
}
