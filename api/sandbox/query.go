package sandbox

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/forkvm/forkvm/api"
)

// Get implements [api.Service].
func (t *Team) Get(ctx context.Context, id string) (*api.Sandbox, error) {
	b, err := t.find(id)
	if err != nil {
		return nil, err
	}
	return t.recordOf(b), nil
}

// List implements [api.Service].
func (t *Team) List(ctx context.Context, q api.SandboxQuery) (*api.SandboxPage, error) {
	before, limit, err := checkPage(q.Page, api.SandboxPrefix)
	if err == nil {
		err = checkStates("state", q.States)
	}
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	list := []api.Sandbox{}
	for id, b := range t.boxes {
		if b.team == t.name && (before == "" || id < before) && matches(&b.rec.Sandbox, q) {
			list = append(list, b.listed())
		}
	}
	slices.SortFunc(list, func(a, b api.Sandbox) int { return cmp.Compare(b.ID, a.ID) })
	page := &api.SandboxPage{Sandboxes: list}
	if len(list) > limit {
		page.Sandboxes, page.NextCursor = list[:limit], list[limit-1].ID
	}
	return page, nil
}

func matches(s *api.Sandbox, q api.SandboxQuery) bool {
	if s.State == api.Destroying && !slices.Contains(q.States, api.Destroying) {
		return false
	}
	for k, v := range q.Metadata {
		if have, ok := s.Metadata[k]; !ok || have != v {
			return false
		}
	}
	return (len(q.States) == 0 || slices.Contains(q.States, s.State)) && strings.HasPrefix(s.Name, q.NamePrefix)
}

// Wait implements [api.Service].
func (t *Team) Wait(ctx context.Context, id string, r api.WaitRequest) (*api.Sandbox, error) {
	if err := checkWait(&r); err != nil {
		return nil, err
	}
	b, err := t.find(id)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(r.Timeout)
	defer timer.Stop()
	for {
		t.mu.Lock()
		s, changed := b.record(), b.changed
		t.mu.Unlock()
		switch {
		case s.State == api.Destroying && !slices.Contains(r.States, api.Destroying):
			return nil, errDestroyed
		case slices.Contains(r.States, s.State):
			return s, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return s, nil
		case <-t.life.Done():
			return nil, errClosed
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Update implements [api.Service].
func (t *Team) Update(ctx context.Context, id string, p api.Patch) (*api.Sandbox, error) {
	if err := checkPatch(&p); err != nil {
		return nil, err
	}
	b, err := t.find(id)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	s := &b.rec.Sandbox
	if s.State == api.Destroying {
		t.mu.Unlock()
		return nil, errDestroyed
	}
	if p.Name != nil {
		s.Name = *p.Name
	}
	if p.Metadata != nil {
		s.Metadata = layered(nil, p.Metadata)
	}
	s.TimeoutSeconds, s.OnTimeout = p.TimeoutSeconds.Or(s.TimeoutSeconds), cmp.Or(p.OnTimeout, s.OnTimeout)
	s.AutoDeleteSeconds = p.AutoDeleteSeconds.Or(s.AutoDeleteSeconds)
	runs := s.State == api.Running || s.State == api.Pausing // which may fail
	if p.TimeoutSeconds.Given() && runs || p.AutoDeleteSeconds.Given() && s.State == api.Paused {
		t.arm(b, now())
	}
	t.emit(b, api.SandboxUpdated)
	out := b.record()
	t.mu.Unlock()
	// A record that a pause, say, is about to write has this too.
	if err := t.db.updateSandbox(b.id, func(rec *sandboxRecord) { t.patchStored(b, rec) }); err != nil {
		return nil, outer(err, "store the record")
	}
	return out, nil
}

// patchStored brings what Update changes of a stored record up to date, and
// nothing else: the state in it is that of who has the turn.
func (e *Engine) patchStored(b *box, rec *sandboxRecord) {
	e.mu.Lock()
	defer e.mu.Unlock()
	from := b.record()
	to := &rec.Sandbox
	to.Name, to.Metadata, to.OnTimeout = from.Name, from.Metadata, from.OnTimeout
	to.TimeoutSeconds, to.AutoDeleteSeconds = from.TimeoutSeconds, from.AutoDeleteSeconds
}
