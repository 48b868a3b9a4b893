package native

import (
	"context"
	"errors"
	"fmt"

	"github.com/forkvm/forkvm/test/bench/floor/bare"
	"github.com/forkvm/forkvm/test/bench/footprint"
	"github.com/forkvm/forkvm/test/bench/microguest"
	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

// children measures how long many children take and what memory each adds when
// all of them idle. The parent is paused, for it would take a processor from
// them.
func (b *bench) children(ctx context.Context) error {
	guest := microguest.Params{Pages: 1, Halt: true}
	vm, err := b.startForked(ctx, guest, memory)
	if err != nil {
		return err
	}
	defer vm.Close()
	for _, c := range []struct{ n, rounds int }{{1, 32}, {10, 32}, {100, 16}, {1000, 4}} {
		if b.leftOut(int64(c.n)) {
			continue
		}
		floor := func() error {
			return b.floorFork(floorPooled, bare.Request{Kind: bare.Pooled, N: c.n, Memory: memory, Guest: guest, Usage: true})
		}
		ours := func() error { return b.forkMany(ctx, vm, c.n) }
		if err := b.eachRound(ctx, b.rounds(c.rounds), floor, ours); err != nil {
			return fmt.Errorf("%d children: %w", c.n, err)
		}
	}
	return nil
}

// forkMany forks n children and waits until they idle.
func (b *bench) forkMany(ctx context.Context, vm *vmm.VM, n int) error {
	before, err := footprint.Read()
	if err != nil {
		return err
	}
	if err := vm.Pause(ctx); err != nil {
		return err
	}
	if err := prepare(ctx, vm, n); err != nil {
		return err
	}
	children, err := vm.Fork(ctx, n)
	if err != nil {
		return err
	}
	k := result.Key{Scenario: forkPooled, N: n, DirtyPages: 1, Depth: 1}
	if n > 1 { // the times of one are another group's
		err = b.recordChildren(ctx, children, k)
	}
	err = errors.Join(err, b.recordIdle(ctx, children, k, before))
	if err := errors.Join(err, closeAll(children), vm.Resume(ctx)); err != nil {
		return err
	}
	return awaitRounds(ctx, vm, 2)
}

// recordIdle waits until all children idle and records what they have added.
func (b *bench) recordIdle(ctx context.Context, children []*vmm.VM, k result.Key, before footprint.Usage) error {
	for _, c := range children {
		if err := awaitRound(ctx, c, microguest.ForkWritten); err != nil {
			return err
		}
	}
	if err := settle(ctx); err != nil {
		return err
	}
	after, err := footprint.Read()
	if err != nil {
		return err
	}
	b.usage(k, after.Per(before, k.N))
	return nil
}

func (b *bench) usage(k result.Key, u footprint.Usage) {
	for _, m := range []struct {
		metric string
		bytes  int64
	}{
		{result.BytesPerChild, u.Total()}, {result.PSSPerChild, u.PSS}, {result.PrivatePerChild, u.Private},
		{result.PageTablesPerChild, u.PageTables}, {result.KernelPerChild, u.Kernel},
	} {
		k.Metric = m.metric
		b.r.Size(k, m.bytes)
	}
}
