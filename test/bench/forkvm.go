package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forkvm/forkvm/vmm"
)

// forkvm measures our own machines.
type forkvm struct {
	g      *guest
	forks  []int
	phases *phases
	parent *vmm.VM // of the forks; made by the first
}

func forkvmScenarios(g *guest, o options, p *phases) *forkvm {
	return &forkvm{g: g, forks: o.forks, phases: p}
}

func (f *forkvm) close() {
	if f.parent != nil {
		f.parent.Close()
	}
}

func (f *forkvm) start(ctx context.Context) (*vmm.VM, error) {
	return vmm.Start(ctx, vmm.Config{
		Kernel: f.g.kernel, Initramfs: f.g.initramfs, Cmdline: f.g.cmdline, Memory: f.g.memory,
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
func (f *forkvm) coldBoot(ctx context.Context, r *recorder) error {
	begin := time.Now()
	vm, err := f.start(ctx)
	if err != nil {
		return err
	}
	defer vm.Close()
	if err := reply(ctx, vm); err != nil {
		return err
	}
	replied := time.Since(begin)
	t := vm.Timings()
	for _, m := range []struct {
		metric string
		d      time.Duration
	}{{stateReady, t.StateReady}, {agentReady, t.AgentReady}, {firstReply, replied}} {
		r.add(key{"cold-boot", m.metric, 1, 0}, m.d, 0)
	}
	if r.off {
		return nil
	}
	return f.phases.add(ctx, vm, begin, replied)
}

// fork forks the warm parent once for each number of children.
func (f *forkvm) fork(ctx context.Context, r *recorder) error {
	if f.parent == nil {
		if err := f.warm(ctx); err != nil {
			return err
		}
	}
	for _, n := range f.forks {
		if err := f.forkOnce(ctx, r, n); err != nil {
			return fmt.Errorf("%d children: %w", n, err)
		}
	}
	return nil
}

// warm boots the parent and lets it and a first fork settle.
func (f *forkvm) warm(ctx context.Context) error {
	vm, err := f.start(ctx)
	if err != nil {
		return err
	}
	f.parent = vm
	for range 3 {
		if err := reply(ctx, vm); err != nil {
			return err
		}
	}
	return nil
}

// forkOnce measures from the call of Fork to each child's first reply.
func (f *forkvm) forkOnce(ctx context.Context, r *recorder, n int) error {
	begin := time.Now()
	children, err := f.parent.Fork(ctx, n)
	if err != nil {
		return err
	}
	replies := make([]time.Duration, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, c := range children {
		wg.Go(func() {
			errs[i] = reply(ctx, c)
			replies[i] = time.Since(begin)
		})
	}
	wg.Wait()
	for i, c := range children {
		t := c.Timings()
		if i == 0 {
			r.add(key{"fork", pause, n, 1}, t.Pause, t.DirtyPages)
		}
		r.add(key{"fork", stateReady, n, 1}, t.Pause+t.StateReady, t.DirtyPages)
		r.add(key{"fork", agentReady, n, 1}, t.Pause+t.AgentReady, t.DirtyPages)
		r.add(key{"fork", firstReply, n, 1}, replies[i], t.DirtyPages)
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
