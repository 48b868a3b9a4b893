package sandbox

import (
	"context"
	"maps"
	"sync/atomic"
	"time"

	"github.com/forkvm/forkvm/api"
)

// sandboxRecord is what is stored of a sandbox.
type sandboxRecord struct {
	Team    string      `json:"team"`
	Sandbox api.Sandbox `json:"sandbox"`
	Shape   shape       `json:"shape"`
	// Stored names the machine of a paused sandbox, of StoredBytes.
	Stored      string `json:"stored,omitempty"`
	StoredBytes int64  `json:"stored_bytes,omitempty"`
}

// box is a sandbox.
type box struct {
	id, team string // never change

	// turn holds one value while nobody changes the machine. Who takes it gives
	// it back.
	turn chan struct{}
	// life ends when the sandbox is destroyed, and says so.
	life context.Context
	stop context.CancelCauseFunc

	// What follows is guarded by Engine.mu; m is changed with the turn as well,
	// or when it has ended.
	rec     sandboxRecord
	m       machine       // nil unless it runs
	session uint64        // counts times that it began to run, or to be paused
	timer   *time.Timer   // of the session; may be nil
	changed chan struct{} // closed when the state changes, and replaced
	lost    error         // why the machine that there was last is gone
}

func newBox(life context.Context, rec sandboxRecord) *box {
	b := &box{
		id: rec.Sandbox.ID, team: rec.Team, turn: make(chan struct{}, 1), rec: rec, changed: make(chan struct{}),
	}
	b.turn <- struct{}{}
	b.life, b.stop = context.WithCancelCause(life)
	return b
}

// takeTurn waits until nobody else changes the machine.
func (b *box) takeTurn(ctx context.Context) error {
	select {
	case <-b.turn:
		if err := context.Cause(b.life); err != nil {
			b.giveTurn()
			return err
		}
		return nil
	case <-b.life.Done():
		return context.Cause(b.life)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *box) giveTurn() { b.turn <- struct{}{} }

// within is ctx, and ends with the sandbox as well.
func (b *box) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(b.life, func() { cancel(context.Cause(b.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// withinAny is ctx, and ends when all the sandboxes have ended as well.
func withinAny(ctx context.Context, boxes []*box) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	var left atomic.Int64
	left.Store(int64(len(boxes)))
	stops := make([]func() bool, len(boxes))
	for k, b := range boxes {
		stops[k] = context.AfterFunc(b.life, func() {
			if left.Add(-1) == 0 {
				cancel(context.Cause(b.life))
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

// overtaken is err or, if the sandbox has been destroyed, that: it is why what
// was under way failed, and why it is of no use if it did not.
func (b *box) overtaken(err error) error {
	if cause := context.Cause(b.life); cause != nil {
		return cause
	}
	return err
}

var errDestroyed = api.Errorf(api.Gone, "the sandbox was destroyed")

// setState changes the state and tells who waits. The caller has Engine.mu.
func (b *box) setState(s api.State) {
	b.rec.Sandbox.State = s
	close(b.changed)
	b.changed = make(chan struct{})
}

// record is the record for its owner. The caller has Engine.mu.
func (b *box) record() *api.Sandbox {
	s := b.rec.Sandbox
	s.Metadata, s.EnvVars = maps.Clone(s.Metadata), maps.Clone(s.EnvVars)
	return &s
}

// listed is the record without what is secret. The caller has Engine.mu.
func (b *box) listed() api.Sandbox {
	s := b.record()
	s.EnvVars, s.AccessToken = nil, ""
	return *s
}

// find returns a sandbox of a team. Those of other teams do not exist.
func (t *Team) find(id string) (*box, error) {
	if err := api.CheckID(api.SandboxPrefix, id); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.boxes[id]; b != nil && b.team == t.name && b.rec.Sandbox.State != api.Destroying {
		return b, nil
	}
	return nil, api.Errorf(api.NotFound, "there is no sandbox %s", id)
}

// begin says that a machine of the sandbox runs from now on. The caller has
// Engine.mu and the turn, and has reserved memory.
func (e *Engine) begin(b *box, m machine, what api.EventType) {
	s := &b.rec.Sandbox
	at := now()
	b.m = m // who has lost the one before may not know yet: b.lost stays
	s.StartedAt, s.PausedAt, s.AutoDeleteAt = &at, nil, nil
	b.setState(api.Running)
	e.arm(b, at)
	e.emit(b, what)
	e.metrics.started(m.timings())
	e.watch(b, m)
}

// arm starts the timer of a session anew: its time-out counts from a time. The
// caller has Engine.mu.
func (e *Engine) arm(b *box, from time.Time) {
	s := &b.rec.Sandbox
	b.session++
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	s.ExpiresAt, s.AutoDeleteAt = nil, nil
	switch {
	case (s.State == api.Running || s.State == api.Pausing) && s.TimeoutSeconds != nil:
		s.ExpiresAt = after(from, *s.TimeoutSeconds)
		e.at(b, *s.ExpiresAt, e.timeUp)
	case s.State == api.Paused && s.AutoDeleteSeconds != nil:
		s.AutoDeleteAt = after(*s.PausedAt, *s.AutoDeleteSeconds)
		e.at(b, *s.AutoDeleteAt, e.autoDelete)
	}
}

func after(t time.Time, seconds int64) *time.Time {
	t = t.Add(time.Duration(seconds) * time.Second)
	return &t
}

// at has do be called at a time, unless the session has ended by then. The
// caller has Engine.mu.
func (e *Engine) at(b *box, when time.Time, do func(ctx context.Context, b *box, session uint64)) {
	session := b.session
	b.timer = time.AfterFunc(time.Until(when), func() {
		e.background(func(ctx context.Context) { do(ctx, b, session) })
	})
}

// retryAfter is when what a timer was to do is tried again if it has failed.
const retryAfter = 30 * time.Second

// timeUp ends a session whose time is up.
func (e *Engine) timeUp(ctx context.Context, b *box, session uint64) {
	e.mu.Lock()
	current, pauses := b.session == session, b.rec.Sandbox.OnTimeout == api.TimeoutPauses
	pausing := b.rec.Sandbox.State == api.Pausing // then it is not active: its time stands still
	if current && !pauses && !pausing {
		e.doom(b)
	}
	e.mu.Unlock()
	switch {
	case !current:
	case pauses:
		e.pauseAtTimeout(ctx, b, session)
	case pausing:
		if b.takeTurn(ctx) == nil {
			b.giveTurn()
			e.timeUp(ctx, b, session) // which has ended, if it could be paused
		}
	default:
		e.logError("destroy at time-out", b, e.destroy(ctx, b))
	}
}

func (e *Engine) pauseAtTimeout(ctx context.Context, b *box, session uint64) {
	err := e.pauseSession(ctx, b, session)
	if err == nil {
		return
	}
	e.logError("pause at time-out", b, err)
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.session == session && b.life.Err() == nil {
		e.at(b, time.Now().Add(retryAfter), e.timeUp)
	}
}

// autoDelete destroys a sandbox that was paused for long enough.
func (e *Engine) autoDelete(ctx context.Context, b *box, session uint64) {
	e.mu.Lock()
	current := b.session == session && b.rec.Sandbox.State == api.Paused
	if current { // one that is being resumed by now is not paused
		e.doom(b)
	}
	e.mu.Unlock()
	if current {
		e.logError("delete a paused sandbox", b, e.destroy(ctx, b))
	}
}

func (e *Engine) logError(what string, b *box, err error) {
	if err != nil {
		e.log.Error(what, "sandbox", b.id, "error", err)
	}
}
