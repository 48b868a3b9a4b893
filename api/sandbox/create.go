package sandbox

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"time"

	"github.com/forkvm/forkvm/api"
)

// origin is what a new sandbox is made from, and what it has if its settings
// do not say.
type origin struct {
	template         string
	parent, snapshot *string
	shape            shape
	env, metadata    map[string]string
	timeout          *int64
	onTimeout        api.OnTimeout
	autoDelete       *int64
}

// Create implements [api.Service].
func (t *Team) Create(ctx context.Context, r api.CreateRequest) (_ *api.Sandbox, err error) {
	defer func(begin time.Time) { t.metrics.observe(verbCreate, begin, err) }(time.Now())
	if err := checkCreate(&r); err != nil {
		return nil, err
	}
	img, from, done, err := t.source(ctx, r)
	if err != nil {
		return nil, err
	}
	defer img.close()
	boxes, err := t.add(from, r.Settings, 1)
	done() // there is a record now, which counts
	if err != nil {
		return nil, err
	}
	if err := t.launch(ctx, img, boxes)[0]; err != nil {
		return nil, err
	}
	return t.recordOf(boxes[0]), nil
}

// source finds what a request names. The caller closes the image. The template
// that it goes back to is not removed before done is called.
func (t *Team) source(ctx context.Context, r api.CreateRequest) (img image, from origin, done func(), err error) {
	name := r.Template
	var s *snap
	if r.FromSnapshot != "" {
		if s, err = t.findSnapshot(r.FromSnapshot); err != nil {
			return nil, origin{}, nil, err
		}
		name = s.rec.Snapshot.Template
	}
	if done, err = t.useTemplate(ctx, name); err != nil {
		return nil, origin{}, nil, err
	}
	if s == nil {
		img, from, err = t.sourceTemplate(ctx, name)
	} else {
		img, from, err = t.sourceSnapshot(ctx, s)
	}
	if err != nil {
		done()
	}
	return img, from, done, err
}

func (t *Team) sourceTemplate(ctx context.Context, name string) (image, origin, error) {
	img, s, err := t.machines.template(ctx, name)
	return img, origin{template: name, shape: s, onTimeout: api.TimeoutDestroys}, outer(err, "template %s", name)
}

func (t *Team) sourceSnapshot(ctx context.Context, s *snap) (image, origin, error) {
	rec := s.record(t.Engine)
	img, err := t.machines.load(ctx, s.rec.Stored)
	if err != nil {
		return nil, origin{}, outer(err, "snapshot %s", rec.ID)
	}
	if _, gone := t.findSnapshot(rec.ID); gone != nil { // it may have been deleted meanwhile, and then its template
		img.close()
		return nil, origin{}, gone
	}
	return img, origin{
		template: rec.Template, snapshot: &rec.ID, shape: s.rec.Shape, env: s.rec.EnvVars,
		timeout: rec.TimeoutSeconds, onTimeout: rec.OnTimeout, autoDelete: rec.AutoDeleteSeconds,
	}, nil
}

