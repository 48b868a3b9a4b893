package sandbox

import (
	"context"
	"time"

	"github.com/forkvm/forkvm/api"
)

// capacityRetry is when to try again if there was no memory.
const capacityRetry = 5 * time.Second

// Fork implements [api.Service].
func (t *Team) Fork(ctx context.Context, id string, r api.ForkRequest) (_ *api.ForkResult, err error) {
	defer func(begin time.Time) { t.metrics.observe(verbFork, begin, err) }(time.Now())
	if err := checkFork(&r); err != nil {
		return nil, err
	}
	b, err := t.find(id)
	if err != nil {
		return nil, err
	}
	// Reserved before anything is captured; given back by launch.
	boxes, err := t.add(t.originOf(b), r.Settings, r.Count)
	if err != nil {
		return nil, err
	}
	img, err := t.freeze(ctx, b)
	if err != nil {
		for _, c := range boxes {
			_ = t.settle(c, nil, err) // nothing was stored of it yet
			c.giveTurn()
		}
		return nil, err
	}
	defer img.close()
	return t.forked(b, img, boxes, t.launch(ctx, img, boxes))
}

// originOf is a sandbox as what others are made from.
func (e *Engine) originOf(b *box) origin {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := b.record()
	return origin{
		template: s.Template, parent: &s.ID, shape: b.rec.Shape, env: s.EnvVars, metadata: s.Metadata,
		timeout: s.TimeoutSeconds, onTimeout: s.OnTimeout, autoDelete: s.AutoDeleteSeconds,
	}
}

// freeze returns the machine of a sandbox as it is now. One that runs goes on,
// one that is paused stays so.
func (e *Engine) freeze(ctx context.Context, b *box) (image, error) {
	ctx, cancel := b.within(ctx)
	defer cancel()
	if err := b.takeTurn(ctx); err != nil {
		return nil, err
	}
	defer b.giveTurn()
	e.mu.Lock()
	m, stored, state := b.m, b.rec.Stored, b.rec.Sandbox.State
	err := b.notRunning(api.Paused)
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var img image
	if state == api.Paused {
		img, err = e.machines.load(ctx, stored)
	} else {
		img, err = m.capture(ctx)
	}
	if err != nil {
		return nil, b.overtaken(outer(err, "capture"))
	}
	if state != api.Paused {
		e.metrics.pause.Observe(img.pause().Seconds())
	}
	return img, nil
}

func (t *Team) forked(b *box, img image, boxes []*box, errs []error) (*api.ForkResult, error) {
	result := &api.ForkResult{PauseSeconds: img.pause().Seconds()}
	var ids []string
	var failure error
	for k, c := range boxes {
		if errs[k] != nil {
			failure = errs[k]
			result.Children = append(result.Children, api.Forked{Error: asError(errs[k])})
			continue
		}
		ids = append(ids, c.id)
		result.Children = append(result.Children, api.Forked{Sandbox: t.recordOf(c)})
	}
	if ids == nil {
		return nil, failure
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.emitForked(b, ids)
	return result, nil
}
