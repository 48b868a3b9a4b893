package sandbox

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/sandbox/internal/guest"
)

// counted is a context that counts what waits for its end.
type counted struct {
	context.Context
	done    chan struct{}
	waiting atomic.Int64
}

func (c *counted) Done() <-chan struct{} { return c.done }

func (c *counted) AfterFunc(func()) func() bool {
	c.waiting.Add(1)
	return func() bool { c.waiting.Add(-1); return true }
}

// TestRefusedIsForgotten: of sandboxes for which there was no room nothing is
// left that grows with each refusal.
func TestRefusedIsForgotten(t *testing.T) {
	r := newRig(t, Limits{SandboxesPerTeam: 2})
	life := &counted{Context: context.Background(), done: make(chan struct{})}
	r.life = life
	b := r.create(t, api.Settings{})
	_, err := r.Fork(t.Context(), b.ID, api.ForkRequest{Count: 50})
	wantCode(t, err, api.TooManySandboxes)
	if n := life.waiting.Load(); n != 1 {
		t.Errorf("%d sandboxes are known to the engine's context; want the one that there is", n)
	}
}

// TestChildDoesNotHoldItsParent: in a chain of forks, each of which is destroyed
// when it has a child, none is kept in memory by its child.
func TestChildDoesNotHoldItsParent(t *testing.T) {
	r := newRig(t, Limits{})
	b := r.create(t, api.Settings{})
	f := must[*api.ForkResult](t)(r.Fork(t.Context(), b.ID, api.ForkRequest{}))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.boxes[f.Children[0].Sandbox.ID].rec.Sandbox.ParentSandboxID == &r.boxes[b.ID].id {
		t.Error("the child's record points into its parent's")
	}
}

