package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
)

// Templates implements [api.Service].
func (t *Team) Templates(ctx context.Context) (*api.TemplateList, error) {
	list, err := t.machines.Templates(ctx)
	if err != nil {
		return nil, templateError(err)
	}
	return list, nil
}

// Template implements [api.Service].
func (t *Team) Template(ctx context.Context, name string) (*api.Template, error) {
	found, err := t.machines.Template(ctx, name)
	if err != nil {
		return nil, templateError(err)
	}
	return found, nil
}

// TemplateLog implements [api.Service].
func (t *Team) TemplateLog(ctx context.Context, name string) (io.ReadCloser, error) {
	log, err := t.machines.OpenLog(name)
	if err != nil {
		return nil, templateError(err)
	}
	return log, nil
}

// DeleteTemplate implements [api.Service]. Sandboxes and snapshots of all teams
// count.
func (t *Team) DeleteTemplate(ctx context.Context, name string) (err error) {
	defer func(begin time.Time) { t.metrics.observe(verbDeleteTemplate, begin, err) }(time.Now())
	if err := template.CheckName(name); err != nil {
		return templateError(err)
	}
	done, err := t.beginRemoval(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	err = t.machines.Remove(context.WithoutCancel(ctx), name)
	if errors.Is(err, template.ErrNotFound) {
		return nil
	}
	return templateError(err)
}

// beginRemoval keeps others from making sandboxes of a template until done is
// called, if none goes back to it.
func (e *Engine) beginRemoval(ctx context.Context, name string) (done func(), err error) {
	if err := e.lockTemplate(ctx, name); err != nil {
		return nil, err
	}
	defer e.mu.Unlock()
	if e.closed {
		return nil, errClosed
	}
	if err := e.unreferenced(name); err != nil {
		return nil, err
	}
	removed := make(chan struct{})
	e.removing[name] = removed
	e.busy.Add(1)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.removing, name)
		close(removed)
		e.busy.Done()
	}, nil
}

// lockTemplate locks mu when the template is not being removed.
func (e *Engine) lockTemplate(ctx context.Context, name string) error {
	for {
		e.mu.Lock()
		removed := e.removing[name]
		if removed == nil {
			return nil
		}
		e.mu.Unlock()
		select {
		case <-removed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unreferenced fails if anything goes back to a template of the name, of
// whatever team, and says how much. The caller has mu.
func (e *Engine) unreferenced(name string) error {
	boxes, snaps := e.making[name], 0
	for _, b := range e.boxes {
		if b.rec.Sandbox.Template == name {
			boxes++
		}
	}
	for _, s := range e.snaps {
		if s.rec.Snapshot.Template == name {
			snaps++
		}
	}
	var what []string
	for _, c := range []struct {
		n    int
		noun string
	}{{boxes, "sandbox"}, {snaps, "snapshot"}} {
		if c.n > 0 {
			what = append(what, plural(c.n, c.noun))
		}
	}
	if what == nil {
		return nil
	}
	err := api.Errorf(api.Conflict, "template %s is what %s of this server go back to", name, strings.Join(what, " and "))
	err.Details = map[string]any{"sandboxes": boxes, "snapshots": snaps}
	return err
}

func plural(n int, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "x"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprint(n, " ", noun)
}

// useTemplate keeps a template from being removed until done is called, when there
// is a record of what is made of it. While it is being removed, it waits.
func (e *Engine) useTemplate(ctx context.Context, name string) (done func(), err error) {
	if err := e.lockTemplate(ctx, name); err != nil {
		return nil, err
	}
	defer e.mu.Unlock()
	e.making[name]++
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.making[name]--; e.making[name] == 0 {
			delete(e.making, name)
		}
	}, nil
}
