package native

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/forkvm/forkvm/test/bench/floor/bare"
	"github.com/forkvm/forkvm/test/bench/microguest"
	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

// Scenarios.
const (
	floorPooled   = "floor-pooled"   // the bare system calls, machines made ahead
	floorCold     = "floor-cold"     // the bare system calls
	floorReset    = "floor-reset"    // the bare system calls of a reset
	forkPooled    = "fork-pooled"    // VM.Fork after VM.Prepare
	forkCold      = "fork-cold"      // VM.Fork
	forkBusy      = "fork-busy"      // VM.Fork after VM.Prepare, of a parent that keeps a processor busy
	forkRewriting = "fork-rewriting" // VM.Fork of a parent that wrote much and goes on rewriting some of it
	reset         = "reset"          // VM.Reset
	snapshotDisk  = "snapshot-disk"  // VM.Snapshot
	restoreDisk   = "restore-disk"   // vmm.Load and Image.Start, which is what vmm.Restore does
	coldBoot      = "cold-boot"      // vmm.Start
)

// latency measures one child of a parent that has written a page: a floor and a
// fork, with machines made ahead and without. Their parents stand still, but
// one that writes the page again and again.
func (b *bench) latency(ctx context.Context) error {
	guest := microguest.Params{Pages: 1, Halt: true}
	vm, err := b.startForked(ctx, guest, memory)
	if err != nil {
		return err
	}
	defer vm.Close()
	fork := func(scenario string) func() error {
		return func() error {
			if scenario != forkCold {
				if err := prepare(ctx, vm, 1); err != nil {
					return err
				}
			}
			if scenario != forkBusy {
				if err := vm.Pause(ctx); err != nil {
					return err
				}
			}
			err := b.fork(ctx, vm, result.Key{Scenario: scenario, N: 1, DirtyPages: 1, Depth: 1})
			if err := errors.Join(err, vm.Resume(ctx)); err != nil {
				return err
			}
			return awaitRounds(ctx, vm, 2)
		}
	}
	floor := func(scenario string, kind bare.Kind) func() error {
		return func() error {
			return b.floorFork(scenario, bare.Request{Kind: kind, N: 1, Memory: memory, Guest: guest})
		}
	}
	return b.eachRound(ctx, b.rounds(400),
		floor(floorPooled, bare.Pooled), fork(forkPooled), fork(forkBusy), floor(floorCold, bare.Cold), fork(forkCold))
}

// fork makes k.N children, records their times, and closes them.
func (b *bench) fork(ctx context.Context, vm *vmm.VM, k result.Key) error {
	children, err := vm.Fork(ctx, k.N)
	if err != nil {
		return err
	}
	return errors.Join(b.recordChildren(ctx, children, k), closeAll(children))
}

// recordChildren waits until all children have run, and records their times.
func (b *bench) recordChildren(ctx context.Context, children []*vmm.VM, k result.Key) error {
	var last time.Duration
	for i, c := range children {
		t, err := awaitFirstExit(ctx, c)
		if err != nil {
			return err
		}
		if t.DirtyPages < k.DirtyPages {
			return fmt.Errorf("a fork found %d dirty pages where at least %d are", t.DirtyPages, k.DirtyPages)
		}
		if i == 0 {
			b.time(k, result.Pause, t.Pause)
		}
		b.child(k, t.Pause, t.StateReady, t.FirstExit)
		last = max(last, t.FirstExit)
	}
	b.time(k, result.TimePerChild, last/time.Duration(k.N))
	return nil
}

// child records the times of one child.
func (b *bench) child(k result.Key, pause, stateReady, firstExit time.Duration) {
	b.time(k, result.StateReady, stateReady)
	b.time(k, result.Restore, stateReady-pause)
	b.time(k, result.FirstInstruction, firstExit)
}

func (b *bench) time(k result.Key, metric string, d time.Duration) {
	k.Metric = metric
	b.r.Time(k, d, k.DirtyPages)
}

// floorFork records a fork of the floor, or the memory that its children cost
// and, unless it is one, their times as well.
func (b *bench) floorFork(scenario string, r bare.Request) error {
	s, err := b.floor.Measure(r)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	if s.DirtyPages != r.Guest.Pages {
		return fmt.Errorf("floor: %d dirty pages where %d are", s.DirtyPages, r.Guest.Pages)
	}
	k := result.Key{Scenario: scenario, N: r.N, DirtyPages: s.DirtyPages, Depth: 1}
	if r.Usage {
		b.usage(k, s.Usage)
		if r.N == 1 {
			return nil
		}
	}
	b.time(k, result.Pause, s.Pause)
	for _, c := range s.Children {
		b.child(k, s.Pause, c.StateReady, c.FirstInstruction)
	}
	b.time(k, result.TimePerChild, s.Children[r.N-1].FirstInstruction/time.Duration(r.N))
	return nil
}
