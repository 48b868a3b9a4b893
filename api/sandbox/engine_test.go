package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/forkvm/forkvm/api"
)

// rig is an engine whose machines are a world's.
type rig struct {
	*Team
	w       *world
	dir     string
	o       Options
	crashed map[*Engine]bool
}

func newRig(t testing.TB, limits Limits) *rig {
	r := &rig{w: newWorld(t), dir: t.TempDir(), o: Options{Limits: limits}, crashed: map[*Engine]bool{}}
	t.Cleanup(r.w.agents.Wait) // before their directories are removed
	r.open(t)
	return r
}

func (r *rig) open(t testing.TB) {
	t.Helper()
	e, err := open(t.Context(), r.dir, r.o, r.w)
	if err != nil {
		t.Fatal(err)
	}
	r.Team = e.Team("one")
	t.Cleanup(func() {
		// One that crashed may not have noticed yet that its machines are gone,
		// and cannot store that it destroys them.
		if err := e.Close(context.Background(), CloseDestroys); err != nil && !(r.crashed[e] && errors.Is(err, bolterrors.ErrDatabaseNotOpen)) {
			t.Error(err)
		}
	})
}

// crash ends the engine as a crash does: its machines are gone, and nothing more
// is stored.
func (r *rig) crash(t testing.TB) {
	t.Helper()
	r.crashed[r.Engine] = true
	if err := r.db.close(); err != nil {
		t.Fatal(err)
	}
	r.killMachines()
}

func (r *rig) killMachines() {
	r.w.mu.Lock()
	ms := make([]*fakeMachine, 0)
	for m := range r.w.alive {
		ms = append(ms, m)
	}
	r.w.mu.Unlock()
	for _, m := range ms {
		m.die(errors.New("crash"))
	}
}

