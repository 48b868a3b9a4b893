package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

// forkPooled forks each parent once for each number of children, with machines
// made ahead.
func (f *forkvm) forkPooled(ctx context.Context, r *result.Recorder) error {
	return f.forkParents(ctx, r, forkPooled, f.forks)
}

// forkCold forks each parent once, with nothing made ahead.
func (f *forkvm) forkCold(ctx context.Context, r *result.Recorder) error {
	return f.forkParents(ctx, r, forkCold, []int{1})
}

func (f *forkvm) forkParents(ctx context.Context, r *result.Recorder, scenario string, forks []int) error {
	measures := map[*parent]func(context.Context, *result.Recorder, result.Key, *vmm.VM) error{
		f.idle: forkToReply, f.ticking: forkToLife,
	}
	for _, p := range []*parent{f.idle, f.ticking} {
		err := p.awake(ctx, func(vm *vmm.VM) error {
			for _, n := range forks {
				if p.ticking && n > mostToLife {
					continue
				}
				if scenario == forkPooled {
					if err := vm.Prepare(ctx, n); err != nil {
						return err
					}
				}
				k := result.Key{Scenario: scenario, N: n, DirtyPages: result.Measured, Depth: 1}
				if err := measures[p](ctx, r, k, vm); err != nil {
					return fmt.Errorf("%d children: %w", n, err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// forkToReply measures from the call of Fork to each child's first reply.
func forkToReply(ctx context.Context, r *result.Recorder, k result.Key, vm *vmm.VM) error {
	begin := time.Now()
	children, err := vm.Fork(ctx, k.N)
	if err != nil {
		return err
	}
	for _, c := range children {
		defer c.Close()
	}
	replied := make([]time.Duration, k.N)
	err = each(k.N, func(i int) error {
		err := reply(ctx, children[i])
		replied[i] = time.Since(begin)
		return err
	})
	if err != nil {
		return err
	}
	for i, c := range children {
		t := c.Timings()
		if i == 0 {
			k.Metric = result.Pause
			r.Time(k, t.Pause, t.DirtyPages)
		}
		addTimes(r, k, 0, t, replied[i], t.DirtyPages)
	}
	return nil
}

// mostToLife is how many children are waited for until they show a sign of
// life: they are started one by one, which Fork does better for many.
const mostToLife = 16

// forkToLife measures from the call of Capture until a process in each child
// that was running in the parent shows a sign of life. Capture and Start do
// what Fork does, and give each child a console where the sign is seen as it
// comes.
func forkToLife(ctx context.Context, r *result.Recorder, k result.Key, vm *vmm.VM) error {
	begin := time.Now()
	image, err := vm.Capture(ctx)
	if err != nil {
		return err
	}
	defer image.Close()
	alive := make([]time.Duration, k.N)
	err = each(k.N, func(i int) (err error) {
		alive[i], err = startToLife(ctx, image, begin)
		return err
	})
	if err != nil {
		return err
	}
	var last time.Duration
	for _, d := range alive {
		k.Metric = result.FirstLife
		r.Time(k, d, image.DirtyPages())
		last = max(last, d)
	}
	k.Metric = result.TimePerChild
	r.Time(k, last/time.Duration(k.N), image.DirtyPages())
	return nil
}

// startToLife starts a machine, closes it when it has shown a sign of life, and
// returns when that was.
func startToLife(ctx context.Context, image *vmm.Image, begin time.Time) (time.Duration, error) {
	console := newLife()
	vm, err := image.Start(ctx, vmm.StartOptions{Console: console})
	if err != nil {
		return 0, err
	}
	defer vm.Close()
	at, err := console.wait(ctx)
	return at.Sub(begin), err
}

// each calls f for 0 to n-1, all at once.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
