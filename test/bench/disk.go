package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

// disk measures snapshots of the parents of forks, and machines that go on from
// one.
type disk struct {
	ours  *forkvm
	dir   string
	store *snapshot.Store    // nil at first
	kept  map[*parent]string // the snapshots that machines go on from
}

func (d *disk) close() {
	if d.store != nil {
		d.store.Close()
	}
}

// prepare takes the snapshots that machines go on from, and has their layers
// verified.
func (d *disk) prepare(ctx context.Context) (err error) {
	if d.store != nil {
		return nil
	}
	if d.store, err = snapshot.Open(filepath.Join(d.dir, "store")); err != nil {
		return err
	}
	d.kept = make(map[*parent]string)
	for _, p := range []*parent{d.ours.idle, d.ours.ticking} {
		err := p.awake(ctx, func(vm *vmm.VM) error {
			info, err := vm.Snapshot(ctx, d.store, vmm.SnapshotOptions{})
			d.kept[p] = info.ID
			return err
		})
		if err != nil {
			return err
		}
		image, err := d.load(ctx, p)
		if err != nil {
			return err
		}
		image.Close()
	}
	return nil
}

func (d *disk) load(ctx context.Context, p *parent) (*vmm.Image, error) {
	return vmm.Load(ctx, d.store, d.kept[p], vmm.LoadOptions{Spare: -1})
}

// snapshot stores the parent, of whose memory the store has all but what it has
// written since.
func (d *disk) snapshot(ctx context.Context, r *result.Recorder) error {
	if err := d.prepare(ctx); err != nil {
		return err
	}
	return d.ours.idle.awake(ctx, func(vm *vmm.VM) error {
		begin := time.Now()
		image, err := vm.Capture(ctx)
		if err != nil {
			return err
		}
		defer image.Close()
		info, err := image.Save(ctx, d.store, vmm.SnapshotOptions{})
		if err != nil {
			return err
		}
		k := result.Key{Scenario: snapshotDisk, Metric: result.Write, N: 1, DirtyPages: result.Measured, Depth: 1}
		r.Time(k, time.Since(begin), image.DirtyPages())
		k.Metric = result.Pause
		r.Time(k, image.Pause(), image.DirtyPages())
		return d.store.Delete(ctx, info.ID)
	})
}

// restore starts machines from disk, in KVM machines that were made ahead.
func (d *disk) restore(ctx context.Context, r *result.Recorder) error {
	if err := d.prepare(ctx); err != nil {
		return err
	}
	for _, p := range []*parent{d.ours.idle, d.ours.ticking} {
		if err := d.restoreOne(ctx, r, p); err != nil {
			return err
		}
	}
	return nil
}

func (d *disk) restoreOne(ctx context.Context, r *result.Recorder, p *parent) error {
	if err := p.vm.Prepare(ctx, 1); err != nil {
		return err
	}
	begin := time.Now()
	image, err := d.load(ctx, p)
	if err != nil {
		return err
	}
	defer image.Close()
	k := result.Key{Scenario: restoreDisk, N: 1, Depth: 1}
	if p.ticking {
		alive, err := startToLife(ctx, image, begin)
		k.Metric = result.FirstLife
		r.Time(k, alive, 0)
		return err
	}
	called := time.Since(begin)
	vm, err := image.Start(ctx, vmm.StartOptions{})
	if err != nil {
		return err
	}
	defer vm.Close()
	if err := reply(ctx, vm); err != nil {
		return err
	}
	addTimes(r, k, called, vm.Timings(), time.Since(begin), 0)
	return nil
}
