package sandbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/forkvm/forkvm/api"
)

// Stats implements [api.Service]. It waits neither for the turn of the sandbox
// nor for a guest that is halted.
func (t *Team) Stats(ctx context.Context, id string) (*api.Stats, error) {
	for {
		b, err := t.find(id)
		if err != nil {
			return nil, err
		}
		s, err := t.statsNow(ctx, b)
		if !errors.Is(err, errOtherState) {
			return s, err
		}
	}
}

// errOtherState is why a question to the guest was given up.
var errOtherState = errors.New("the state has changed")

// statsNow is Stats for a sandbox as long as it is in one state.
func (t *Team) statsNow(ctx context.Context, b *box) (*api.Stats, error) {
	t.mu.Lock()
	m, changed := b.m, b.changed
	s := &api.Stats{SandboxID: b.id, State: b.rec.Sandbox.State, StoredBytes: b.rec.StoredBytes}
	t.mu.Unlock()
	if m == nil {
		return s, nil
	}
	l, err := t.look(ctx, m)
	if err == nil {
		u := l.usage()
		s.MemoryPrivateBytes, s.MemorySharedBytes, s.DiskPrivateBytes, s.DiskSharedBytes = u.memoryOwn, u.memoryShared, u.diskOwn, u.diskShared
		if s.State == api.Running { // one that is halted to be stored answers nobody
			s.Processes, err = countProcesses(ctx, m, changed)
		}
	}
	switch {
	case err == nil:
		return s, nil
	case isClosed(changed) || isClosed(m.done()) && b.changes(ctx, changed):
		return nil, errOtherState
	}
	return nil, t.lostOr(b, m, outer(err, "stats"))
}

// changes waits for the state in which a sandbox is that has lost its machine, and
// tells whether that came.
func (b *box) changes(ctx context.Context, changed <-chan struct{}) bool {
	select {
	case <-changed:
		return true
	case <-b.life.Done():
	case <-ctx.Done():
	}
	return false
}

// countProcesses asks the guest, until changed is closed.
func countProcesses(ctx context.Context, m machine, changed <-chan struct{}) (n int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-changed:
			cancel()
		case <-ctx.Done():
		}
	}()
	list, err := m.agent().Processes(ctx)
	for _, p := range list {
		if !p.Exited {
			n++
		}
	}
	return n, err
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// look looks at what a machine takes, when few others are looked at: it takes
// some of a CPU's time.
func (e *Engine) look(ctx context.Context, m machine) (look, error) {
	select {
	case e.looks <- struct{}{}:
		defer func() { <-e.looks }()
		return m.look(ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// lookAt looks at machines, and calls f with what it sees of each, of some at the
// same time. No more wait for look than there is room for: who asks about one
// machine does not wait for all of these.
func (e *Engine) lookAt(ctx context.Context, machines []machine, f func(k int, l look, err error)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(cap(e.looks), len(machines)) {
		wg.Go(func() {
			for k := int(next.Add(1)) - 1; k < len(machines); k = int(next.Add(1)) - 1 {
				l, err := e.look(ctx, machines[k])
				f(k, l, err)
			}
		})
	}
	wg.Wait()
}

// Sharing implements [api.Service]. Calls take turns: what is known of machines
// whose memory is in many pieces takes some itself, and time to compare.
func (t *Team) Sharing(ctx context.Context, q api.SharingQuery) (*api.Sharing, error) {
	running, leftOut, err := t.running(q.SandboxIDs)
	if err != nil {
		return nil, err
	}
	select {
	case t.comparing <- struct{}{}:
		defer func() { <-t.comparing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	machines := make([]machine, len(running))
	for k, r := range running {
		machines[k] = r.m
	}
	looks, errs := make([]look, len(running)), make([]error, len(running))
	t.lookAt(ctx, machines, func(k int, l look, err error) { looks[k], errs[k] = l, err })
	s := &api.Sharing{Sandboxes: []api.SandboxSharing{}, Pairs: []api.SharingPair{}, LeftOut: leftOut}
	var seen []look
	for k, r := range running {
		if errs[k] != nil {
			if t.hasMachine(r) {
				return nil, outer(errs[k], "sharing")
			}
			continue // it was paused or destroyed meanwhile, or has ended
		}
		u := looks[k].usage()
		seen = append(seen, looks[k])
		s.Sandboxes = append(s.Sandboxes, api.SandboxSharing{
			SandboxID: r.b.id, MemoryBytes: u.memory, MemoryPrivateBytes: u.memoryOwn, MemorySharedBytes: u.memoryShared,
			DiskPrivateBytes: u.diskOwn, DiskSharedBytes: u.diskShared,
		})
	}
	s.Pairs, err = pairs(ctx, s.Sandboxes, seen)
	return s, err
}

// pairs compares each with each.
func pairs(ctx context.Context, all []api.SandboxSharing, looks []look) ([]api.SharingPair, error) {
	found := []api.SharingPair{}
	for i := range all {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		for j := i + 1; j < len(all); j++ {
			if memory, disk := looks[i].with(looks[j]); memory+disk > 0 {
				found = append(found, api.SharingPair{SandboxIDs: [2]string{all[i].SandboxID, all[j].SandboxID}, MemoryBytes: memory, DiskBytes: disk})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b api.SharingPair) int {
		return cmp.Or(cmp.Compare(b.MemoryBytes, a.MemoryBytes), cmp.Compare(b.DiskBytes, a.DiskBytes))
	})
	return found, nil
}

// runningBox is a sandbox, and the machine that it had at one moment.
type runningBox struct {
	b *box
	m machine
}

// running are the sandboxes of the team that have a machine, those of ids if
// there are any, newest first; and how many were too many.
func (t *Team) running(ids []string) (list []runningBox, leftOut int, err error) {
	if len(ids) > api.MaxSharing {
		return nil, 0, api.Errorf(api.BadRequest, "sandbox_id: %d of them, at most %d are compared", len(ids), api.MaxSharing)
	}
	for _, id := range ids {
		if _, err := t.find(id); err != nil {
			return nil, 0, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, b := range t.boxes {
		if b.team == t.name && b.m != nil && (len(ids) == 0 || slices.Contains(ids, id)) {
			list = append(list, runningBox{b, b.m})
		}
	}
	slices.SortFunc(list, func(a, b runningBox) int { return cmp.Compare(b.b.id, a.b.id) })
	n := min(len(list), api.MaxSharing)
	return list[:n], len(list) - n, nil
}

func (e *Engine) hasMachine(r runningBox) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return r.b.m == r.m && r.b.life.Err() == nil && !isClosed(r.m.done())
}