func (r *rig) create(t testing.TB, s api.Settings) *api.Sandbox {
	t.Helper()
	b, err := r.Create(t.Context(), api.CreateRequest{Settings: s})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// machine is that of a sandbox.
func (r *rig) machine(id string) *fakeMachine {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, _ := r.boxes[id].m.(*fakeMachine)
	return m
}

func wantCode(t testing.TB, err error, code api.Code, words ...string) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Errorf("%v; want %s", err, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not mention %q", err, w)
		}
	}
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestLifeOfASandbox(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	b := r.create(t, api.Settings{Name: "first", Metadata: map[string]string{"a": "1"}, EnvVars: map[string]string{"X": "1"}})
	if b.State != api.Running || b.Name != "first" || b.Template != "base" || b.ParentSandboxID != nil || b.AccessToken == "" || b.StartedAt == nil {
		t.Errorf("a new sandbox: %+v", b)
	}
	r.machine(b.ID).value = 7
	p := must[*api.Sandbox](t)(r.Pause(ctx, b.ID))
	if p.State != api.Paused || p.PausedAt == nil || p.StartedAt != nil || p.AccessToken != b.AccessToken {
		t.Errorf("paused: %+v", p)
	}
	if alive, kept := r.w.left(); alive != 0 || kept != 1 {
		t.Errorf("%d machines, %d stored; want a paused sandbox to be stored and no machine", alive, kept)
	}
	must[*api.Sandbox](t)(r.Pause(ctx, b.ID)) // again
	c := must[*api.Sandbox](t)(r.Resume(ctx, b.ID))
	if c.ID != b.ID || c.State != api.Running || c.AccessToken == b.AccessToken || c.PausedAt != nil {
		t.Errorf("resumed: %+v", c)
	}
	if got := r.machine(b.ID).value; got != 7 {
		t.Errorf("what was resumed has %d, want 7", got)
	}
	again := must[*api.Sandbox](t)(r.Resume(ctx, b.ID))
	if again.AccessToken != c.AccessToken {
		t.Error("a resume of what runs made a new token")
	}
	if _, kept := r.w.left(); kept != 0 {
		t.Errorf("%d stored after the resume", kept)
	}
	if err := r.Destroy(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	_, err := r.Get(ctx, b.ID)
	wantCode(t, err, api.NotFound, b.ID)
	if err := r.Destroy(ctx, b.ID); err != nil {
		t.Errorf("destroyed again: %v", err)
	}
	if alive, kept := r.w.left(); alive != 0 || kept != 0 {
		t.Errorf("%d machines and %d stored are left", alive, kept)
	}
}

func TestForkAndItsLimits(t *testing.T) {
	r := newRig(t, Limits{Memory: 5 * 64 << 20})
	ctx := t.Context()
	b := r.create(t, api.Settings{Metadata: map[string]string{"a": "1"}, EnvVars: map[string]string{"X": "1", "Y": "1"}})
	r.machine(b.ID).value = 3
	f, err := r.Fork(ctx, b.ID, api.ForkRequest{Count: 3, Settings: api.Settings{Name: "kid", EnvVars: map[string]string{"Y": "2"}}})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{b.ID: true, b.AccessToken: true}
	for _, c := range f.Children {
		s := c.Sandbox
		if s == nil || s.State != api.Running || *s.ParentSandboxID != b.ID || s.Name != "kid" || seen[s.ID] || seen[s.AccessToken] ||
			s.EnvVars["X"] != "1" || s.EnvVars["Y"] != "2" || s.Metadata["a"] != "1" || r.machine(s.ID).value != 3 {
			t.Errorf("a child: %+v", s)
			continue
		}
		seen[s.ID], seen[s.AccessToken] = true, true
	}
	_, err = r.Fork(ctx, b.ID, api.ForkRequest{Count: 2})
	wantCode(t, err, api.OutOfCapacity, "MiB")
	if list := must[*api.SandboxPage](t)(r.List(ctx, api.SandboxQuery{})); len(list.Sandboxes) != 4 {
		t.Errorf("%d sandboxes after a fork that was refused", len(list.Sandboxes))
	}
	// A paused sandbox takes no memory, and can be forked while there is some.
	must[*api.Sandbox](t)(r.Pause(ctx, b.ID))
	must[*api.ForkResult](t)(r.Fork(ctx, b.ID, api.ForkRequest{Count: 2}))
	if s := must[*api.Sandbox](t)(r.Get(ctx, b.ID)); s.State != api.Paused {
		t.Errorf("the parent of a fork while it was paused is %s", s.State)
	}
	_, err = r.Resume(ctx, b.ID)
	wantCode(t, err, api.OutOfCapacity)
	if s := must[*api.Sandbox](t)(r.Get(ctx, b.ID)); s.State != api.Paused {
		t.Errorf("after a resume that was refused it is %s", s.State)
	}
}

// TestForkFailsInPart: each child that cannot be made says why, and takes
// nothing.
func TestForkFailsInPart(t *testing.T) {
	r := newRig(t, Limits{})
	b := r.create(t, api.Settings{})
	r.w.startErr = func(k int) error {
		if k == 3 {
			return errors.New("no luck")
		}
		return nil
	}
	f := must[*api.ForkResult](t)(r.Fork(t.Context(), b.ID, api.ForkRequest{Count: 3}))
	var fine, failed int
	for _, c := range f.Children {
		if c.Sandbox != nil {
			fine++
		}
		if c.Error != nil && c.Error.Code == api.InternalError && strings.Contains(c.Error.Message, "no luck") {
			failed++
		}
	}
	if fine != 2 || failed != 1 || r.memory != 3*64<<20 {
		t.Errorf("%d children, %d failed, %d bytes reserved", fine, failed, r.memory)
	}
	r.w.startErr = func(int) error { return errors.New("no luck at all") }
	_, err := r.Fork(t.Context(), b.ID, api.ForkRequest{Count: 2})
	wantCode(t, err, api.InternalError, "no luck at all")
	_, err = r.Create(t.Context(), api.CreateRequest{})
	wantCode(t, err, api.InternalError, "no luck at all")
	if list := must[*api.SandboxPage](t)(r.List(t.Context(), api.SandboxQuery{})); len(list.Sandboxes) != 3 || r.memory != 3*64<<20 {
		t.Errorf("%d sandboxes, %d bytes reserved", len(list.Sandboxes), r.memory)
	}
}

func TestSnapshotsOfALife(t *testing.T) {
	r := newRig(t, Limits{SnapshotsPerTeam: 4, SnapshotsPerSandbox: 3})
	ctx := t.Context()
	timeout := int64(500)
	b := r.create(t, api.Settings{EnvVars: map[string]string{"X": "1"}, TimeoutSeconds: api.Set(timeout), OnTimeout: api.TimeoutPauses})
	other := r.create(t, api.Settings{})
	r.machine(b.ID).value = 5
	s := must[*api.Snapshot](t)(r.CreateSnapshot(ctx, b.ID, api.SnapshotRequest{Name: "mine"}))
	if s.Name != "mine" || s.SandboxID != b.ID || s.Template != "base" {
		t.Errorf("snapshot: %+v", s)
	}
	c := must[*api.Sandbox](t)(r.Create(ctx, api.CreateRequest{FromSnapshot: s.ID, Settings: api.Settings{EnvVars: map[string]string{"Z": "2"}}}))
	if *c.SourceSnapshotID != s.ID || c.EnvVars["X"] != "1" || c.EnvVars["Z"] != "2" || *c.TimeoutSeconds != timeout || c.OnTimeout != api.TimeoutPauses || r.machine(c.ID).value != 5 {
		t.Errorf("made from it: %+v", c)
	}
	never := must[*api.Sandbox](t)(r.Create(ctx, api.CreateRequest{FromSnapshot: s.ID, Settings: api.Settings{TimeoutSeconds: api.Clear[int64]()}}))
	if never.TimeoutSeconds != nil || never.ExpiresAt != nil {
		t.Errorf("made from it without a time-out: %+v", never)
	}
	for range 2 {
		must[*api.Snapshot](t)(r.CreateSnapshot(ctx, b.ID, api.SnapshotRequest{}))
	}
	_, err := r.CreateSnapshot(ctx, b.ID, api.SnapshotRequest{})
	wantCode(t, err, api.TooManySnapshots, "this sandbox")
	must[*api.Snapshot](t)(r.CreateSnapshot(ctx, other.ID, api.SnapshotRequest{}))
	_, err = r.CreateSnapshot(ctx, other.ID, api.SnapshotRequest{})
	wantCode(t, err, api.TooManySnapshots)
	if err := r.DeleteSnapshot(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	_, err = r.Create(ctx, api.CreateRequest{FromSnapshot: s.ID})
	wantCode(t, err, api.NotFound, s.ID)
	must[*api.Snapshot](t)(r.CreateSnapshot(ctx, b.ID, api.SnapshotRequest{}))
	if err := r.Destroy(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	page := must[*api.SnapshotPage](t)(r.Snapshots(ctx, api.SnapshotQuery{SandboxID: b.ID}))
	if len(page.Snapshots) != 3 || !slices.IsSortedFunc(page.Snapshots, func(a, b api.Snapshot) int { return strings.Compare(b.ID, a.ID) }) {
		t.Errorf("%d snapshots of a sandbox that is gone, newest first: %+v", len(page.Snapshots), page.Snapshots)
	}
	renamed := must[*api.Snapshot](t)(r.RenameSnapshot(ctx, page.Snapshots[0].ID, "new name"))
	if renamed.Name != "new name" || renamed.ID != page.Snapshots[0].ID {
		t.Errorf("renamed: %+v", renamed)
	}
}

// TestD08_DestroyDuringSnapshot: the snapshot fails, and leaves nothing.
func TestD08_DestroyDuringSnapshot(t *testing.T) {
	r := newRig(t, Limits{SnapshotsInFlight: 1})
	ctx := t.Context()
	b, other := r.create(t, api.Settings{}), r.create(t, api.Settings{})
	r.w.saving = make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		_, err := r.CreateSnapshot(ctx, b.ID, api.SnapshotRequest{})
		failed <- err
	}()
	<-r.w.saving
	_, err := r.CreateSnapshot(ctx, other.ID, api.SnapshotRequest{})
	wantCode(t, err, api.TooManySnapshotsInFlight)
	if e, _ := errors.AsType[*api.Error](err); e == nil || e.RetryAfter == 0 {
		t.Error("it does not say when to try again")
	}
	if err := r.Destroy(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-failed, api.Gone, "destroyed")
	if alive, kept := r.w.left(); alive != 1 || kept != 0 {
		t.Errorf("%d machines and %d stored are left", alive, kept)
	}
	r.w.mu.Lock()
	r.w.saving = nil
	r.w.mu.Unlock()
	must[*api.Snapshot](t)(r.CreateSnapshot(ctx, other.ID, api.SnapshotRequest{}))
}

// TestD08_FailureLeavesTheSource: a pause or snapshot that fails leaves a sandbox
// that runs, and nothing else.
func TestD08_FailureLeavesTheSource(t *testing.T) {
	r := newRig(t, Limits{})
	b := r.create(t, api.Settings{})
	r.w.saveErr = errors.New("disk broken")
	_, err := r.Pause(t.Context(), b.ID)
	wantCode(t, err, api.InternalError, "disk broken")
	r.w.saveErr = fmt.Errorf("write: %w", syscall.ENOSPC)
	_, err = r.CreateSnapshot(t.Context(), b.ID, api.SnapshotRequest{})
	wantCode(t, err, api.NotEnoughSpace)
	if _, kept := r.w.left(); kept != 0 || len(r.snaps)+len(r.inFlight)+len(r.reserved) != 0 {
		t.Errorf("%d stored; %v %v", kept, r.inFlight, r.reserved)
	}
	if s := must[*api.Sandbox](t)(r.Get(t.Context(), b.ID)); s.State != api.Running || s.StartedAt == nil {
		t.Errorf("after a pause that failed: %+v", s)
	}
	if _, err := r.Processes(t.Context(), b.Access()); err != nil {
		t.Error(err)
	}
}

func TestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Limits{})
		ctx := t.Context()
		gone := r.create(t, api.Settings{TimeoutSeconds: api.Set[int64](10)})
		sleeps := r.create(t, api.Settings{TimeoutSeconds: api.Set[int64](10), OnTimeout: api.TimeoutPauses, AutoDeleteSeconds: api.Set[int64](5)})
		longer := r.create(t, api.Settings{TimeoutSeconds: api.Set[int64](10)})
		if want := gone.StartedAt.Add(10 * time.Second); !gone.ExpiresAt.Equal(want) {
			t.Errorf("it expires at %v, want %v", gone.ExpiresAt, want)
		}
		time.Sleep(5 * time.Second)
		must[*api.Sandbox](t)(r.Update(ctx, longer.ID, api.Patch{TimeoutSeconds: api.Set[int64](10)}))
		time.Sleep(5*time.Second + time.Millisecond)
		synctest.Wait()
		_, err := r.Get(ctx, gone.ID)
		wantCode(t, err, api.NotFound)
		s := must[*api.Sandbox](t)(r.Get(ctx, sleeps.ID))
		if s.State != api.Paused || s.AutoDeleteAt == nil || s.ExpiresAt != nil {
			t.Errorf("after its time-out: %+v", s)
		}
		if s := must[*api.Sandbox](t)(r.Get(ctx, longer.ID)); s.State != api.Running {
			t.Errorf("after its time-out was renewed: %+v", s)
		}
		// Resumed, it has its whole time again, and is not deleted.
		s = must[*api.Sandbox](t)(r.Resume(ctx, sleeps.ID))
		if want := s.StartedAt.Add(10 * time.Second); !s.ExpiresAt.Equal(want) || s.AutoDeleteAt != nil {
			t.Errorf("resumed: %+v", s)
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if s := must[*api.Sandbox](t)(r.Get(ctx, sleeps.ID)); s.State != api.Running {
			t.Errorf("6 s after the resume: %+v", s)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		_, err = r.Get(ctx, sleeps.ID)
		wantCode(t, err, api.NotFound)
		if alive, kept := r.w.left(); alive != 0 || kept != 0 {
			t.Errorf("%d machines and %d stored are left", alive, kept)
		}
		r.Close(ctx, CloseDestroys)
	})
}

