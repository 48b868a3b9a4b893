package vmm

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
)

// The benchmarks of this file measure what a person waits for: from the call
// of Fork until the first command in the child has ended and its output is
// here.

// samples are durations of one part.
type samples []time.Duration

// quantile returns a value that share p of the samples do not exceed.
func (s samples) quantile(p float64) time.Duration {
	slices.Sort(s)
	return s[min(int(p*float64(len(s))), len(s)-1)]
}

// parts are the samples of each part by name.
type parts map[string]samples

func (p parts) add(name string, d time.Duration) { p[name] = append(p[name], d) }

func (p parts) report(b *testing.B) {
	for name, s := range p {
		b.ReportMetric(float64(s.quantile(0.50).Microseconds()), name+"-p50-µs")
		b.ReportMetric(float64(s.quantile(0.99).Microseconds()), name+"-p99-µs")
	}
	b.ReportMetric(0, "ns/op") // says nothing: it has Close and the parent's settling
}

// foreign is a program of the guest's that is not one of the agent's commands,
// though the same file: it has to be loaded, and exits with an error.
const foreign = "/tmp/foreign"

// settleTime is how long a machine is left alone before it is forked, as one
// that people fork from has been.
const settleTime = 500 * time.Millisecond

// warmParent is a machine that has run commands and is idle.
func warmParent(b *testing.B) *VM {
	vm := minimal.fork(b)
	reply(b, vm, "cp", "/init", foreign)
	for range 10 {
		reply(b, vm, "echo", "hello")
		reply(b, vm, foreign)
	}
	time.Sleep(settleTime)
	// What its first capture copies is not what a fork costs.
	closeVM(b, forkOne(b, vm))
	return vm
}

func forkOne(b *testing.B, vm *VM) *VM {
	children, err := vm.Fork(b.Context(), 1)
	if err != nil {
		b.Fatal(err)
	}
	return children[0]
}

func reply(b *testing.B, vm *VM, name string, arg ...string) {
	_, err := vm.CommandContext(b.Context(), name, arg...).Output()
	if _, ok := errors.AsType[*client.ExitError](err); err != nil && !(ok && name == foreign) {
		b.Errorf("%s %q: %v", name, arg, err)
	}
}

// BenchmarkFirstReply forks a warm machine once an iteration. The parts:
// ready is until the vCPUs could run, identity from then until the child's
// agent has confirmed its identity, exec the first command after that, total
// all three; second is one more command. The command is one of the guest's own
// or, under foreign, a program that it has to load.
func BenchmarkFirstReply(b *testing.B) {
	for _, bench := range []struct {
		name    string
		command []string
	}{
		{"own", []string{"echo", "hello"}},
		{"foreign", []string{foreign}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			vm := warmParent(b)
			p := parts{}
			for b.Loop() {
				begin := time.Now()
				child := forkOne(b, vm)
				confirmed := time.Now()
				reply(b, child, bench.command[0], bench.command[1:]...)
				answered := time.Now()
				reply(b, child, bench.command[0], bench.command[1:]...)
				p.add("second", time.Since(answered))
				t := child.Timings()
				p.add("pause", t.Pause)
				p.add("ready", t.StateReady)
				p.add("identity", confirmed.Sub(begin)-t.StateReady)
				p.add("exec", answered.Sub(confirmed))
				p.add("total", answered.Sub(begin))
				closeVM(b, child)
			}
			p.report(b)
		})
	}
}

// BenchmarkFirstReplyOf100 forks 100 children at once and runs a command in
// each: identity is until all are returned, total until all have answered.
func BenchmarkFirstReplyOf100(b *testing.B) {
	vm := warmParent(b)
	p := parts{}
	for b.Loop() {
		begin := time.Now()
		children, err := vm.Fork(b.Context(), 100)
		if err != nil {
			b.Fatal(err)
		}
		p.add("identity", time.Since(begin))
		var wg sync.WaitGroup
		for _, c := range children {
			wg.Go(func() { reply(b, c, "echo", "hello") })
		}
		wg.Wait()
		p.add("total", time.Since(begin))
		for _, c := range children {
			wg.Go(func() { closeVM(b, c) })
		}
		wg.Wait()
	}
	p.report(b)
}
