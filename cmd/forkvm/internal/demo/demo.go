// Package demo forks a running machine and proves that it did.
package demo

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/vmm"
)

// program is this program in a machine whose agent it is.
const program = "/init"

// lookTimeout bounds each look at a machine; its counter may have stopped.
const lookTimeout = time.Minute

// Report is what the demo found. Its JSON form is the output of 'forkvm demo
// --json'.
type Report struct {
	KVM        string  `json:"kvm"`         // flavor of the host's KVM
	Kernel     string  `json:"kernel"`      // release of the guest's kernel
	BootMS     float64 `json:"boot_ms"`     // from the start to the agent's first reply
	PauseUS    float64 `json:"pause_us"`    // how long the parent stood still for the fork
	DirtyPages int64   `json:"dirty_pages"` // pages that the fork had to copy
	Forks      []Fork  `json:"forks"`
	Parent     Parent  `json:"parent"`

	claims []error
}

// Fork is one child.
type Fork struct {
	ID            int     `json:"id"`        // from 1
	ExitCode      int     `json:"exit_code"` // of the command that ran in it
	CounterAtFork int     `json:"counter_at_fork"`
	Unique        string  `json:"unique"`         // random bytes that it made itself
	StateReadyUS  float64 `json:"state_ready_us"` // until it could run
	FirstReplyMS  float64 `json:"first_reply_ms"` // until its agent answered an exec

	Counter int `json:"-"` // later
}

// Parent is the machine that was forked.
type Parent struct {
	ExitCode int `json:"exit_code"` // of the command that ran in it meanwhile
	Counter  int `json:"counter"`   // after the fork
}

// Err is every claim that does not hold, nil if all do.
func (r *Report) Err() error { return errors.Join(r.claims...) }

// claim notes that a claim of the demo does not hold.
func (r *Report) claim(holds bool, format string, args ...any) {
	if !holds {
		r.claims = append(r.claims, fmt.Errorf(format, args...))
	}
}

// host is a machine as the demo sees it.
type host struct{ vm *vmm.VM }

// command prepares this program to run [Guest] in the machine.
func (h host) command(ctx context.Context, args ...string) *client.Cmd {
	cmd := h.vm.CommandContext(ctx, program)
	cmd.Args = arguments(args...)
	cmd.Timeout = lookTimeout
	return cmd
}

// result is how a look at a machine went.
type result struct {
	sighting
	code    int           // exit code
	started time.Duration // until the agent answered that it has started the command
	err     error
}

// Run starts a counter in the machine vm, whose agent is this very program,
// forks it n times, looks at all of them at once, and closes the children. An
// error is a failure to do so; [Report.Err] says whether what was
// seen is as it should be. Each step is told to progress.
func Run(ctx context.Context, vm *vmm.VM, n int, progress func(string)) (*Report, error) {
	parent := host{vm}
	note := hex.EncodeToString(randomBytes())
	if err := parent.prepare(ctx, note); err != nil {
		return nil, err
	}
	before := parent.look(ctx, "0")
	if before.err != nil {
		return nil, fmt.Errorf("demo: parent: %w", before.err)
	}
	progress(fmt.Sprintf("a process in it counts in memory, now at %d; forking %d children", before.count(), n))
	children, err := vm.Fork(ctx, n)
	if err != nil {
		return nil, err
	}
	defer closeAll(children)
	progress("running a command in every child and in the parent at once")
	hosts := []host{parent}
	for _, c := range children {
		hosts = append(hosts, host{c})
	}
	first := lookAll(ctx, hosts, func(i int) []string {
		if i == 0 {
			return []string{"0"}
		}
		return []string{"0", "write"}
	})
	r := newReport(vm, children)
	r.compare(before, first, note)
	second := lookAll(ctx, hosts, func(i int) []string {
		return []string{fmt.Sprint(first[i].count())}
	})
	r.compareLater(first, second, note)
	return r, nil
}

// prepare writes the file and starts the counter.
func (h host) prepare(ctx context.Context, note string) error {
	if err := h.vm.Agent().FS().WithContext(ctx).WriteFile(notePath, []byte(note), 0o644); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if out, err := h.command(ctx, "start").CombinedOutput(); err != nil {
		return fmt.Errorf("demo: start the counter: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// look runs a look in the machine.
func (h host) look(ctx context.Context, args ...string) (r result) {
	cmd := h.command(ctx, append([]string{"look"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begin := time.Now()
	if r.err = cmd.Start(); r.err != nil {
		r.code = -1
		return r
	}
	r.started = time.Since(begin)
	if r.err = cmd.Wait(); r.err != nil {
		r.code = exitCode(r.err)
		r.err = fmt.Errorf("%w: %s", r.err, bytes.TrimSpace(stderr.Bytes()))
		return r
	}
	r.err = json.Unmarshal(stdout.Bytes(), &r.sighting)
	return r
}

func lookAll(ctx context.Context, hosts []host, args func(i int) []string) []result {
	results := make([]result, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() { results[i] = h.look(ctx, args(i)...) })
	}
	wg.Wait()
	return results
}

func closeAll(vms []*vmm.VM) {
	var wg sync.WaitGroup
	for _, vm := range vms {
		wg.Go(func() { vm.Close() })
	}
	wg.Wait()
}
