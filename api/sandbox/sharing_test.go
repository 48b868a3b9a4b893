package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkvm/forkvm/api"
)

// standstill is of a machine that can be halted: then it answers nobody.
type standstill struct {
	mu    sync.Mutex
	still chan struct{} // guarded by mu: closed when it goes on; nil unless it is halted
	asked chan struct{} // if not nil, who dials while it is halted tells
}

func (s *standstill) halt(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.still == nil && ctx.Err() == nil {
		s.still = make(chan struct{})
	}
	return ctx.Err()
}

func (s *standstill) proceed(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.still != nil {
		close(s.still)
		s.still = nil
	}
	return nil
}

// awake waits as long as it is halted, and the machine lives.
func (s *standstill) awake(ctx, life context.Context) error {
	s.mu.Lock()
	still, asked := s.still, s.asked
	s.mu.Unlock()
	if still == nil {
		return nil
	}
	if asked != nil {
		select {
		case asked <- struct{}{}:
		case <-ctx.Done():
		}
	}
	select {
	case <-still:
		return nil
	case <-life.Done():
		return net.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fake is the machine of a sandbox.
func (r *rig) fake(id string) *fakeMachine {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.boxes[id].m.(*fakeMachine)
}

// TestStatsAtOnce: what a sandbox takes is told while it is being paused and when
// it is, and by who began to ask before.
func TestStatsAtOnce(t *testing.T) {
	r := newRig(t, Limits{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b := r.create(t, api.Settings{})
	m := r.fake(b.ID)

	m.asked = make(chan struct{})
	if err := m.halt(ctx); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		s   *api.Stats
		err error
	}
	before := make(chan answer, 1)
	go func() {
		s, err := r.Stats(ctx, b.ID)
		before <- answer{s, err}
	}()
	<-m.asked // of a guest that does not answer

	r.w.saving = make(chan struct{})
	paused := make(chan error, 1)
	go func() {
		_, err := r.Pause(ctx, b.ID)
		paused <- err
	}()
	<-r.w.saving
	want := api.Stats{SandboxID: b.ID, State: api.Pausing, MemoryPrivateBytes: 1, MemorySharedBytes: 2, DiskPrivateBytes: 3, DiskSharedBytes: 4}
	if s := must[*api.Stats](t)(r.Stats(ctx, b.ID)); *s != want {
		t.Errorf("while it is being paused: %+v", s)
	}
	if a := <-before; a.err != nil || *a.s != want {
		t.Errorf("of who asked before: %+v, %v", a.s, a.err)
	}
	r.w.goOn <- struct{}{}
	if err := <-paused; err != nil {
		t.Fatal(err)
	}
	if s := must[*api.Stats](t)(r.Stats(ctx, b.ID)); *s != (api.Stats{SandboxID: b.ID, State: api.Paused, StoredBytes: 4096}) {
		t.Errorf("paused: %+v", s)
	}
}

// TestSharing compares sandboxes that have something in common, and others.
func TestSharing(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	var ids []string
	for range 5 {
		ids = append(ids, r.create(t, api.Settings{}).ID)
	}
	slices.Sort(ids) // which is by time, to the millisecond
	stranger := r.Engine.Team("two")
	other := must[*api.Sandbox](t)(stranger.Create(ctx, api.CreateRequest{Template: "base"}))
	for _, id := range ids[3:] {
		r.fake(id).value = 1
	}
	must[*api.Sandbox](t)(r.Pause(ctx, ids[2]))

	pair := func(newer, older string) api.SharingPair {
		return api.SharingPair{SandboxIDs: [2]string{newer, older}, MemoryBytes: 2, DiskBytes: 4}
	}
	check := func(q api.SharingQuery, boxes []string, pairs ...api.SharingPair) {
		t.Helper()
		s := must[*api.Sharing](t)(r.Sharing(ctx, q))
		var got []string
		for _, b := range s.Sandboxes {
			got = append(got, b.SandboxID)
			if b.MemoryBytes != 64<<20 || b.MemoryPrivateBytes != 1 || b.MemorySharedBytes != 2 || b.DiskPrivateBytes != 3 || b.DiskSharedBytes != 4 {
				t.Errorf("%+v", b)
			}
		}
		if !slices.Equal(got, boxes) || !slices.Equal(s.Pairs, pairs) || s.Pairs == nil || s.Sandboxes == nil || s.LeftOut != 0 {
			t.Errorf("%v and %v (%d left out); want %v and %v", got, s.Pairs, s.LeftOut, boxes, pairs)
		}
	}
	check(api.SharingQuery{}, []string{ids[4], ids[3], ids[1], ids[0]}, pair(ids[4], ids[3]), pair(ids[1], ids[0]))
	check(api.SharingQuery{SandboxIDs: []string{ids[0], ids[2], ids[4], ids[1], ids[0]}}, []string{ids[4], ids[1], ids[0]}, pair(ids[1], ids[0]))
	check(api.SharingQuery{SandboxIDs: ids[2:3]}, nil)

	_, err := r.Sharing(ctx, api.SharingQuery{SandboxIDs: []string{ids[0], other.ID}})
	wantCode(t, err, api.NotFound, other.ID)
	_, err = r.Sharing(ctx, api.SharingQuery{SandboxIDs: []string{"x"}})
	wantCode(t, err, api.NotFound, "x")
	_, err = r.Sharing(ctx, api.SharingQuery{SandboxIDs: make([]string, api.MaxSharing+1)})
	wantCode(t, err, api.BadRequest, "sandbox_id")
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.Sharing(ctx, api.SharingQuery{}); !errors.Is(err, context.Canceled) {
		t.Errorf("when nobody waits for it: %v", err)
	}
}

// TestSharingOfMany: the newest are compared, and it is said how many are not.
func TestSharingOfMany(t *testing.T) {
	r := newRig(t, Limits{Memory: 1 << 40})
	first := r.create(t, api.Settings{})
	for range 2 {
		f := must[*api.ForkResult](t)(r.Fork(t.Context(), first.ID, api.ForkRequest{Count: 60}))
		for _, c := range f.Children {
			if c.Error != nil {
				t.Fatal(c.Error)
			}
		}
	}
	s := must[*api.Sharing](t)(r.Sharing(t.Context(), api.SharingQuery{}))
	if len(s.Sandboxes) != 100 || len(s.Pairs) != 4950 || s.LeftOut != 21 {
		t.Errorf("%d sandboxes, %d pairs, %d left out", len(s.Sandboxes), len(s.Pairs), s.LeftOut)
	}
	// Of those made in one millisecond any may come first.
	newest := must[*api.SandboxPage](t)(r.List(t.Context(), api.SandboxQuery{Page: api.Page{Limit: 100}}))
	for k, b := range newest.Sandboxes {
		if s.Sandboxes[k].SandboxID != b.ID {
			t.Fatalf("the %d. is %s, not %s: they are not the newest, newest first", k, s.Sandboxes[k].SandboxID, b.ID)
		}
	}
	rest := must[*api.SandboxPage](t)(r.List(t.Context(), api.SandboxQuery{Page: api.Page{Cursor: newest.NextCursor}}))
	leftOut, newestOfAll := rest.Sandboxes[0].ID, newest.Sandboxes[0].ID
	asked := must[*api.Sharing](t)(r.Sharing(t.Context(), api.SharingQuery{SandboxIDs: []string{leftOut, newestOfAll}}))
	if len(asked.Sandboxes) != 2 || len(asked.Pairs) != 1 || asked.LeftOut != 0 {
		t.Errorf("of two of them: %+v", asked)
	}
}

// TestSharingOfWhatHasEnded: a machine that has ended by itself, and of which that
// is not said yet, is no error for those who ask about others, and who asks about
// it is told how it ended.
func TestSharingOfWhatHasEnded(t *testing.T) {
	r, l := newLingering(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b := r.create(t, api.Settings{})
	r.killMachines()
	soon(t, l.closing)
	if s, err := r.Sharing(ctx, api.SharingQuery{}); err != nil || len(s.Sandboxes) != 0 {
		t.Errorf("sharing: %+v, %v", s, err)
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.Stats(short, b.ID); err == nil {
		t.Error("stats, for nobody: no error")
	}
	asked := make(chan error, 1)
	var s *api.Stats
	go func() {
		var err error
		s, err = r.Stats(ctx, b.ID)
		asked <- err
	}()
	l.ends(t)
	if err := soon(t, asked); err != nil || *s != (api.Stats{SandboxID: b.ID, State: api.Failed}) {
		t.Errorf("stats: %+v, %v", s, err)
	}
}

// slowMachine takes a second to be looked at, and another to be compared.
type slowMachine struct {
	machine
	comparing *atomic.Int32
	most      *atomic.Int32 // comparisons at once
}

func (m slowMachine) look(ctx context.Context) (look, error) {
	time.Sleep(time.Second) // of the bubble
	return slowLook{fakeLook{}, m}, nil
}

type slowLook struct {
	fakeLook
	m slowMachine
}

func (l slowLook) with(look) (memory, disk int64) {
	if n := l.m.comparing.Add(1); n > l.m.most.Load() {
		l.m.most.Store(n)
	}
	time.Sleep(time.Second) // of the bubble
	l.m.comparing.Add(-1)
	return 1, 1
}

// TestLooksOfManyHoldNobodyUp: who asks about one machine waits for few others,
// however many somebody else asks about, and those who compare many take turns.
func TestLooksOfManyHoldNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Engine{looks: make(chan struct{}, 2), comparing: make(chan struct{}, 1), boxes: map[string]*box{}}
		m := slowMachine{comparing: new(atomic.Int32), most: new(atomic.Int32)}
		for k := range 50 {
			b := newBox(t.Context(), sandboxRecord{Team: "one", Sandbox: api.Sandbox{ID: fmt.Sprint(k)}})
			b.m = m
			e.boxes[b.id] = b
		}
		var asked sync.WaitGroup
		for range 2 {
			asked.Go(func() {
				if s, err := e.Team("one").Sharing(t.Context(), api.SharingQuery{}); err != nil || len(s.Pairs) != 50*49/2 {
					t.Errorf("sharing: %v", err)
				}
			})
		}
		synctest.Wait()
		begin := time.Now()
		if _, err := e.look(t.Context(), m); err != nil || time.Since(begin) > 3*time.Second {
			t.Errorf("the look at one took %v, %v", time.Since(begin), err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := e.Team("one").Sharing(short, api.SharingQuery{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("whose turn did not come in time: %v", err)
		}
		asked.Wait()
		if m.most.Load() != 1 {
			t.Errorf("%d were compared at once", m.most.Load())
		}
	})
}
