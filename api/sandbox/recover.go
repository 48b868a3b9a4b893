package sandbox

import (
	"context"
	"fmt"

	"github.com/forkvm/forkvm/api"
)

// recover reads the records, says what has failed, and sweeps away what no
// record names.
func (e *Engine) recover(ctx context.Context) error {
	id, err := e.db.engine()
	if err != nil {
		return err
	}
	e.id = id
	stored, err := e.machines.stored(ctx, e.label(""))
	if err != nil {
		return fmt.Errorf("list what is stored: %w", err)
	}
	left := make(map[string]bool, len(stored))
	for _, s := range stored {
		left[s] = true
	}
	err = read(e.db, snapshotBucket, func(id string, r snapshotRecord) {
		e.snaps[id] = &snap{r}
		delete(left, r.Stored)
	})
	if err != nil {
		return err
	}
	var failed []*box
	err = read(e.db, sandboxBucket, func(id string, r sandboxRecord) {
		b := newBox(e.life, r)
		e.boxes[id] = b
		there := r.Stored != "" && left[r.Stored]
		delete(left, r.Stored)
		if e.revive(b, there) {
			failed = append(failed, b)
		}
	})
	if err != nil {
		return err
	}
	if err := e.persist(nil, failed...); err != nil {
		return err
	}
	for s := range left {
		if err := e.machines.delete(ctx, s); err != nil {
			e.log.Error("delete what no record names", "stored", s, "error", err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range e.boxes { // last: what is overdue is done at once
		e.arm(b, now())
	}
	return nil
}

// revive puts a sandbox into the state in which it is after the engine has
// ended, and tells whether that is new.
func (e *Engine) revive(b *box, stored bool) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch s := &b.rec.Sandbox; {
	case s.State == api.Paused && stored:
		b.lost = errPaused
		return false
	case s.State == api.Paused:
		e.fail(b, "what was stored of it is missing")
	case s.State == api.Failed:
		b.lost = api.Errorf(api.Gone, "the sandbox has failed: %s", s.Reason)
		return false
	default:
		b.rec.Stored, b.rec.StoredBytes = "", 0
		e.fail(b, "the server ended while it ran")
	}
	return true
}

// label is what is stored of a sandbox or snapshot is called in the store, by
// which it is known that it is this engine's.
func (e *Engine) label(id string) string { return "sandbox " + e.id + " " + id }
