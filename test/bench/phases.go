package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/forkvm/forkvm/vmm"
)

// phases says where the time of cold boots goes: on the host from the start
// of the call, in the guest from the start of its kernel's clock.
type phases struct {
	boots [][]phase
}

type phase struct {
	name string
	at   time.Duration
}

// add asks a machine that has booted.
func (p *phases) add(ctx context.Context, vm *vmm.VM, reply time.Duration) error {
	info, err := vm.Agent().Hello(ctx)
	if err != nil {
		return err
	}
	t, b := vm.Timings(), info.Boot
	p.boots = append(p.boots, []phase{
		{"host: KVM's objects made, memory mapped", t.Create},
		{"host: kernel and initramfs loaded (duration)", t.Load},
		{"host: first entry into the guest", t.StateReady},
		{"guest: kernel done, agent's first instruction", b.Start},
		{"guest: file systems mounted", b.Mounted},
		{"guest: modules loaded", b.Modules},
		{"guest: agent listens", b.Listening},
		{"host: agent confirmed its identity", t.AgentReady},
		{"host: first reply", reply},
	})
	return nil
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