// TestOverdueAtOpen: what is to be deleted as soon as the engine is open is not
// deleted before.
func TestOverdueAtOpen(t *testing.T) {
	r := newRig(t, Limits{})
	var ids []string
	for range 20 {
		b := r.create(t, api.Settings{AutoDeleteSeconds: api.Set[int64](3600)})
		must[*api.Sandbox](t)(r.Pause(t.Context(), b.ID))
		long := now().Add(-2 * time.Hour)
		if err := r.db.updateSandbox(b.ID, func(s *sandboxRecord) { s.Sandbox.PausedAt = &long }); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, b.ID)
	}
	r.crash(t)
	r.open(t)
	for _, id := range ids {
		_, err := r.Wait(t.Context(), id, api.WaitRequest{States: []api.State{api.Failed}, Timeout: time.Minute})
		if !errors.Is(err, api.NotFound) && !errors.Is(err, api.Gone) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// withoutDatabase calls f while nothing can be stored.
func (r *rig) withoutDatabase(t *testing.T, f func()) {
	t.Helper()
	path := r.db.bolt.Path()
	if err := r.db.close(); err != nil {
		t.Fatal(err)
	}
	f()
	d, err := openDatabase(path)
	if err != nil {
		t.Fatal(err)
	}
	r.db.bolt = d.bolt
}

// TestDestroyCanBeTriedAgain: while the record of a sandbox cannot be deleted,
// what was stored of it stays, and so does the duty to destroy it.
func TestDestroyCanBeTriedAgain(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	b := r.create(t, api.Settings{})
	must[*api.Sandbox](t)(r.Pause(ctx, b.ID))
	r.withoutDatabase(t, func() {
		wantCode(t, r.Destroy(ctx, b.ID), api.InternalError)
		if _, kept := r.w.left(); kept != 1 {
			t.Errorf("%d stored; the record still names one", kept)
		}
	})
	_, err := r.Get(ctx, b.ID)
	wantCode(t, err, api.NotFound)
	if err := r.Destroy(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	if _, kept := r.w.left(); kept != 0 {
		t.Errorf("%d stored are left", kept)
	}
	r.crash(t)
	r.open(t)
	_, err = r.Get(ctx, b.ID)
	wantCode(t, err, api.NotFound)
}

// TestDeleteSnapshotCanBeTriedAgain is the same for a snapshot.
func TestDeleteSnapshotCanBeTriedAgain(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	b := r.create(t, api.Settings{})
	s := must[*api.Snapshot](t)(r.CreateSnapshot(ctx, b.ID, api.SnapshotRequest{}))
	r.withoutDatabase(t, func() { wantCode(t, r.DeleteSnapshot(ctx, s.ID), api.InternalError) })
	must[*api.Sandbox](t)(r.Create(ctx, api.CreateRequest{FromSnapshot: s.ID}))
	if err := r.DeleteSnapshot(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	r.crash(t)
	r.open(t)
	_, err := r.Snapshot(ctx, s.ID)
	wantCode(t, err, api.NotFound)
	if _, kept := r.w.left(); kept != 0 {
		t.Errorf("%d stored are left", kept)
	}
}

// TestCloseKeepsWhatIsComplete: a snapshot whose record is stored when the
// engine is closed is there afterwards, whole.
func TestCloseKeepsWhatIsComplete(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	sb := r.create(t, api.Settings{})
	b := must[*box](t)(r.find(sb.ID))
	if err := r.reserveSnapshot(b); err != nil {
		t.Fatal(err)
	}
	img := must[image](t)(r.freeze(ctx, b))
	rec := snapshotRecord{Team: "one", Snapshot: api.Snapshot{ID: api.NewID(api.SnapshotPrefix, now()), SandboxID: b.id}}
	var err error
	if rec.Stored, _, err = img.save(ctx, r.label(rec.Snapshot.ID)); err != nil {
		t.Fatal(err)
	}
	if err := r.db.putSnapshot(rec); err != nil {
		t.Fatal(err)
	}
	b.stop(errClosed)
	if err := r.db.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.tookSnapshot(ctx, b, rec, nil); err != nil {
		t.Errorf("the snapshot that was complete: %v", err)
	}
	r.killMachines()
	r.mu.Lock()
	delete(r.boxes, b.id) // the machine ended with the engine, which cannot note it
	r.memory = 0
	r.mu.Unlock()
	r.open(t)
	must[*api.Sandbox](t)(r.Create(ctx, api.CreateRequest{FromSnapshot: rec.Snapshot.ID}))
}

// TestAutoDeleteSurvivesAFailedResume: the time that passes while a resume is
// tried in vain counts.
func TestAutoDeleteSurvivesAFailedResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Limits{})
		b := r.create(t, api.Settings{AutoDeleteSeconds: api.Set[int64](5)})
		must[*api.Sandbox](t)(r.Pause(t.Context(), b.ID))
		r.w.startErr = func(int) error { time.Sleep(10 * time.Second); return errors.New("no luck") }
		_, err := r.Resume(t.Context(), b.ID)
		wantCode(t, err, api.InternalError, "no luck")
		time.Sleep(time.Second)
		synctest.Wait()
		_, err = r.Get(t.Context(), b.ID)
		wantCode(t, err, api.NotFound)
		r.Close(t.Context(), CloseDestroys)
	})
}

// TestTimeStopsWhilePausing: a sandbox that is being paused when its time is up
// is paused; if it cannot be, its time is up.
func TestTimeStopsWhilePausing(t *testing.T) {
	for _, broken := range []error{nil, errors.New("disk broken")} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, Limits{})
			r.w.saving = make(chan struct{})
			b := r.create(t, api.Settings{TimeoutSeconds: api.Set[int64](10)})
			time.Sleep(9 * time.Second)
			paused := make(chan error, 1)
			go func() {
				_, err := r.Pause(t.Context(), b.ID)
				paused <- err
			}()
			<-r.w.saving
			time.Sleep(5 * time.Second)
			r.w.mu.Lock()
			r.w.saveErr = broken
			r.w.mu.Unlock()
			select {
			case r.w.goOn <- struct{}{}:
			case err := <-paused:
				t.Errorf("the pause was cut short: %v", err)
				paused <- err
			}
			err := <-paused
			synctest.Wait()
			s, gone := r.Get(t.Context(), b.ID)
			if broken == nil {
				if err != nil || gone != nil || s.State != api.Paused {
					t.Errorf("%v, %v: %+v; want it paused", err, gone, s)
				}
			} else {
				wantCode(t, err, api.InternalError, "disk broken")
				wantCode(t, gone, api.NotFound)
			}
			r.Close(t.Context(), CloseDestroys)
		})
	}
}

