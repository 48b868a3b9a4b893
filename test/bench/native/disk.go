package native

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/test/bench/microguest"
	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

// disk measures snapshots that are written to disk, and machines that go on
// from one, whose layers this process has verified before.
func (b *bench) disk(ctx context.Context) (err error) {
	vm, err := b.startForked(ctx, microguest.Params{Once: 1000, Pages: 1, Halt: true}, memory)
	if err != nil {
		return err
	}
	defer vm.Close()
	store, err := snapshot.Open(filepath.Join(b.dir, "store"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	kept, err := vm.Snapshot(ctx, store, vmm.SnapshotOptions{})
	if err != nil {
		return err
	}
	return b.eachRound(ctx, b.rounds(80),
		func() error { return b.snapshot(ctx, vm, store) },
		func() error { return b.restore(ctx, vm, store, kept.ID) })
}

// snapshot stores the machine, of whose memory the store has all but what was
// written since.
func (b *bench) snapshot(ctx context.Context, vm *vmm.VM, store *snapshot.Store) error {
	begin := time.Now()
	info, err := vm.Snapshot(ctx, store, vmm.SnapshotOptions{})
	if err != nil {
		return err
	}
	b.time(result.Key{Scenario: snapshotDisk, N: 1, DirtyPages: 1, Depth: 1}, result.Write, time.Since(begin))
	return store.Delete(ctx, info.ID)
}

// restore starts a machine from disk, in a KVM machine that was made ahead.
func (b *bench) restore(ctx context.Context, vm *vmm.VM, store *snapshot.Store, id string) error {
	if err := prepare(ctx, vm, 1); err != nil {
		return err
	}
	begin := time.Now()
	image, err := vmm.Load(ctx, store, id, vmm.LoadOptions{Spare: -1})
	if err != nil {
		return err
	}
	defer image.Close()
	loaded := time.Since(begin)
	child, err := image.Start(ctx, vmm.StartOptions{})
	if err != nil {
		return err
	}
	t, err := awaitFirstExit(ctx, child)
	k := result.Key{Scenario: restoreDisk, N: 1, Depth: 1}
	b.time(k, result.StateReady, loaded+t.StateReady)
	b.time(k, result.FirstInstruction, loaded+t.FirstExit)
	return errors.Join(err, child.Close())
}