// TestMachineEnds: the sandbox has failed, says why, and is listed until it is
// destroyed.
func TestMachineEnds(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	b := r.create(t, api.Settings{})
	r.machine(b.ID).die(errors.New("guest panicked"))
	s := must[*api.Sandbox](t)(r.Wait(ctx, b.ID, api.WaitRequest{States: []api.State{api.Failed}, Timeout: time.Minute}))
	if s.State != api.Failed || !strings.Contains(s.Reason, "guest panicked") {
		t.Errorf("%+v", s)
	}
	_, err := r.Exec(ctx, b.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"true"}}})
	wantCode(t, err, api.Gone, "guest panicked")
	_, err = r.Pause(ctx, b.ID)
	wantCode(t, err, api.Gone)
	if r.memory != 0 {
		t.Errorf("%d bytes are still reserved", r.memory)
	}
	if err := r.Destroy(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	_, err = r.Get(ctx, b.ID)
	wantCode(t, err, api.NotFound)
}

// TestCrash: what was paused or a snapshot is there again, what ran has failed,
// and nothing else is left.
func TestCrash(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	ran, paused := r.create(t, api.Settings{}), r.create(t, api.Settings{Name: "p"})
	r.machine(paused.ID).value = 9
	s := must[*api.Snapshot](t)(r.CreateSnapshot(ctx, ran.ID, api.SnapshotRequest{Name: "s"}))
	must[*api.Sandbox](t)(r.Pause(ctx, paused.ID))
	must[*api.Sandbox](t)(r.Update(ctx, paused.ID, api.Patch{Metadata: map[string]string{"k": "v"}}))
	r.w.kept["orphan"] = fakeStored{label: r.label("sb_x")}
	r.w.kept["another's"] = fakeStored{label: "somebody"}
	r.crash(t)
	r.open(t)
	if got := must[*api.Sandbox](t)(r.Get(ctx, ran.ID)); got.State != api.Failed || got.Reason == "" {
		t.Errorf("what ran: %+v", got)
	}
	got := must[*api.Sandbox](t)(r.Get(ctx, paused.ID))
	if got.State != api.Paused || got.Name != "p" || got.Metadata["k"] != "v" || got.AccessToken != paused.AccessToken {
		t.Errorf("what was paused: %+v", got)
	}
	must[*api.Sandbox](t)(r.Resume(ctx, paused.ID))
	if v := r.machine(paused.ID).value; v != 9 {
		t.Errorf("what was paused has %d, want 9", v)
	}
	must[*api.Sandbox](t)(r.Create(ctx, api.CreateRequest{FromSnapshot: s.ID}))
	if _, ok := r.w.kept["orphan"]; ok {
		t.Error("what no record names is still there")
	}
	if _, ok := r.w.kept["another's"]; !ok {
		t.Error("what is somebody else's was deleted")
	}
	_, err := open(ctx, r.dir, r.o, r.w)
	if !errors.Is(err, ErrLocked) {
		t.Errorf("a second engine in the directory: %v", err)
	}
}