// add makes the records of n sandboxes, all or none, whose turns the caller has
// and gives back through launch.
func (t *Team) add(from origin, s api.Settings, n int) ([]*box, error) {
	at, env, metadata := now(), layered(from.env, s.EnvVars), layered(from.metadata, s.Metadata)
	if err := cmp.Or(checkEnv(env), checkMetadata(metadata)); err != nil {
		return nil, err
	}
	boxes := make([]*box, n)
	for k := range boxes {
		boxes[k] = newBox(t.life, sandboxRecord{Team: t.name, Shape: from.shape, Sandbox: api.Sandbox{
			ID: api.NewID(api.SandboxPrefix, at), Name: s.Name, State: api.Creating,
			Template: from.template, ParentSandboxID: from.parent, SourceSnapshotID: from.snapshot,
			VCPUs: from.shape.VCPUs, MemoryBytes: from.shape.Memory, DiskBytes: from.shape.Disk, CreatedAt: at,
			TimeoutSeconds: s.TimeoutSeconds.Or(from.timeout), OnTimeout: cmp.Or(s.OnTimeout, from.onTimeout),
			AutoDeleteSeconds: s.AutoDeleteSeconds.Or(from.autoDelete),
			Metadata:          layered(metadata, nil), EnvVars: layered(env, nil),
			AccessToken: api.NewToken(),
		}})
		<-boxes[k].turn
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.makeRoom(int64(n)*from.shape.Memory, n); err != nil {
		for _, b := range boxes {
			b.stop(err) // or the engine's context would know it for ever
		}
		return nil, err
	}
	for _, b := range boxes {
		t.boxes[b.id] = b
		t.emit(b, api.SandboxCreated)
	}
	return boxes, nil
}

// makeRoom reserves memory for guests, and checks that there may be n
// sandboxes more. The caller has mu.
func (t *Team) makeRoom(memory int64, n int) error {
	have := 0
	for _, b := range t.boxes {
		if b.team == t.name {
			have++
		}
	}
	if have+n > t.limits.SandboxesPerTeam {
		return api.Errorf(api.TooManySandboxes, "%d sandboxes and %d more would exceed the limit of %d", have, n, t.limits.SandboxesPerTeam)
	}
	return t.reserve(memory)
}

// reserve reserves memory for guests, which is given back when the machine has been
// closed: until then it takes some. The caller has mu.
func (e *Engine) reserve(memory int64) error {
	if e.closed {
		return errClosed
	}
	if e.memory+memory > e.limits.Memory {
		err := api.Errorf(api.OutOfCapacity, "%d MiB for guests are in use, and %d more would exceed the limit of %d",
			e.memory>>20, memory>>20, e.limits.Memory>>20)
		err.RetryAfter = capacityRetry
		return err
	}
	e.memory += memory
	return nil
}

// launch starts the machines of new sandboxes, and says of each that could not
// be started why. Those are gone.
func (e *Engine) launch(ctx context.Context, img image, boxes []*box) []error {
	names := make([]string, len(boxes))
	stored := make(chan error, 1)
	for k, b := range boxes {
		names[k] = hostname(b.id)
	}
	go func() { // what they will be when anybody reads it
		stored <- e.persist(func(r *sandboxRecord) { r.Sandbox.State = api.Running }, boxes...)
	}()
	starting, cancel := withinAny(ctx, boxes)
	machines, errs := img.start(starting, names)
	cancel()
	kept := <-stored
	var gone []string
	for k, b := range boxes {
		err := outer(errs[k], "start a machine")
		if err == nil {
			err = outer(kept, "store the record")
		}
		if errs[k] = e.settle(b, machines[k], err); errs[k] != nil {
			gone = append(gone, b.id)
		}
	}
	if err := e.db.deleteSandbox(gone...); err != nil { // at once: writes take turns
		e.log.Error("remove the records of what was not made", "sandboxes", gone, "error", err)
	}
	for _, b := range boxes {
		b.giveTurn()
	}
	return errs
}

// settle ends the making of a sandbox, with a machine or with an error. The
// caller gives its turn back, and removes what was stored of one that is gone.
func (e *Engine) settle(b *box, m machine, err error) error {
	e.mu.Lock()
	err = b.overtaken(err)
	if err == nil {
		e.begin(b, m, api.SandboxReady)
		e.mu.Unlock()
		return nil
	}
	e.mu.Unlock()
	if m != nil {
		m.close()
	}
	e.mu.Lock()
	e.memory -= b.rec.Shape.Memory
	if b.rec.Sandbox.State != api.Destroying { // or who destroys it removes it
		e.remove(b)
	}
	e.mu.Unlock()
	b.stop(errDestroyed)
	return err
}

// remove forgets a sandbox. The caller has mu.
func (e *Engine) remove(b *box) {
	b.setState(api.Destroying)
	delete(e.boxes, b.id)
	e.emit(b, api.SandboxDestroyed)
}

func (e *Engine) recordOf(b *box) *api.Sandbox {
	e.mu.Lock()
	defer e.mu.Unlock()
	return b.record()
}

// hostname is the host name of a sandbox: an id has a sign that none may have.
func hostname(id string) string { return strings.ReplaceAll(id, "_", "-") }

// layered is a copy of under with what over has on top.
func layered(under, over map[string]string) map[string]string {
	m := make(map[string]string, len(under)+len(over))
	maps.Copy(m, under)
	maps.Copy(m, over)
	return m
}
