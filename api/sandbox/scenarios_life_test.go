package sandbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
)

// lingering is a world whose machines take their time to end: close tells, and
// waits.
type lingering struct {
	*world
	closing, goOn chan struct{}
}

// newLingering is a rig with such a world, in which there is memory for one
// sandbox.
func newLingering(t *testing.T) (*rig, *lingering) {
	l := &lingering{newWorld(t), make(chan struct{}), make(chan struct{})}
	r := &rig{w: l.world, dir: t.TempDir(), o: Options{Limits: Limits{Memory: 64 << 20}}}
	t.Cleanup(l.agents.Wait)
	e := must[*Engine](t)(open(t.Context(), r.dir, r.o, l))
	r.Team = e.Team("one")
	t.Cleanup(func() {
		if err := e.Close(context.Background(), CloseDestroys); err != nil {
			t.Error(err)
		}
	})
	return r, l
}

// ends lets one machine end that has begun to.
func (l *lingering) ends(t testing.TB) {
	t.Helper()
	select {
	case l.goOn <- struct{}{}:
	case <-time.After(10 * time.Second):
		t.Fatal("no machine is being ended")
	}
}

// soon is what comes out of a channel.
func soon[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatal("nothing happens")
	}
	return v
}

func (l *lingering) template(ctx context.Context, name string) (image, shape, error) {
	img, s, err := l.world.template(ctx, name)
	return lingeringImage{img, l}, s, err
}

func (l *lingering) load(ctx context.Context, stored string) (image, error) {
	img, err := l.world.load(ctx, stored)
	return lingeringImage{img, l}, err
}

type lingeringImage struct {
	image
	l *lingering
}

func (i lingeringImage) start(ctx context.Context, hostnames []string) ([]machine, []error) {
	ms, errs := i.image.start(ctx, hostnames)
	for k, m := range ms {
		if m != nil {
			ms[k] = &lingeringMachine{machine: m, l: i.l}
		}
	}
	return ms, errs
}

type lingeringMachine struct {
	machine
	l    *lingering
	once sync.Once
}

func (m *lingeringMachine) close() {
	m.once.Do(func() {
		test := m.l.t.Context()
		select {
		case m.l.closing <- struct{}{}:
			select {
			case <-m.l.goOn:
			case <-test.Done():
			}
		case <-test.Done():
		}
		m.machine.close()
	})
}

