package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/forkvm/forkvm/vmm"
)

// phases says where the time of cold boots goes, from the start of the call.
type phases struct {
	boots [][]phase
}

type phase struct {
	name string
	at   time.Duration
}

// add asks a machine that has booted, begun at begin.
func (p *phases) add(ctx context.Context, vm *vmm.VM, begin time.Time, reply time.Duration) error {
	info, err := vm.Agent().Hello(ctx)
	if err != nil {
		return err
	}
	zero, err := guestZero(ctx, vm, begin)
	if err != nil {
		return err
	}
	t, b := vm.Timings(), info.Boot
	p.boots = append(p.boots, []phase{
		{"KVM's objects made, memory mapped", t.Create},
		{"kernel and initramfs loaded, guest entered", t.StateReady},
		{"kernel done, agent's main begins", zero + b.Start},
		{"file systems mounted", zero + b.Mounted},
		{"modules loaded", zero + b.Modules},
		{"agent listens", zero + b.Listening},
		{"agent confirmed its identity", t.AgentReady},
		{"first reply", reply},
	})
	return nil
}

// guestZero is when the guest's clock was zero, to 10 ms. It begins late: a
// kernel that starts has no clock yet that counts all of the time.
func guestZero(ctx context.Context, vm *vmm.VM, begin time.Time) (time.Duration, error) {
	before := time.Since(begin)
	out, err := vm.Agent().FS().WithContext(ctx).ReadFile("/proc/uptime")
	if err != nil {
		return 0, err
	}
	now := (before + time.Since(begin)) / 2
	var seconds float64
	if _, err := fmt.Sscan(string(out), &seconds); err != nil {
		return 0, fmt.Errorf("uptime %q: %w", out, err)
	}
	return now - time.Duration(seconds*float64(time.Second)), nil
}

// print shows medians.
func (p *phases) print(w io.Writer) {
	if len(p.boots) == 0 {
		return
	}
	fmt.Fprintf(w, "\nwhere a cold boot's time goes, medians of %d, in ms\n\n", len(p.boots))
	for i, first := range p.boots[0] {
		var all []time.Duration
		for _, b := range p.boots {
			all = append(all, b[i].at)
		}
		slices.Sort(all)
		fmt.Fprintf(w, "%10.2f  %s\n", float64(all[len(all)/2].Microseconds())/1000, first.name)
	}
}