// TestMachineEndsWhilePausing: what is stored says the same as the sandbox.
func TestMachineEndsWhilePausing(t *testing.T) {
	r := newRig(t, Limits{})
	r.w.saving = make(chan struct{})
	ctx := t.Context()
	b := r.create(t, api.Settings{})
	paused := make(chan error, 1)
	go func() {
		_, err := r.Pause(ctx, b.ID)
		paused <- err
	}()
	<-r.w.saving
	r.machine(b.ID).die(errors.New("guest panicked"))
	r.storedState(t, b.ID, api.Failed)
	r.w.goOn <- struct{}{}
	wantCode(t, <-paused, api.Gone, "guest panicked")
	r.storedState(t, b.ID, api.Failed)
	if _, kept := r.w.left(); kept != 0 {
		t.Errorf("%d stored are left", kept)
	}
}

// storedState waits until the record of a sandbox is of a state.
func (r *rig) storedState(t *testing.T, id string, want api.State) {
	t.Helper()
	var state api.State
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); runtime.Gosched() {
		err := read(r.db, sandboxBucket, func(k string, s sandboxRecord) {
			if k == id {
				state = s.Sandbox.State
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if state == want {
			return
		}
	}
	t.Errorf("the record says %s, want %s", state, want)
}

// TestCloseDuringDestroy: a sandbox that is being destroyed is none that Close
// fails to pause.
func TestCloseDuringDestroy(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	sb := r.create(t, api.Settings{})
	b := must[*box](t)(r.find(sb.ID))
	<-b.turn
	destroyed, closed := make(chan error, 1), make(chan error, 1)
	go func() { destroyed <- r.Destroy(ctx, b.id) }()
	<-b.life.Done()
	go func() { closed <- r.Close(ctx, ClosePauses) }()
	for isClosed := false; !isClosed; {
		r.mu.Lock()
		isClosed = r.closed
		r.mu.Unlock()
	}
	b.giveTurn()
	if err := errors.Join(<-destroyed, <-closed); err != nil {
		t.Error(err)
	}
}

// TestCloseStoresFailures: why a sandbox has failed is known to the next engine,
// also if it could not be stored before this one was to end.
func TestCloseStoresFailures(t *testing.T) {
	for _, how := range []OnClose{CloseDestroys, ClosePauses} {
		r := newRig(t, Limits{})
		sb := r.create(t, api.Settings{})
		b := must[*box](t)(r.find(sb.ID))
		writing := must[*bbolt.Tx](t)(r.db.bolt.Begin(true)) // nobody else does meanwhile
		r.machine(b.id).die(errors.New("guest panicked"))
		must[*api.Sandbox](t)(r.Wait(t.Context(), b.id, api.WaitRequest{States: []api.State{api.Failed}, Timeout: time.Minute}))
		closed := make(chan error, 1)
		go func() { closed <- r.Close(context.Background(), how) }()
		<-b.life.Done()
		if err := errors.Join(writing.Rollback(), <-closed); err != nil {
			t.Fatal(err)
		}
		r.open(t)
		if s := must[*api.Sandbox](t)(r.Get(t.Context(), b.id)); !strings.Contains(s.Reason, "guest panicked") {
			t.Errorf("%s: it has failed since %s", how, s.Reason)
		}
	}
}

// TestEventsAreBounded: however large records are, what is kept of the past is
// not.
func TestEventsAreBounded(t *testing.T) {
	h := newEvents()
	for range 200 {
		h.add("one", api.Event{Sandbox: &api.Sandbox{Metadata: map[string]string{"k": strings.Repeat("x", 1<<20)}}})
	}
	size := 0
	for _, ev := range h.kept {
		size += len(ev.Sandbox.Metadata["k"])
	}
	if size == 0 || size > 64<<20 || h.last() != 200 {
		t.Errorf("%d bytes are kept of %d events", size, h.last())
	}
}

// TestNothingIsMissedAfterLost: what happens while a watcher is told that events
// are lost is none of those.
func TestNothingIsMissedAfterLost(t *testing.T) {
	r := newRig(t, Limits{})
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := r.Events(ctx, api.EventQuery{After: 7}, nil, func(e api.Event) error {
		if e.Type == api.EventsLost {
			r.create(t, api.Settings{})
			return nil
		}
		if e.Type != api.SandboxCreated || e.Seq != 1 {
			t.Errorf("the first event: %+v", e)
		}
		return enough
	})
	if !errors.Is(err, enough) {
		t.Error(err)
	}
}

// TestUpdateWhilePausing: a time-out that is taken away while a pause is tried in
// vain does not come.
func TestUpdateWhilePausing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Limits{})
		r.w.saving, r.w.saveErr = make(chan struct{}), errors.New("disk broken")
		b := r.create(t, api.Settings{TimeoutSeconds: api.Set[int64](10)})
		paused := make(chan error, 1)
		go func() {
			_, err := r.Pause(t.Context(), b.ID)
			paused <- err
		}()
		<-r.w.saving
		s := must[*api.Sandbox](t)(r.Update(t.Context(), b.ID, api.Patch{TimeoutSeconds: api.Clear[int64]()}))
		if s.ExpiresAt != nil {
			t.Errorf("without a time-out it expires at %v", s.ExpiresAt)
		}
		r.w.goOn <- struct{}{}
		wantCode(t, <-paused, api.InternalError, "disk broken")
		time.Sleep(time.Minute)
		synctest.Wait()
		if s, err := r.Get(t.Context(), b.ID); err != nil || s.State != api.Running {
			t.Errorf("%+v, %v; want it to run", s, err)
		}
		r.Close(t.Context(), CloseDestroys)
	})
}

