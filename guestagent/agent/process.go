package agent

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"os"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// keptFinished is how many background processes stay listed after their end,
// with their output.
const keptFinished = 32

// process is a command that was started.
type process struct {
	id      uint64
	pid     int
	args    []proto.Text
	started time.Time
	exited  <-chan syscall.WaitStatus
	stdin   *input    // nil: no input
	outs    []*output // stdout and stderr, or the terminal
	pty     *os.File  // nil: no terminal
	cgroup  *cgroup   // nil: none

	detached atomic.Bool
	timedOut atomic.Bool
	done     chan struct{} // closed when exit is set
	exit     proto.Exit

	pumps sync.WaitGroup
	over  chan struct{} // closed when the command has ended; nil: no pump runs
	flow  chan struct{} // closed when the pumps may deliver; nil: at once
}

// pumpLater has the command's output read from now on, but delivered when run is
// called.
func (p *process) pumpLater() {
	p.flow = make(chan struct{})
	for _, o := range p.outs {
		o.flow = p.flow
	}
	p.pump()
}

// pump has the command's output moved from now on.
func (p *process) pump() {
	p.over = make(chan struct{})
	for _, o := range p.outs {
		p.pumps.Go(func() { onGrownStack(func() { o.pump(p.over) }) })
	}
}

// discardOutput ends the pumps of a process that is not to be run.
func (p *process) discardOutput() {
	for _, o := range p.outs {
		o.connect(nil)
	}
	close(p.flow)
	p.endPumps()
}

// endPumps returns when all that a command that has ended wrote was moved.
func (p *process) endPumps() {
	close(p.over)
	for _, o := range p.outs {
		_ = o.file.SetReadDeadline(time.Unix(1, 0)) // ends the pump, see there
	}
	p.pumps.Wait()
}

// hasExited reports whether the command has ended before run was called.
func (p *process) hasExited() bool { return len(p.exited) > 0 }

// run moves the command's streams until it has ended and all its output was
// delivered, then sets exit.
func (p *process) run(timeout, idle time.Duration, kill func()) {
	expire := func() {
		p.timedOut.Store(true)
		kill()
	}
	if timeout > 0 {
		defer time.AfterFunc(timeout, expire).Stop()
	}
	if idle > 0 {
		t := time.AfterFunc(idle, expire)
		defer t.Stop() // when no pump is left that would start it again
		for _, o := range p.outs {
			o.printed = func() { t.Reset(idle) }
		}
	}
	if p.flow != nil {
		close(p.flow)
	} else {
		p.pump()
	}
	if p.stdin != nil {
		go p.stdin.feed()
	}
	ws := <-p.exited
	timedOut := p.timedOut.Load() && ws.Signaled()
	p.endPumps()
	if p.stdin != nil {
		p.stdin.stop()
	}
	p.exit = proto.Exit{Code: ws.ExitStatus(), TimedOut: timedOut}
	if ws.Signaled() {
		p.exit.Signal = int(ws.Signal())
	}
	close(p.done)
}

// describe returns the process as a list shows it.
func (p *process) describe() proto.Process {
	d := proto.Process{
		ID: p.id, PID: p.pid, Args: p.args, Started: p.started,
		Detached: p.detached.Load(), TTY: p.pty != nil,
	}
	select {
	case <-p.done:
		d.Exit = &p.exit
	default:
	}
	return d
}

// table is the processes of an agent.
type table struct {
	max int

	mu       sync.Mutex
	lastID   uint64
	running  int
	procs    map[uint64]*process
	finished []uint64 // background processes that ended, oldest first
}

func newTable(max int) *table {
	return &table{max: max, procs: make(map[uint64]*process)}
}

// reserve makes room for one more running process.
func (t *table) reserve() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running >= t.max {
		return &proto.Error{Code: proto.CodeBusy, Message: fmt.Sprintf("%d commands are running already", t.running)}
	}
	t.running++
	return nil
}

// release takes back a reservation whose process did not start.
func (t *table) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
}

// add lists a process, whose room was reserved, and gives it its id.
func (t *table) add(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastID++
	p.id = t.lastID
	t.procs[p.id] = p
}

// ended frees the room of a process that ended. Background processes stay
// listed until enough others have ended after them.
func (t *table) ended(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	if !p.detached.Load() {
		delete(t.procs, p.id)
		return
	}
	t.finished = append(t.finished, p.id)
	if over := len(t.finished) - keptFinished; over > 0 {
		for _, id := range t.finished[:over] {
			delete(t.procs, id)
		}
		t.finished = slices.Delete(t.finished, 0, over)
	}
}

// detach has a process outlive its client. It reports false if it has ended,
// and is not listed any more.
func (t *table) detach(p *process) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.procs[p.id] != p {
		return false
	}
	p.detached.Store(true)
	return true
}

func (t *table) find(id uint64) (*process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, ok := t.procs[id]
	if !ok {
		return nil, &proto.Error{Code: proto.CodeNoProcess, Message: fmt.Sprintf("no process %d", id)}
	}
	return p, nil
}

// all returns the processes by id.
func (t *table) all() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	ps := make([]*process, 0, len(t.procs))
	for _, p := range t.procs {
		ps = append(ps, p)
	}
	slices.SortFunc(ps, func(a, b *process) int { return int(int64(a.id) - int64(b.id)) })
	return ps
}
