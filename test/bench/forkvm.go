package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

// forkvm measures our own machines.
type forkvm struct {
	g       *guest
	forks   []int
	phases  *phases
	idle    *parent // of children that are asked for a reply
	ticking *parent // of children that show a sign of life
	child   *vmm.VM // that is reset; made by the first; paused unless it is needed
}

func newForkvm(g *guest, forks []int, p *phases) *forkvm {
	f := &forkvm{g: g, forks: forks, phases: p}
	f.idle, f.ticking = &parent{start: f.start}, &parent{start: f.start, ticking: true}
	return f
}

func (f *forkvm) close() {
	f.idle.close()
	f.ticking.close()
	if f.child != nil {
		f.child.Close()
	}
}

func (f *forkvm) start(ctx context.Context, console io.Writer) (*vmm.VM, error) {
	return vmm.Start(ctx, vmm.Config{
		Kernel: f.g.kernel, Initramfs: f.g.initramfs, Cmdline: f.g.cmdline, Memory: f.g.memory, Console: console,
		Spare: -1, // what is made ahead is made on request
	})
}

// reply runs the smallest command to its end.
func reply(ctx context.Context, vm *vmm.VM) error {
	out, err := vm.CommandContext(ctx, "echo", "reply").Output()
	if err == nil && string(out) != "reply\n" {
		err = fmt.Errorf("echo says %q", out)
	}
	return err
}

// coldBoot boots a machine and runs a command in it.
func (f *forkvm) coldBoot(ctx context.Context, r *result.Recorder) error {
	begin := time.Now()
	vm, err := f.start(ctx, nil)
	if err != nil {
		return err
	}
	defer vm.Close()
	if err := reply(ctx, vm); err != nil {
		return err
	}
	replied := time.Since(begin)
	addTimes(r, result.Key{Scenario: coldBoot, N: 1}, 0, vm.Timings(), replied, 0)
	if r.Off {
		return nil
	}
	return f.phases.add(ctx, vm, begin, replied)
}

// reset puts a child back, which has run a command since it was forked.
func (f *forkvm) reset(ctx context.Context, r *result.Recorder) error {
	if f.child == nil {
		if err := f.forkChild(ctx); err != nil {
			return err
		}
	}
	begin := time.Now()
	if err := f.child.Reset(ctx); err != nil {
		return err
	}
	if err := reply(ctx, f.child); err != nil {
		return err
	}
	replied := time.Since(begin)
	addTimes(r, result.Key{Scenario: reset, N: 1, Depth: 1}, 0, f.child.Timings(), replied, 0)
	return f.child.Pause(ctx)
}

func (f *forkvm) forkChild(ctx context.Context) error {
	return f.idle.awake(ctx, func(vm *vmm.VM) error {
		children, err := vm.Fork(ctx, 1)
		if err != nil {
			return err
		}
		f.child = children[0]
		return reply(ctx, f.child)
	})
}

// addTimes records the times of a machine whose making was called for after
// some of what counts.
func addTimes(r *result.Recorder, k result.Key, called time.Duration, t vmm.Timings, replied time.Duration, dirty int64) {
	for _, m := range []struct {
		metric string
		d      time.Duration
	}{
		{result.StateReady, called + t.StateReady}, {result.FirstInstruction, called + t.FirstExit},
		{result.AgentReady, called + t.AgentReady}, {result.FirstReply, replied},
	} {
		k.Metric = m.metric
		r.Time(k, m.d, dirty)
	}
}