// TestCloseCanPause: what ran goes on in the next engine.
func TestCloseCanPause(t *testing.T) {
	r := newRig(t, Limits{})
	b := r.create(t, api.Settings{})
	r.machine(b.ID).value = 4
	if err := r.Close(t.Context(), ClosePauses); err != nil {
		t.Fatal(err)
	}
	_, err := r.Create(t.Context(), api.CreateRequest{})
	wantCode(t, err, api.Gone)
	r.open(t)
	must[*api.Sandbox](t)(r.Resume(t.Context(), b.ID))
	if v := r.machine(b.ID).value; v != 4 {
		t.Errorf("it has %d, want 4", v)
	}
}

// TestTeamsAreApart: what is another team's does not exist.
func TestTeamsAreApart(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	b := r.create(t, api.Settings{})
	s := must[*api.Snapshot](t)(r.CreateSnapshot(ctx, b.ID, api.SnapshotRequest{}))
	two := r.Engine.Team("two")
	_, err := two.Get(ctx, b.ID)
	wantCode(t, err, api.NotFound)
	_, err = two.Processes(ctx, b.Access())
	wantCode(t, err, api.NotFound)
	_, err = two.Snapshot(ctx, s.ID)
	wantCode(t, err, api.NotFound)
	_, err = two.Create(ctx, api.CreateRequest{FromSnapshot: s.ID})
	wantCode(t, err, api.NotFound)
	if err := errors.Join(two.Destroy(ctx, b.ID), two.DeleteSnapshot(ctx, s.ID)); err != nil {
		t.Error(err)
	}
	must[*api.Sandbox](t)(r.Get(ctx, b.ID))
	must[*api.Snapshot](t)(r.Snapshot(ctx, s.ID))
	_, err = r.Processes(ctx, api.Access{ID: b.ID, Token: "tok_wrong"})
	wantCode(t, err, api.Unauthorized)
}