// TestLostToAPauseBefore: who lost a machine to a pause is told so, even if the
// sandbox runs again by then.
func TestLostToAPauseBefore(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	b := r.create(t, api.Settings{})
	i := must[*inside](t)(r.enter(ctx, b.Access(), nil))
	must[*api.Sandbox](t)(r.Pause(ctx, b.ID))
	must[*api.Sandbox](t)(r.Resume(ctx, b.ID))
	wantCode(t, i.because(guest.ErrLost), api.Conflict, "paused")
}

// TestCloseWaitsForSnapshots: when the engine is closed nobody writes for it any
// more, and none of its timers runs.
func TestCloseWaitsForSnapshots(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	sb := r.create(t, api.Settings{AutoDeleteSeconds: api.Set[int64](3600)})
	must[*api.Sandbox](t)(r.Pause(ctx, sb.ID))
	b := must[*box](t)(r.find(sb.ID))
	r.w.saving = make(chan struct{})
	go r.CreateSnapshot(ctx, sb.ID, api.SnapshotRequest{})
	<-r.w.saving
	r.w.mu.Lock() // what is being written takes its time
	closed := make(chan error, 1)
	go func() { closed <- r.Close(ctx, ClosePauses) }()
	<-r.life.Done()
	r.w.mu.Unlock()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.inFlight) != 0 {
		t.Error("a snapshot is still being taken")
	}
	if b.timer.Stop() {
		t.Error("a timer was still running")
	}
}

