package demo

import (
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/vmm"
)

func newReport(parent *vmm.VM, children []*vmm.VM) *Report {
	t := children[0].Timings()
	r := &Report{
		BootMS:     milliseconds(parent.Timings().AgentReady),
		PauseUS:    microseconds(t.Pause),
		DirtyPages: t.DirtyPages,
	}
	for i, c := range children {
		t := c.Timings()
		r.Forks = append(r.Forks, Fork{
			ID:           i + 1,
			StateReadyUS: microseconds(t.StateReady),
			FirstReplyMS: milliseconds(t.AgentReady), // less the exec, which is to come
		})
	}
	return r
}

func microseconds(d time.Duration) float64 { return round(float64(d) / float64(time.Microsecond)) }
func milliseconds(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

// round leaves three decimals: more would be noise.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }

// compare checks what the machines saw first: looks[0] is the parent's, made
// while the children made theirs; before is the parent's from before the fork.
func (r *Report) compare(before result, looks []result, note string) {
	parent := looks[0]
	r.Parent = Parent{ExitCode: parent.code, Counter: parent.count()}
	r.claim(parent.err == nil, "parent: command failed: %v", parent.err)
	r.claim(parent.Note == note, "parent: its file holds %q, not %q", parent.Note, note)
	r.claim(parent.PID == before.PID, "parent: its counter was replaced")
	unique := map[string]string{parent.Unique: "the parent"}
	for i, child := range looks[1:] {
		f := &r.Forks[i]
		name := fmt.Sprintf("child %d", f.ID)
		f.ExitCode, f.Unique = child.code, child.Unique
		f.FirstReplyMS = round(f.FirstReplyMS + milliseconds(child.started))
		f.CounterAtFork = commonTicks(parent.History, child.History)
		if child.err != nil {
			r.claim(false, "%s: command failed: %v", name, child.err)
			continue
		}
		r.claim(child.PID == before.PID, "%s: its counter is not the parent's process", name)
		r.claim(child.Note == note, "%s: did not see the parent's file", name)
		r.claim(f.CounterAtFork >= before.count(), "%s: counter at the fork %d, but the parent had %d before it", name, f.CounterAtFork, before.count())
		r.claim(f.CounterAtFork == r.Forks[0].CounterAtFork, "%s: counter at the fork %d, but %d in child 1", name, f.CounterAtFork, r.Forks[0].CounterAtFork)
		other, taken := unique[child.Unique]
		r.claim(!taken, "%s: drew the same random bytes as %s", name, other)
		unique[child.Unique] = name
	}
}

// compareLater checks what the machines saw after every child had written its
// own file: its own there, and the parent's unchanged; and each counter went
// on, away from all others.
func (r *Report) compareLater(first, second []result, note string) {
	parent := second[0]
	r.Parent.Counter = parent.count()
	r.claim(parent.err == nil, "parent: later: command failed: %v", parent.err)
	r.claim(parent.Note == note, "parent: a child's write reached its file")
	for i, child := range second[1:] {
		f := &r.Forks[i]
		name := fmt.Sprintf("child %d", f.ID)
		f.Counter = child.count()
		if child.err != nil {
			r.claim(false, "%s: later: command failed: %v", name, child.err)
			continue
		}
		r.claim(child.Note == first[i+1].Unique, "%s: its file does not hold what it wrote", name)
		r.claim(child.count() > f.CounterAtFork, "%s: its counter stands still at %d", name, child.count())
		common := commonTicks(parent.History, child.History)
		r.claim(common == f.CounterAtFork, "%s: shares %d ticks with the parent, %d were before the fork", name, common, f.CounterAtFork)
	}
}

// commonTicks is how long two counters were one.
func commonTicks(a, b []byte) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n / tickSize
}

// exitCode is that of a command which failed, -1 if it did not exit.
func exitCode(err error) int {
	if e, ok := errors.AsType[*client.ExitError](err); ok {
		return e.Code
	}
	return -1
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) error {
	fmt.Fprintf(w, "KVM             %s\n", r.KVM)
	fmt.Fprintf(w, "guest kernel    %s\n", r.Kernel)
	fmt.Fprintf(w, "boot            %.1f ms to the agent's first reply\n", r.BootMS)
	fmt.Fprintf(w, "fork            parent paused %.0f µs, %d pages copied once for %d children\n", r.PauseUS, r.DirtyPages, len(r.Forks))
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MACHINE\tEXIT CODE\tCOUNTER AT FORK\tLATER\tITS OWN FILE\tCOULD RUN\tFIRST REPLY")
	fmt.Fprintf(t, "parent\t%d\t\t%d\tunchanged\t\t\n", r.Parent.ExitCode, r.Parent.Counter)
	for _, f := range r.Forks {
		fmt.Fprintf(t, "child %d\t%d\t%d\t%d\t%s\t%.0f µs\t%.1f ms\n", f.ID, f.ExitCode, f.CounterAtFork, f.Counter,
			f.Unique, f.StateReadyUS, f.FirstReplyMS)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(r.claims) == 0 {
		_, err := fmt.Fprintln(w, "\nEach child saw the parent's counter and file as at the fork, and went its own way; the parent carried on.")
		return err
	}
	return nil
}