func TestPagesOfAList(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	var want []string
	for k := range 7 {
		b := r.create(t, api.Settings{Name: "n", Metadata: map[string]string{"even": []string{"yes", "no"}[k%2]}})
		want = append([]string{b.ID}, want...)
	}
	slices.Sort(want)
	slices.Reverse(want)
	var got []string
	q := api.SandboxQuery{Page: api.Page{Limit: 3}}
	for {
		p := must[*api.SandboxPage](t)(r.List(ctx, q))
		for _, s := range p.Sandboxes {
			if s.AccessToken != "" || s.EnvVars != nil {
				t.Errorf("a list shows a secret: %+v", s)
			}
			got = append(got, s.ID)
		}
		if q.Cursor = p.NextCursor; q.Cursor == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("all pages: %v; want %v", got, want)
	}
	for query, n := range map[*api.SandboxQuery]int{
		{Metadata: map[string]string{"even": "yes"}}: 4, {NamePrefix: "x"}: 0, {NamePrefix: "n"}: 7, {States: []api.State{api.Paused}}: 0,
	} {
		if p := must[*api.SandboxPage](t)(r.List(ctx, *query)); len(p.Sandboxes) != n {
			t.Errorf("%+v: %d sandboxes, want %d", query, len(p.Sandboxes), n)
		}
	}
	_, err := r.List(ctx, api.SandboxQuery{Page: api.Page{Cursor: "x"}})
	wantCode(t, err, api.BadRequest, "cursor")
	_, err = r.List(ctx, api.SandboxQuery{Page: api.Page{Limit: 101}})
	wantCode(t, err, api.BadRequest, "limit")
}

