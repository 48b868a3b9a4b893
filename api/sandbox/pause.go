package sandbox

import (
	"cmp"
	"context"
	"time"

	"github.com/forkvm/forkvm/api"
)

// Pause implements [api.Service].
func (t *Team) Pause(ctx context.Context, id string) (_ *api.Sandbox, err error) {
	defer func(begin time.Time) { t.metrics.observe(verbPause, begin, err) }(time.Now())
	b, err := t.find(id)
	if err != nil {
		return nil, err
	}
	if err := t.pause(ctx, b); err != nil {
		return nil, err
	}
	return t.recordOf(b), nil
}

func (e *Engine) pause(ctx context.Context, b *box) error { return e.pauseSession(ctx, b, 0) }

// pauseSession pauses a sandbox, if it is still in a session; 0 is any.
func (e *Engine) pauseSession(ctx context.Context, b *box, session uint64) error {
	ctx, cancel := b.within(ctx)
	defer cancel()
	if err := b.takeTurn(ctx); err != nil {
		return err
	}
	defer b.giveTurn()
	e.mu.Lock()
	m := b.m
	if b.rec.Sandbox.State != api.Running || session != 0 && b.session != session {
		defer e.mu.Unlock()
		return b.notRunning(api.Paused)
	}
	b.setState(api.Pausing)
	e.mu.Unlock()

	at := now()
	stored, bytes, err := e.putAway(ctx, b, m)
	become := func(r *sandboxRecord) {
		r.Sandbox.State, r.Sandbox.PausedAt, r.Sandbox.StartedAt = api.Paused, &at, nil
		r.Stored, r.StoredBytes = stored, bytes
	}
	if err == nil {
		err = outer(e.persist(become, b), "store the record")
	}
	if err = b.overtaken(err); err == nil {
		err = e.takeMachine(b, m)
	}
	if err == nil {
		e.free(b, m) // before it counts as paused, so that who waited for that finds its memory
		err = e.setPaused(b, become)
	} else {
		e.goOn(context.WithoutCancel(ctx), b, m)
	}
	if err != nil && stored != "" {
		e.logError("delete what was stored", b, e.machines.delete(context.WithoutCancel(ctx), stored))
	}
	return err
}

// notRunning is the error of who needs a sandbox that runs: none if it is in a
// state that will do as well. The caller has mu.
func (b *box) notRunning(fine api.State) error {
	switch b.rec.Sandbox.State {
	case api.Failed:
		return b.lost
	case fine, api.Running:
		return nil
	}
	return api.Errorf(api.Conflict, "the sandbox is %s", b.rec.Sandbox.State)
}

// putAway stores the machine as it is from when it halts on.
func (e *Engine) putAway(ctx context.Context, b *box, m machine) (stored string, bytes int64, err error) {
	if err := m.halt(ctx); err != nil {
		return "", 0, outer(err, "pause")
	}
	img, err := m.capture(ctx)
	if err != nil {
		return "", 0, outer(err, "pause")
	}
	defer img.close()
	stored, bytes, err = img.save(ctx, e.label(b.id))
	return stored, bytes, outer(err, "pause")
}

// takeMachine takes the machine from a sandbox that is stored, unless anything was
// in the way.
func (e *Engine) takeMachine(b *box, m machine) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.m != m {
		return b.overtaken(b.lost)
	}
	if err := b.overtaken(nil); err != nil {
		return err
	}
	b.m, b.lost = nil, errPaused
	return nil
}

// setPaused says that a sandbox is paused, which it is whatever happens but that it
// is being destroyed.
func (e *Engine) setPaused(b *box, become func(*sandboxRecord)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.rec.Sandbox.State == api.Destroying {
		return errDestroyed
	}
	become(&b.rec)
	b.setState(api.Paused)
	if b.life.Err() == nil { // or the engine is being closed
		e.arm(b, now())
	}
	e.emit(b, api.SandboxPaused)
	return nil
}

// goOn lets a sandbox go on that could not be paused.
func (e *Engine) goOn(ctx context.Context, b *box, m machine) {
	e.mu.Lock()
	here := b.m == m && b.life.Err() == nil
	if here {
		b.setState(api.Running)
	}
	e.mu.Unlock()
	if here {
		e.logError("go on after a pause that failed", b, m.proceed(ctx))
	}
	e.logError("store a sandbox that is not paused", b, e.persist(nil, b))
}

var errPaused = api.Errorf(api.Conflict, "the sandbox was paused meanwhile")

// Resume implements [api.Service].
func (t *Team) Resume(ctx context.Context, id string) (_ *api.Sandbox, err error) {
	defer func(begin time.Time) { t.metrics.observe(verbResume, begin, err) }(time.Now())
	b, err := t.find(id)
	if err != nil {
		return nil, err
	}
	if err := t.resume(ctx, b, api.NewToken()); err != nil {
		return nil, err
	}
	return t.recordOf(b), nil
}

// resume lets a paused sandbox go on. Whoever resumes it by using it does not
// learn of a new token, so that it keeps its own if token is empty.
func (e *Engine) resume(ctx context.Context, b *box, token string) error {
	ctx, cancel := b.within(ctx)
	defer cancel()
	if err := b.takeTurn(ctx); err != nil {
		return err
	}
	defer b.giveTurn()
	e.mu.Lock()
	if b.rec.Sandbox.State != api.Paused {
		defer e.mu.Unlock()
		return b.notRunning(api.Running)
	}
	if err := e.reserve(b.rec.Shape.Memory); err != nil {
		e.mu.Unlock()
		return err
	}
	b.setState(api.Resuming)
	stored := b.rec.Stored
	e.mu.Unlock()

	m, err := e.restart(ctx, b.id, stored)
	become := func(r *sandboxRecord) {
		r.Stored, r.StoredBytes, r.Sandbox.State = "", 0, api.Running
		r.Sandbox.AccessToken = cmp.Or(token, r.Sandbox.AccessToken)
	}
	if err == nil {
		err = outer(e.persist(become, b), "store the record")
	}
	if err := e.resumed(b, m, become, err); err != nil {
		return err
	}
	e.logError("delete what was stored", b, e.machines.delete(context.WithoutCancel(ctx), stored))
	return nil
}

// restart starts the machine of a paused sandbox.
func (e *Engine) restart(ctx context.Context, id, stored string) (machine, error) {
	img, err := e.machines.load(ctx, stored)
	if err != nil {
		return nil, outer(err, "resume")
	}
	defer img.close()
	ms, errs := img.start(ctx, []string{hostname(id)})
	return ms[0], outer(errs[0], "resume")
}

// resumed ends a resume: the sandbox runs or, if err or anything else was in
// the way, is still paused.
func (e *Engine) resumed(b *box, m machine, become func(*sandboxRecord), err error) error {
	e.mu.Lock()
	if err = b.overtaken(err); err == nil {
		become(&b.rec)
		e.begin(b, m, api.SandboxResumed)
		e.mu.Unlock()
		return nil
	}
	e.mu.Unlock()
	if m != nil {
		m.close()
	}
	e.mu.Lock()
	e.memory -= b.rec.Shape.Memory
	if b.life.Err() == nil {
		b.setState(api.Paused)
		e.arm(b, now()) // its time may have been up meanwhile
	}
	e.mu.Unlock()
	if m != nil {
		e.logError("store a sandbox that is still paused", b, e.persist(nil, b))
	}
	return err
}
