package native

import (
	"context"
	"errors"

	"github.com/forkvm/forkvm/test/bench/floor/bare"
	"github.com/forkvm/forkvm/test/bench/microguest"
	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

// depth forks children of children. Each generation writes 10 pages that none
// before has written, so each adds to the layers that the next one has below
// it; its ancestors are closed.
func (b *bench) depth(ctx context.Context) error {
	const generations, pages = 16, 10
	guest := microguest.Params{Pages: pages}
	return b.eachRound(ctx, b.rounds(40), func() error {
		vm, err := b.startForked(ctx, guest, memory)
		if err != nil {
			return err
		}
		for depth := 1; depth <= generations; depth++ {
			k := result.Key{Scenario: forkPooled, N: 1, DirtyPages: pages, Depth: depth}
			child, err := b.generation(ctx, vm, k)
			if err := errors.Join(err, vm.Close()); err != nil {
				return err
			}
			vm = child
		}
		return vm.Close()
	})
}

// generation forks a child and returns it when it has written all its pages.
func (b *bench) generation(ctx context.Context, vm *vmm.VM, k result.Key) (*vmm.VM, error) {
	if err := prepare(ctx, vm, 1); err != nil {
		return nil, err
	}
	children, err := vm.Fork(ctx, 1)
	if err != nil {
		return nil, err
	}
	err = b.recordChildren(ctx, children, k)
	if err == nil {
		err = awaitRound(ctx, children[0], microguest.RoundWritten)
	}
	if err != nil {
		return nil, errors.Join(err, closeAll(children))
	}
	return children[0], nil
}

// reset measures a child that writes 1,000 pages and is put back.
func (b *bench) reset(ctx context.Context) error {
	const pages = 1000
	guest := microguest.Params{Pages: 1, ChildPages: pages, Halt: true}
	vm, err := b.startForked(ctx, guest, memory)
	if err != nil {
		return err
	}
	defer vm.Close()
	if err := vm.Pause(ctx); err != nil {
		return err
	}
	children, err := vm.Fork(ctx, 1)
	if err != nil {
		return err
	}
	child := children[0]
	defer child.Close()
	if err := awaitRound(ctx, child, microguest.ForkWritten); err != nil {
		return err
	}
	ours := func() error {
		before := rounds(child)
		if err := child.Reset(ctx); err != nil {
			return err
		}
		t, err := awaitFirstExit(ctx, child)
		if err != nil {
			return err
		}
		k := result.Key{Scenario: reset, N: 1, DirtyPages: pages, Depth: 1}
		b.time(k, result.StateReady, t.StateReady)
		b.time(k, result.FirstInstruction, t.FirstExit)
		return awaitRound(ctx, child, before+microguest.ForkWritten)
	}
	floor := func() error {
		s, err := b.floor.Measure(bare.Request{Kind: bare.Reset, N: 1, Memory: memoryFor(guest), Guest: guest})
		if err != nil {
			return err
		}
		k := result.Key{Scenario: floorReset, N: 1, DirtyPages: pages, Depth: 1}
		b.time(k, result.StateReady, s.Children[0].StateReady)
		b.time(k, result.FirstInstruction, s.Children[0].FirstInstruction)
		return nil
	}
	return b.eachRound(ctx, b.rounds(200), floor, ours)
}

// boots measures a machine that boots.
func (b *bench) boots(ctx context.Context) error {
	return b.eachRound(ctx, b.rounds(80), func() error {
		vm, err := b.start(ctx, microguest.Params{Pages: 1}, memory)
		if err != nil {
			return err
		}
		t, err := awaitFirstExit(ctx, vm)
		k := result.Key{Scenario: coldBoot, N: 1}
		b.time(k, result.StateReady, t.StateReady)
		b.time(k, result.FirstInstruction, t.FirstExit)
		return errors.Join(err, vm.Close())
	})
}