func TestEventsOfALife(t *testing.T) {
	r := newRig(t, Limits{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, seen := make(chan struct{}), make(chan api.Event, 64)
	go func() {
		_ = r.Events(ctx, api.EventQuery{}, func() { close(ready) }, func(e api.Event) error { seen <- e; return nil })
	}()
	<-ready
	b := r.create(t, api.Settings{EnvVars: map[string]string{"SECRET": "x"}})
	must[*api.Sandbox](t)(r.Pause(ctx, b.ID))
	must[*api.Sandbox](t)(r.Resume(ctx, b.ID))
	must[*api.ForkResult](t)(r.Fork(ctx, b.ID, api.ForkRequest{}))
	if err := r.Destroy(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	var got []string
	for range 8 {
		e := <-seen
		if e.Sandbox == nil || e.Sandbox.AccessToken != "" || e.Sandbox.EnvVars != nil {
			t.Errorf("an event's sandbox: %+v", e.Sandbox)
		}
		got = append(got, strings.TrimPrefix(string(e.Type), "sandbox."))
	}
	if s := strings.Join(got, " "); s != "created ready paused resumed created ready forked destroyed" {
		t.Error(s)
	}
	var again []api.Event
	_ = r.Events(ctx, api.EventQuery{After: 3, SandboxID: b.ID}, nil, func(e api.Event) error {
		if again = append(again, e); e.Type == api.SandboxDestroyed {
			return errors.New("enough")
		}
		return nil
	})
	if len(again) != 3 || again[0].Seq != 4 {
		t.Errorf("after 3: %+v", again)
	}
}

// TestUseResumes: a command or a file call resumes a paused sandbox, which keeps
// its token; what reads or changes its record does not, nor does a bad request.
func TestUseResumes(t *testing.T) {
	needProgram(t, "sh")
	r := newRig(t, Limits{})
	ctx := t.Context()
	b := r.create(t, api.Settings{EnvVars: map[string]string{"OWN": "yes"}})
	must[*api.Sandbox](t)(r.Pause(ctx, b.ID))
	must[*api.Sandbox](t)(r.Update(ctx, b.ID, api.Patch{Metadata: map[string]string{}}))
	must[*api.Stats](t)(r.Stats(ctx, b.ID))
	_, err := r.Exec(ctx, b.Access(), api.ExecRequest{})
	wantCode(t, err, api.BadRequest, "argv")
	_, err = r.Stat(ctx, b.Access(), "relative")
	wantCode(t, err, api.BadRequest, "path")
	if s := must[*api.Sandbox](t)(r.Get(ctx, b.ID)); s.State != api.Paused {
		t.Errorf("it is %s, and nobody used it", s.State)
	}
	e := must[*api.ExecResult](t)(r.Exec(ctx, b.Access(), api.ExecRequest{Command: api.Command{
		Argv: []string{"sh", "-c", "echo $FROM_TEMPLATE $OWN $CALL"}, EnvVars: map[string]string{"CALL": "yes"},
	}}))
	if string(e.Stdout) != "yes yes yes\n" {
		t.Errorf("the environment of a command: %q", e.Stdout)
	}
	if s := must[*api.Sandbox](t)(r.Get(ctx, b.ID)); s.State != api.Running || s.AccessToken != b.AccessToken {
		t.Errorf("used, it is %s", s.State)
	}
}

// TestPauseCutsCommands: they fail, and say why.
func TestPauseCutsCommands(t *testing.T) {
	needProgram(t, "sleep")
	r := newRig(t, Limits{})
	ctx := t.Context()
	b := r.create(t, api.Settings{})
	started, ended := make(chan struct{}), make(chan error, 1)
	run := func() {
		_, err := r.Run(ctx, b.Access(), api.StartRequest{Command: api.Command{Argv: []string{"sleep", "1000"}}},
			api.Streams{Started: func(api.Process) { started <- struct{}{} }})
		ended <- err
	}
	begun := func() {
		t.Helper()
		go run()
		select {
		case <-started:
		case err := <-ended:
			t.Fatalf("it did not start: %v", err)
		}
	}
	begun()
	must[*api.Sandbox](t)(r.Pause(ctx, b.ID))
	wantCode(t, <-ended, api.Conflict, "paused")
	must[*api.Sandbox](t)(r.Resume(ctx, b.ID))
	b = must[*api.Sandbox](t)(r.Get(ctx, b.ID))
	begun()
	if err := r.Destroy(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-ended, api.Gone, "destroyed")
}