// TestScenarioB20NothingIsReusedTooEarly: what a machine takes is nobody else's
// before the machine has ended, however the sandbox came to lose it.
func TestScenarioB20NothingIsReusedTooEarly(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(t *testing.T, r *rig, id string) error // returns when the machine has ended
		gone bool
	}{
		"destroyed": {func(t *testing.T, r *rig, id string) error { return r.Destroy(t.Context(), id) }, true},
		"paused": {func(t *testing.T, r *rig, id string) error {
			_, err := r.Pause(t.Context(), id)
			return err
		}, false},
		"by itself": {func(t *testing.T, r *rig, id string) error {
			r.killMachines()
			_, err := r.Wait(t.Context(), id, api.WaitRequest{States: []api.State{api.Failed}, Timeout: time.Minute})
			return err
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r, l := newLingering(t)
			first := r.create(t, api.Settings{})
			lost := make(chan error, 1)
			go func() { lost <- c.lose(t, r, first.ID) }()
			soon(t, l.closing)
			_, err := r.Create(t.Context(), api.CreateRequest{})
			wantCode(t, err, api.OutOfCapacity)
			if c.gone {
				_, err := r.Get(t.Context(), first.ID)
				wantCode(t, err, api.NotFound)
			}
			l.ends(t)
			if err := soon(t, lost); err != nil {
				t.Fatal(err)
			}
			second := r.create(t, api.Settings{})
			if second.ID == first.ID || hostname(second.ID) == hostname(first.ID) {
				t.Errorf("the id %s was used again", first.ID)
			}
			go func() { lost <- r.Destroy(t.Context(), second.ID) }()
			soon(t, l.closing)
			l.ends(t)
			if err := soon(t, lost); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestScenarioB20FailedStartsToo: neither is what a machine takes whose sandbox
// could not be made, or resumed, although the machine could be started.
func TestScenarioB20FailedStartsToo(t *testing.T) {
	r, l := newLingering(t)
	fails := func(do func() error) {
		t.Helper()
		r.withoutDatabase(t, func() {
			failed := make(chan error, 1)
			go func() { failed <- do() }()
			soon(t, l.closing)
			_, err := r.Create(t.Context(), api.CreateRequest{})
			wantCode(t, err, api.OutOfCapacity)
			l.ends(t)
			wantCode(t, soon(t, failed), api.InternalError)
		})
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.memory != 0 {
			t.Errorf("%d bytes are still reserved", r.memory)
		}
	}
	create := func() error { _, err := r.Create(t.Context(), api.CreateRequest{}); return err }
	fails(create)
	b := r.create(t, api.Settings{})
	paused := make(chan error, 1)
	go func() { _, err := r.Pause(t.Context(), b.ID); paused <- err }()
	soon(t, l.closing)
	l.ends(t)
	if err := soon(t, paused); err != nil {
		t.Fatal(err)
	}
	fails(func() error { _, err := r.Resume(t.Context(), b.ID); return err })
	if s := must[*api.Sandbox](t)(r.Get(t.Context(), b.ID)); s.State != api.Paused {
		t.Errorf("after a resume that failed it is %s", s.State)
	}
}

// TestScenarioB20IDsAreNew: no id, token or host name is ever given twice, not
// after a crash either.
func TestScenarioB20IDsAreNew(t *testing.T) {
	r := newRig(t, Limits{})
	r.db.bolt.NoSync = true
	seen := map[string]bool{}
	add := func(s *api.Sandbox) {
		t.Helper()
		for _, one := range []string{s.ID, s.AccessToken, hostname(s.ID)} {
			if seen[one] {
				t.Fatalf("%s was given twice", one)
			}
			seen[one] = true
		}
	}
	for range 3 {
		for range 20 {
			b := r.create(t, api.Settings{})
			add(b)
			f := must[*api.ForkResult](t)(r.Fork(t.Context(), b.ID, api.ForkRequest{Count: 3}))
			for _, c := range f.Children {
				add(c.Sandbox)
				if err := r.Destroy(t.Context(), c.Sandbox.ID); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Destroy(t.Context(), b.ID); err != nil {
				t.Fatal(err)
			}
		}
		r.crash(t)
		r.open(t)
		r.db.bolt.NoSync = true
	}
}

// TestScenarioB16ForkPastTheBudgetIsRefused: a fork for which there is no memory
// is refused before anything is captured, and leaves nothing.
func TestScenarioB16ForkPastTheBudgetIsRefused(t *testing.T) {
	r := newRig(t, Limits{Memory: 3 * 64 << 20})
	b := r.create(t, api.Settings{})
	before := r.events.last()
	_, err := r.Fork(t.Context(), b.ID, api.ForkRequest{Count: 3})
	wantCode(t, err, api.OutOfCapacity, "192")
	if e, _ := errors.AsType[*api.Error](err); e == nil || e.RetryAfter == 0 {
		t.Errorf("%v does not say when to try again", err)
	}
	if n := r.events.last() - before; n != 0 {
		t.Errorf("%d events of a fork that was refused", n)
	}
	r.holds(t, b.ID)
	for _, count := range []int{2, 1} { // there is room for two, and then for none
		_, err := r.Fork(t.Context(), b.ID, api.ForkRequest{Count: count})
		if fits := count == 2; fits != (err == nil) {
			t.Errorf("%d more: %v", count, err)
		}
	}
	page := must[*api.SandboxPage](t)(r.List(t.Context(), api.SandboxQuery{}))
	for _, s := range page.Sandboxes {
		if s.ID != b.ID {
			if err := r.Destroy(t.Context(), s.ID); err != nil {
				t.Error(err)
			}
		}
	}
	r.holds(t, b.ID)
}

// holds checks that the engine has these sandboxes, which run, and no more of
// anything.
func (r *rig) holds(t *testing.T, ids ...string) {
	t.Helper()
	var stored []string
	if err := read(r.db, sandboxBucket, func(id string, _ sandboxRecord) { stored = append(stored, id) }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(ids)
	alive, kept := r.w.left()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.boxes) != len(ids) || !slices.Equal(stored, ids) || alive != len(ids) || kept != 0 || r.memory != int64(len(ids))*64<<20 {
		t.Errorf("%d sandboxes, records of %v, %d machines, %d stored, %d MiB reserved; want %v",
			len(r.boxes), stored, alive, kept, r.memory>>20, ids)
	}
}

// TestScenarioB29EveryStateIsListed has a sandbox in each state at once. All are
// listed, but for what is being destroyed, which is only if it is asked for.
func TestScenarioB29EveryStateIsListed(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	in := map[api.State]string{}
	for _, s := range allStates {
		if s != api.Creating {
			in[s] = r.create(t, api.Settings{Name: string(s)}).ID
		}
	}
	for _, s := range []api.State{api.Paused, api.Resuming, api.Destroying} {
		must[*api.Sandbox](t)(r.Pause(ctx, in[s]))
	}
	r.machine(in[api.Failed]).die(errors.New("guest panicked"))
	must[*api.Sandbox](t)(r.Wait(ctx, in[api.Failed], api.WaitRequest{States: []api.State{api.Failed}, Timeout: time.Minute}))

	// Four that stay as they are until the end.
	var underWay sync.WaitGroup
	goOn := make(chan struct{})
	r.w.mu.Lock()
	r.w.saving, r.w.startErr = make(chan struct{}), func(int) error { <-goOn; return errors.New("no luck") }
	r.w.mu.Unlock()
	underWay.Go(func() { _, _ = r.Pause(ctx, in[api.Pausing]) })
	soon(t, r.w.saving)
	underWay.Go(func() { _, _ = r.Resume(ctx, in[api.Resuming]) })
	r.awaitState(t, in[api.Resuming], api.Resuming)
	underWay.Go(func() { _, _ = r.Resume(ctx, in[api.Destroying]) })
	r.awaitState(t, in[api.Destroying], api.Resuming)
	underWay.Go(func() { _ = r.Destroy(ctx, in[api.Destroying]) })
	r.awaitState(t, in[api.Destroying], api.Destroying)
	created := r.events.last()
	underWay.Go(func() { _, _ = r.Create(ctx, api.CreateRequest{Settings: api.Settings{Name: string(api.Creating)}}) })
	enough := errors.New("enough")
	_ = r.Events(ctx, api.EventQuery{After: created}, nil, func(e api.Event) error { in[api.Creating] = e.SandboxID; return enough })

	listed := func(states ...api.State) map[api.State]string {
		t.Helper()
		got := map[api.State]string{}
		for _, s := range must[*api.SandboxPage](t)(r.List(ctx, api.SandboxQuery{States: states})).Sandboxes {
			got[s.State] = s.ID
		}
		return got
	}
	for s, id := range in {
		if got := listed(s); len(got) != 1 || got[s] != id {
			t.Errorf("%s: %v; want %s", s, got, id)
		}
		if got, want := listed()[s], id; (got == want) == (s == api.Destroying) {
			t.Errorf("without a filter the one that is %s is %q", s, got)
		}
	}
	if got := listed(api.Paused, api.Failed); len(got) != 2 || got[api.Paused] != in[api.Paused] || got[api.Failed] != in[api.Failed] {
		t.Errorf("paused or failed: %v", got)
	}
	_, err := r.List(ctx, api.SandboxQuery{States: []api.State{"deleted"}})
	wantCode(t, err, api.BadRequest, "state")
	close(goOn)
	r.w.goOn <- struct{}{}
	underWay.Wait()
	if got := listed(api.Destroying); len(got) != 0 {
		t.Errorf("being destroyed for ever: %v", got)
	}
	_, err = r.Get(ctx, in[api.Destroying])
	wantCode(t, err, api.NotFound)
}

// awaitState waits until a sandbox is in a state.
func (r *rig) awaitState(t *testing.T, id string, state api.State) {
	t.Helper()
	r.mu.Lock()
	b := r.boxes[id]
	r.mu.Unlock()
	for deadline := time.After(10 * time.Second); ; {
		r.mu.Lock()
		is, changed := b.rec.Sandbox.State, b.changed
		r.mu.Unlock()
		if is == state {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%s is %s; want %s", id, is, state)
		}
	}
}

// TestScenarioB30Rename renames what there is, in every state and while it is
// being captured. Ids stay, and names are those of after a crash too.
func TestScenarioB30Rename(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	rename := func(id, name string) {
		t.Helper()
		if s := must[*api.Sandbox](t)(r.Update(ctx, id, api.Patch{Name: &name})); s.ID != id || s.Name != name {
			t.Errorf("renamed: %+v", s)
		}
	}
	runs, sleeps := r.create(t, api.Settings{Name: "old"}), r.create(t, api.Settings{Name: "old"})
	must[*api.Sandbox](t)(r.Pause(ctx, sleeps.ID))
	r.w.mu.Lock()
	r.w.saving = make(chan struct{})
	r.w.mu.Unlock()
	taken := make(chan *api.Snapshot, 1)
	go func() {
		s, err := r.CreateSnapshot(ctx, runs.ID, api.SnapshotRequest{Name: "old"})
		if err != nil {
			t.Error(err)
		}
		taken <- s
	}()
	soon(t, r.w.saving) // of a sandbox that runs meanwhile
	if s := must[*api.Sandbox](t)(r.Get(ctx, runs.ID)); s.State != api.Running {
		t.Errorf("while a snapshot of it is taken it is %s", s.State)
	}
	rename(runs.ID, "new runs")
	rename(sleeps.ID, "new sleeps")
	r.w.goOn <- struct{}{}
	snap := soon(t, taken)
	r.w.mu.Lock()
	r.w.saving = nil
	r.w.mu.Unlock()
	must[*api.Snapshot](t)(r.RenameSnapshot(ctx, snap.ID, "new snapshot"))
	must[*api.Sandbox](t)(r.Pause(ctx, runs.ID))
	for range 2 {
		for prefix, n := range map[string]int{"old": 0, "new": 2, "new s": 1} {
			if p := must[*api.SandboxPage](t)(r.List(ctx, api.SandboxQuery{NamePrefix: prefix})); len(p.Sandboxes) != n {
				t.Errorf("%d sandboxes are called %s…, want %d", len(p.Sandboxes), prefix, n)
			}
		}
		page := must[*api.SnapshotPage](t)(r.Snapshots(ctx, api.SnapshotQuery{NamePrefix: "new"}))
		if len(page.Snapshots) != 1 || page.Snapshots[0].ID != snap.ID || page.Snapshots[0].Name != "new snapshot" {
			t.Errorf("the snapshot is %+v", page.Snapshots)
		}
		r.crash(t)
		r.open(t)
	}
	_, err := r.RenameSnapshot(ctx, runs.ID, "x")
	wantCode(t, err, api.NotFound)
	_, err = r.RenameSnapshot(ctx, snap.ID, "a\nb")
	wantCode(t, err, api.BadRequest, "name")
}