// TestFailedForkIsOneWrite: however many children there are not, everybody else
// waits for a write or two.
func TestFailedForkIsOneWrite(t *testing.T) {
	r := newRig(t, Limits{})
	writes := func() int {
		tx := must[*bbolt.Tx](t)(r.db.bolt.Begin(false))
		defer tx.Rollback()
		return tx.ID()
	}
	b := r.create(t, api.Settings{})
	r.w.startErr = func(int) error { return errors.New("no luck") }
	before := writes()
	_, err := r.Fork(t.Context(), b.ID, api.ForkRequest{Count: 50})
	wantCode(t, err, api.InternalError, "no luck")
	if n := writes() - before; n > 2 {
		t.Errorf("%d writes for children that could not be started", n)
	}
	r.machine(b.ID).die(errors.New("guest panicked"))
	r.storedState(t, b.ID, api.Failed)
	before = writes()
	_, err = r.Fork(t.Context(), b.ID, api.ForkRequest{Count: 50})
	wantCode(t, err, api.Gone)
	if n := writes() - before; n > 0 {
		t.Errorf("%d writes for children of what has failed", n)
	}
	if err := read(r.db, sandboxBucket, func(id string, _ sandboxRecord) {
		if id != b.ID {
			t.Errorf("there is a record of %s", id)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestDestroyOvertakes: who is interrupted by the destruction of a sandbox is
// told of that, and not that some context has ended.
func TestDestroyOvertakes(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	for name, do := range map[string]func(id string) error{
		"pause": func(id string) error { _, err := r.Pause(ctx, id); return err },
		"snapshot": func(id string) error {
			_, err := r.CreateSnapshot(ctx, id, api.SnapshotRequest{})
			return err
		},
	} {
		b := r.create(t, api.Settings{})
		r.w.mu.Lock()
		r.w.saving = make(chan struct{})
		r.w.mu.Unlock()
		ended := make(chan error, 1)
		go func() { ended <- do(b.ID) }()
		<-r.w.saving
		if err := r.Destroy(ctx, b.ID); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, api.Gone) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDestroyEndsTheStart destroys sandboxes whose machines do not come up.
func TestDestroyEndsTheStart(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	parent := r.create(t, api.Settings{})
	r.w.mu.Lock()
	r.w.starting = make(chan struct{})
	r.w.mu.Unlock()
	for name, do := range map[string]func() error{
		"create": func() error { _, err := r.Create(ctx, api.CreateRequest{Template: "base"}); return err },
		"fork":   func() error { _, err := r.Fork(ctx, parent.ID, api.ForkRequest{Count: 3}); return err },
	} {
		ended := make(chan error, 1)
		go func() { ended <- do() }()
		<-r.w.starting
		page := must[*api.SandboxPage](t)(r.List(ctx, api.SandboxQuery{States: []api.State{api.Creating}}))
		var wg sync.WaitGroup
		for _, b := range page.Sandboxes { // together: those of a fork are waited for
			wg.Go(func() {
				if err := r.Destroy(ctx, b.ID); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if err := <-ended; !errors.Is(err, api.Gone) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if alive, _ := r.w.left(); alive != 1 || r.memory != 64<<20 {
		t.Errorf("%d machines and %d bytes", alive, r.memory)
	}
}

// TestPausedHasGivenBack: whoever waits until a sandbox is paused finds the memory
// that it had: by then its machine has ended, which takes time.
func TestPausedHasGivenBack(t *testing.T) {
	r := newRig(t, Limits{Memory: 64 << 20})
	ctx := t.Context()
	b := r.create(t, api.Settings{})
	var once sync.Once
	r.w.closing = func() {
		once.Do(func() {
			if s, err := r.Get(ctx, b.ID); err != nil || s.State != api.Pausing {
				t.Errorf("its machine is there, and it is %+v, %v", s, err)
			}
			if _, err := r.Create(ctx, api.CreateRequest{}); !errors.Is(err, api.OutOfCapacity) {
				t.Errorf("another was created: %v", err)
			}
		})
	}
	paused := make(chan error, 1)
	go func() {
		_, err := r.Pause(ctx, b.ID)
		paused <- err
	}()
	must[*api.Sandbox](t)(r.Wait(ctx, b.ID, api.WaitRequest{States: []api.State{api.Paused}, Timeout: time.Minute}))
	r.create(t, api.Settings{})
	if err := <-paused; err != nil {
		t.Error(err)
	}
}
