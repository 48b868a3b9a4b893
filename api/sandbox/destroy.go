package sandbox

import (
	"context"
	"time"

	"github.com/forkvm/forkvm/api"
)

// Destroy implements [api.Service].
func (t *Team) Destroy(ctx context.Context, id string) (err error) {
	defer func(begin time.Time) { t.metrics.observe(verbDestroy, begin, err) }(time.Now())
	t.mu.Lock()
	b := t.boxes[id]
	if b == nil || b.team != t.name {
		t.mu.Unlock()
		return nil
	}
	if t.closed {
		t.mu.Unlock()
		return errClosed
	}
	t.doom(b)
	t.mu.Unlock()
	return t.destroy(ctx, b)
}

// doom begins the end of a sandbox: nothing can be done to it any more, and
// who is at it gives up. The caller has mu.
func (e *Engine) doom(b *box) {
	if b.rec.Sandbox.State != api.Destroying {
		b.setState(api.Destroying)
	}
	b.stop(errDestroyed)
}

// destroy ends a sandbox. It is carried through even if ctx ends.
func (e *Engine) destroy(ctx context.Context, b *box) error {
	buried := make(chan error, 1)
	e.mu.Lock()
	e.doom(b)
	e.busy.Go(func() { buried <- e.bury(b) })
	e.mu.Unlock()
	select {
	case err := <-buried:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// bury frees what a doomed sandbox has when nobody is at it any more.
func (e *Engine) bury(b *box) error {
	<-b.turn
	defer b.giveTurn()
	e.mu.Lock()
	stored, here := b.rec.Stored, e.boxes[b.id] == b
	e.mu.Unlock()
	if !here {
		return nil
	}
	e.dropMachine(b)
	if err := e.db.deleteSandbox(b.id); err != nil {
		return outer(err, "destroy") // the record would come back: who destroys it again tries again
	}
	var err error
	if stored != "" {
		err = e.machines.delete(e.life, stored)
	}
	e.mu.Lock()
	e.arm(b, now())
	e.remove(b)
	e.mu.Unlock()
	return outer(err, "destroy")
}

// dropMachine ends the machine of a sandbox, if it has one.
func (e *Engine) dropMachine(b *box) {
	e.mu.Lock()
	m := b.m
	b.m = nil
	e.mu.Unlock()
	if m != nil {
		e.free(b, m)
	}
}

// free closes the machine that a sandbox had, and then gives back its memory.
func (e *Engine) free(b *box, m machine) {
	m.close()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.memory -= b.rec.Shape.Memory
}

// watch waits for the end of a machine that nobody ended. The caller has mu.
func (e *Engine) watch(b *box, m machine) {
	e.busy.Go(func() {
		<-m.done()
		m.close() // who has taken it from the sandbox does so too, which is fine
		e.mu.Lock()
		if b.m != m || b.life.Err() != nil {
			e.mu.Unlock()
			return
		}
		b.m = nil
		e.memory -= b.rec.Shape.Memory
		e.fail(b, "the machine ended: "+m.why().Error())
		e.mu.Unlock()
		e.logError("store that a sandbox has failed", b, e.persist(nil, b))
	})
}

// fail says that a sandbox has failed. The caller has mu.
func (e *Engine) fail(b *box, why string) {
	s := &b.rec.Sandbox
	s.Reason, s.StartedAt, s.PausedAt = why, nil, nil
	b.lost = api.Errorf(api.Gone, "the sandbox has failed: %s", why)
	b.setState(api.Failed)
	e.arm(b, now())
	e.emit(b, api.SandboxFailed)
}
