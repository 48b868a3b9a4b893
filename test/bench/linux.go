package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/forkvm/forkvm/test/bench/result"
)

// Scenarios of Linux guests.
const (
	coldBoot    = "cold-boot"
	qemuBoot    = "qemu-boot"
	gokvmBoot   = "gokvm-boot"
	qemuRestore = "qemu-restore"
	forkPooled  = "fork-pooled"
	forkCold    = "fork-cold"
	reset       = "reset"

	snapshotDisk = "snapshot-disk"
	restoreDisk  = "restore-disk"

	templateStart = "template-start"
	templateFork  = "template-fork"
)

// scenario is one thing to measure. A round runs each once.
type scenario struct {
	name string
	most int // rounds; 0 for all
	run  func(ctx context.Context, r *result.Recorder) error
}

// linuxCommand measures and prints. Baselines that fail are a result; what is
// forkvm's own must not fail.
func linuxCommand(ctx context.Context, o options, _ []string) error {
	h, err := readHost(result.NativeLinux)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "forkvm-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	g, err := newGuest(ctx, o, dir)
	if err != nil {
		return err
	}
	r := result.NewRecorder()
	p := &phases{}
	ours := newForkvm(g, o.forks, p)
	defer ours.close()
	stored := &disk{ours: ours, dir: dir}
	defer stored.close()
	named := &templates{o: o, dir: dir}
	defer named.close()
	if err := runRounds(ctx, o, pick(o, ours, stored, named, &qemu{g, o.qemu}), r); err != nil {
		return err
	}
	err = r.Print(os.Stdout, os.Stderr, h, result.Format{JSON: o.json, Header: o.header})
	if o.phases {
		p.print(os.Stderr)
	}
	for _, name := range []string{coldBoot, forkPooled, forkCold, reset, snapshotDisk, restoreDisk, templateStart, templateFork} {
		err = errors.Join(err, r.Failed[name])
	}
	return err
}

// pick returns the scenarios that were asked for, in the order of a round.
func pick(o options, ours *forkvm, stored *disk, named *templates, q *qemu) []scenario {
	runs := map[string]func(context.Context, *result.Recorder) error{
		coldBoot:     ours.coldBoot,
		qemuBoot:     q.boot,
		gokvmBoot:    (&gokvm{q.g}).boot,
		qemuRestore:  (&restorer{qemu: q, dir: stored.dir}).restore,
		forkPooled:   ours.forkPooled,
		forkCold:     ours.forkCold,
		reset:        ours.reset,
		snapshotDisk: stored.snapshot,
		restoreDisk:  stored.restore,

		templateStart: named.byName,
		templateFork:  named.fork,
	}
	disks := &fio{q: q, dir: stored.dir, image: o.fioImage}
	runs[forkvmDisk], runs[qemuDisk] = disks.ours, disks.theirs
	var list []scenario
	for _, name := range o.scenarios {
		s := scenario{name: name, run: runs[name]}
		if name == forkvmDisk || name == qemuDisk {
			s.most = o.fioRounds()
		}
		list = append(list, s)
	}
	return list
}

// runRounds interleaves the scenarios, so that what changes on the host while
// it measures hits all alike. One that fails is left out from then on.
func runRounds(ctx context.Context, o options, list []scenario, r *result.Recorder) error {
	rounds := o.linuxRounds()
	for round := range o.warmup + rounds {
		r.Off = round < o.warmup
		for _, s := range list {
			if r.Failed[s.name] != nil || s.most > 0 && round >= o.warmup+s.most || s.most > 0 && r.Off {
				continue
			}
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, o.warmup+rounds, s.name)
			// A machine that was closed is still being freed, at the
			// expense of whoever comes next.
			select {
			case <-time.After(o.settle):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			one, cancel := context.WithTimeout(ctx, o.timeout)
			err := s.run(one, r)
			cancel()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s failed: %v\n", s.name, err)
				r.Failed[s.name] = err
			}
		}
	}
	return nil
}
