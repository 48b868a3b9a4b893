package vmm

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// MaxForks is the largest number of children of one [VM.Fork].
const MaxForks = 1000

// Fork captures the machine once and starts n children from it, each going on
// from the same instruction with memory shared copy-on-write. Each child gets
// an identity of its own, confirmed by its agent, before it is returned; the
// parent notices nothing but the pause. Connections into the guest that were
// open stay with the parent and are reset in the children.
//
// Either all children are returned or none. Whatever fails, the parent goes
// on. A paused machine can be forked: its children run and it stays paused.
// [VM.Capture] and [Image.Start] do the same step by step.
func (vm *VM) Fork(ctx context.Context, n int) ([]*VM, error) {
	if n < 1 || n > MaxForks {
		return nil, fmt.Errorf("vmm: fork: %w: %d children, want 1 to %d", ErrConfig, n, MaxForks)
	}
	begin := time.Now()
	image, err := vm.Capture(ctx)
	if err != nil {
		return nil, fmt.Errorf("vmm: fork: %w", err)
	}
	defer image.Close()
	defer image.pool.refill()
	if err := image.makeRoom(n); err != nil {
		return nil, fmt.Errorf("vmm: fork: %w", err)
	}
	children, err := image.startAll(ctx, begin, n)
	if err != nil {
		return nil, fmt.Errorf("vmm: fork: %w", err)
	}
	return children, nil
}

// startAll starts n machines, all or none. The first failure ends the others.
func (i *Image) startAll(ctx context.Context, begin time.Time, n int) ([]*VM, error) {
	if n == 1 {
		child, err := i.start(ctx, begin, StartOptions{})
		return []*VM{child}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	children := make([]*VM, n)
	several(n, func(k int) {
		var err error
		if err = ctx.Err(); err == nil {
			children[k], err = i.start(ctx, begin, StartOptions{})
		}
		if err != nil {
			cancel(fmt.Errorf("child %d of %d: %w", k+1, n, err))
		}
	})
	if ctx.Err() == nil {
		return children, nil
	}
	var wg sync.WaitGroup
	for _, c := range children {
		if c != nil {
			wg.Go(func() { c.Close() })
		}
	}
	wg.Wait()
	return nil, context.Cause(ctx)
}

// StartEach starts a machine for each of the options, some at a time, and
// returns each of them, or why there is none. If ctx ends first, those that are
// complete are returned all the same.
func (i *Image) StartEach(ctx context.Context, options []StartOptions) ([]*VM, []error) {
	begin, n := time.Now(), len(options)
	defer i.pool.refill()
	children, errs := make([]*VM, n), make([]error, n)
	if err := i.makeRoom(max(n, 1)); err != nil {
		for k := range errs {
			errs[k] = err
		}
		return children, errs
	}
	several(n, func(k int) {
		if errs[k] = ctx.Err(); errs[k] == nil {
			children[k], errs[k] = i.start(ctx, begin, options[k])
		}
	})
	return children, errs
}

// several calls f for 0 to n-1, as many at a time as is of use: more than a few
// for each CPU only compete, but a child that waits for its guest uses none.
func several(n int, f func(k int)) {
	slots := make(chan struct{}, max(16, 4*runtime.NumCPU()))
	var wg sync.WaitGroup
	for k := range n {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			f(k)
		})
	}
	wg.Wait()
}

// Prepare builds what forks of this machine and of its descendants need ahead,
// and returns when the next n children of any of them can be started without
// a wait for it. Config.Spare says how many are kept ready all the time.
func (vm *VM) Prepare(ctx context.Context, n int) error {
	if n < 0 || n > MaxForks {
		return fmt.Errorf("vmm: prepare: %w: %d children, want 0 to %d", ErrConfig, n, MaxForks)
	}
	if err := vm.takeTurn(ctx); err != nil {
		return fmt.Errorf("vmm: prepare: %w", err)
	}
	pool := vm.usePool()
	vm.turn.give()
	if err := pool.fill(ctx, n); err != nil {
		return fmt.Errorf("vmm: prepare: %w", err)
	}
	return nil
}
