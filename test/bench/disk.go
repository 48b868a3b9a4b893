package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

// disk measures snapshots of the parent of forks, and machines that go on from
// one.
type disk struct {
	ours  *forkvm
	dir   string
	store *snapshot.Store // nil at first
	kept  string          // the snapshot that machines go on from
}

func (d *disk) close() {
	if d.store != nil {
		d.store.Close()
	}
}

// prepare takes the snapshot that machines go on from, and has its layers
// verified.
func (d *disk) prepare(ctx context.Context) error {
	if d.store != nil {
		return nil
	}
	store, err := snapshot.Open(filepath.Join(d.dir, "store"))
	if err != nil {
		return err
	}
	d.store = store
	err = d.ours.awake(ctx, func() error {
		info, err := d.ours.parent.Snapshot(ctx, store, vmm.SnapshotOptions{})
		d.kept = info.ID
		return err
	})
	if err != nil {
		return err
	}
	image, err := d.load(ctx)
	if err != nil {
		return err
	}
	return image.Close()
}

func (d *disk) load(ctx context.Context) (*vmm.Image, error) {
	return vmm.Load(ctx, d.store, d.kept, vmm.LoadOptions{Spare: -1})
}

// snapshot stores the parent, of whose memory the store has all but what it has
// written since.
func (d *disk) snapshot(ctx context.Context, r *result.Recorder) error {
	if err := d.prepare(ctx); err != nil {
		return err
	}
	return d.ours.awake(ctx, func() error {
		begin := time.Now()
		image, err := d.ours.parent.Capture(ctx)
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

// restore starts a machine from disk and runs a command in it.
func (d *disk) restore(ctx context.Context, r *result.Recorder) error {
	if err := errors.Join(d.prepare(ctx), d.ours.parent.Prepare(ctx, 1)); err != nil {
		return err
	}
	begin := time.Now()
	image, err := d.load(ctx)
	if err != nil {
		return err
	}
	defer image.Close()
	var child forked
	defer child.close()
	if err := child.start(ctx, image, begin); err != nil {
		return err
	}
	return child.record(ctx, r, result.Key{Scenario: restoreDisk, N: 1, Depth: 1}, 0, begin)
}
