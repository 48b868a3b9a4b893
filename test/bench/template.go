package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

// templates measures machines that are started from a template by its name,
// and for comparison forks of one of these.
type templates struct {
	o     options
	dir   string
	store *template.Store // nil at first
	vm    *vmm.VM         // the parent of the forks; paused unless it is needed
}

func (t *templates) close() {
	if t.vm != nil {
		t.vm.Close()
	}
	if t.store != nil {
		t.store.Close()
	}
}

// prepare builds the template, and starts the parent and lets it settle.
func (t *templates) prepare(ctx context.Context) error {
	if t.vm != nil {
		return nil
	}
	kernel, err := initrd.FindKernel(ctx, t.o.kernel)
	if err != nil {
		return err
	}
	agent, err := t.o.agentProgram()
	if err != nil {
		return err
	}
	t.store, err = template.Open(filepath.Join(t.dir, "templates"), template.Options{Machine: template.Machine{
		Kernel: kernel, Agent: agent, Cmdline: t.o.cmdline, Memory: int64(t.o.memoryMiB) << 20,
	}})
	if err != nil {
		return err
	}
	vm, err := t.start(ctx)
	if err != nil {
		return err
	}
	t.vm = vm
	for range 3 {
		if err := reply(ctx, vm); err != nil {
			return err
		}
	}
	return vm.Pause(ctx)
}

func (t *templates) start(ctx context.Context) (*vmm.VM, error) {
	image, _, err := t.store.Image(ctx, "base")
	if err != nil {
		return nil, err
	}
	return image.Start(ctx, vmm.StartOptions{})
}

// byName measures from the template's name to the first reply, in a KVM machine
// that was made ahead.
func (t *templates) byName(ctx context.Context, r *result.Recorder) error {
	if err := t.prepare(ctx); err != nil {
		return err
	}
	if err := t.vm.Prepare(ctx, 1); err != nil {
		return err
	}
	begin := time.Now()
	vm, err := t.start(ctx)
	if err != nil {
		return err
	}
	defer vm.Close()
	if err := reply(ctx, vm); err != nil {
		return err
	}
	addTimes(r, result.Key{Scenario: templateStart, N: 1, Depth: 1}, 0, vm.Timings(), time.Since(begin), 0)
	return nil
}

// fork measures a fork of a machine that was started from the template.
func (t *templates) fork(ctx context.Context, r *result.Recorder) error {
	if err := t.prepare(ctx); err != nil {
		return err
	}
	p := &parent{vm: t.vm}
	return p.awake(ctx, func(vm *vmm.VM) error {
		if err := vm.Prepare(ctx, 1); err != nil {
			return err
		}
		return forkToReply(ctx, r, result.Key{Scenario: templateFork, N: 1, DirtyPages: result.Measured, Depth: 2}, vm)
	})
}
