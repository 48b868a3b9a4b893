package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/forkvm/forkvm/test/bench/microguest"
	"github.com/forkvm/forkvm/vmm"
)

// memory is the bytes that a guest has unless it needs more.
const memory = 256 << 20

// start boots a guest and returns once it has done a round.
func (b *bench) start(ctx context.Context, g microguest.Params, memory int64) (*vmm.VM, error) {
	elf, err := microguest.ELF(g)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(b.dir, "guest")
	if err := os.WriteFile(path, elf, 0o600); err != nil {
		return nil, err
	}
	// Shells are built when they are asked for, or not at all.
	vm, err := vmm.Start(ctx, vmm.Config{Kernel: path, Memory: memory, Bare: true, Spare: -1})
	if err != nil {
		return nil, err
	}
	if err := awaitRounds(ctx, vm, 1); err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	return vm, nil
}

// startForked boots a guest and forks it once, so that what it wrote as it
// booted is not dirty any more, and lets it do a whole round.
func (b *bench) startForked(ctx context.Context, g microguest.Params, memory int64) (*vmm.VM, error) {
	vm, err := b.start(ctx, g, memory)
	if err != nil {
		return nil, err
	}
	err = forkAndClose(ctx, vm)
	if err == nil {
		err = awaitRounds(ctx, vm, 2) // the first may have begun before the fork
	}
	if err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	return vm, nil
}

// prepare makes machines ahead of a fork, and lets everything settle, as it has
// when they are made long before.
func prepare(ctx context.Context, vm *vmm.VM, n int) error {
	if err := vm.Prepare(ctx, n); err != nil {
		return err
	}
	return settle(ctx)
}

func forkAndClose(ctx context.Context, vm *vmm.VM) error {
	children, err := vm.Fork(ctx, 1)
	if err != nil {
		return err
	}
	return closeAll(children)
}

// rounds is how often the guest has told that it wrote its pages.
func rounds(vm *vmm.VM) uint64 { return vm.Stats().PIOWrite }

// awaitRounds returns when the guest has told so n times more.
func awaitRounds(ctx context.Context, vm *vmm.VM, n uint64) error {
	return awaitRound(ctx, vm, rounds(vm)+n)
}

// awaitRound returns when the guest has told so n times.
func awaitRound(ctx context.Context, vm *vmm.VM, n uint64) error {
	return poll(ctx, vm, func() bool { return rounds(vm) >= n })
}

// awaitFirstExit returns the machine's times when it has left the guest.
func awaitFirstExit(ctx context.Context, vm *vmm.VM) (t vmm.Timings, err error) {
	err = poll(ctx, vm, func() bool {
		t = vm.Timings()
		return t.FirstExit > 0
	})
	return t, err
}

// poll looks again and again, seldom enough not to disturb.
func poll(ctx context.Context, vm *vmm.VM, done func() bool) error {
	const patience = 2 * time.Minute
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !done(); {
		select {
		case <-tick.C:
		case <-vm.Done():
			return fmt.Errorf("the machine ended: %w", vm.Wait(ctx))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the guest did nothing for %v", patience)
		}
	}
	return nil
}

func closeAll(all []*vmm.VM) error {
	var errs []error
	for _, vm := range all {
		errs = append(errs, vm.Close())
	}
	return errors.Join(errs...)
}
