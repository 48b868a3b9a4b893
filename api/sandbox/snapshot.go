package sandbox

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/forkvm/forkvm/api"
)

// snapshotRecord is what is stored of a snapshot.
type snapshotRecord struct {
	Team     string            `json:"team"`
	Snapshot api.Snapshot      `json:"snapshot"`
	Shape    shape             `json:"shape"`
	EnvVars  map[string]string `json:"env_vars,omitempty"`
	Stored   string            `json:"stored"`
}

// snap is a snapshot that can be used.
type snap struct{ rec snapshotRecord } // but for the name, which Engine.mu guards, it does not change

// record is the record for its owner.
func (s *snap) record(e *Engine) *api.Snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.copy()
}

// copy is record for who has Engine.mu.
func (s *snap) copy() *api.Snapshot {
	r := s.rec.Snapshot
	r.Metadata = maps.Clone(r.Metadata)
	return &r
}

// findSnapshot returns a snapshot of a team.
func (t *Team) findSnapshot(id string) (*snap, error) {
	if err := api.CheckID(api.SnapshotPrefix, id); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errClosed
	}
	if s := t.snaps[id]; s != nil && s.rec.Team == t.name {
		return s, nil
	}
	return nil, api.Errorf(api.NotFound, "there is no snapshot %s", id)
}

// CreateSnapshot implements [api.Service].
func (t *Team) CreateSnapshot(ctx context.Context, sandboxID string, r api.SnapshotRequest) (_ *api.Snapshot, err error) {
	defer func(begin time.Time) { t.metrics.observe(verbSnapshot, begin, err) }(time.Now())
	if err := checkSnapshot(&r); err != nil {
		return nil, err
	}
	b, err := t.find(sandboxID)
	if err != nil {
		return nil, err
	}
	if err := t.reserveSnapshot(b); err != nil {
		return nil, err
	}
	s, err := t.takeSnapshot(ctx, b, r)
	if err != nil {
		t.mu.Lock()
		t.releaseSnapshot(b)
		t.mu.Unlock()
		return nil, err
	}
	return s.record(t.Engine), nil
}

// reserveSnapshot counts a snapshot before it is taken, or says which limit
// forbids it.
func (t *Team) reserveSnapshot(b *box) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	ofTeam, ofBox := t.inFlight[t.name], t.reserved[b.id]
	for _, s := range t.snaps {
		if s.rec.Team == t.name {
			ofTeam++
		}
		if s.rec.Snapshot.SandboxID == b.id {
			ofBox++
		}
	}
	l := t.limits
	switch {
	case t.closed:
		return errClosed
	case t.inFlight[t.name] >= l.SnapshotsInFlight:
		err := api.Errorf(api.TooManySnapshotsInFlight, "%d snapshots are being taken, which is the limit", l.SnapshotsInFlight)
		err.RetryAfter = time.Second
		return err
	case ofTeam >= l.SnapshotsPerTeam:
		return api.Errorf(api.TooManySnapshots, "there are %d snapshots, which is the limit", ofTeam)
	case ofBox >= l.SnapshotsPerSandbox:
		return api.Errorf(api.TooManySnapshots, "there are %d snapshots of this sandbox, which is the limit", ofBox)
	}
	t.busy.Add(1)
	t.inFlight[t.name]++
	t.reserved[b.id]++
	return nil
}

// releaseSnapshot ends what reserveSnapshot began. The caller has mu.
func (t *Team) releaseSnapshot(b *box) {
	t.busy.Done()
	for _, c := range []struct {
		m   map[string]int
		key string
	}{{t.inFlight, t.name}, {t.reserved, b.id}} {
		if c.m[c.key]--; c.m[c.key] == 0 {
			delete(c.m, c.key)
		}
	}
}

// takeSnapshot stores a sandbox. It goes on while that is written.
func (t *Team) takeSnapshot(ctx context.Context, b *box, r api.SnapshotRequest) (*snap, error) {
	ctx, cancel := b.within(ctx)
	defer cancel()
	img, err := t.freeze(ctx, b)
	if err != nil {
		return nil, err
	}
	defer img.close()
	at := now()
	t.mu.Lock()
	from := b.record()
	rec := snapshotRecord{Team: t.name, Shape: b.rec.Shape, EnvVars: from.EnvVars, Snapshot: api.Snapshot{
		ID: api.NewID(api.SnapshotPrefix, at), Name: r.Name, SandboxID: b.id, Template: from.Template, CreatedAt: at,
		VCPUs: from.VCPUs, MemoryBytes: from.MemoryBytes, DiskBytes: from.DiskBytes, PauseSeconds: img.pause().Seconds(),
		TimeoutSeconds: from.TimeoutSeconds, OnTimeout: from.OnTimeout, AutoDeleteSeconds: from.AutoDeleteSeconds,
		Metadata: layered(nil, r.Metadata),
	}}
	paused := from.State == api.Paused
	t.mu.Unlock()
	if paused { // it stood still for longer than for this
		rec.Snapshot.PauseSeconds = 0
	}
	rec.Stored, rec.Snapshot.StoredBytes, err = img.save(ctx, t.label(rec.Snapshot.ID))
	if err == nil {
		err = t.db.putSnapshot(rec)
	}
	return t.tookSnapshot(ctx, b, rec, outer(err, "snapshot"))
}

// tookSnapshot makes a stored snapshot one that can be used, unless its sandbox
// was destroyed meanwhile, or leaves nothing of it. That the engine is being
// closed undoes nothing that is complete.
func (t *Team) tookSnapshot(ctx context.Context, b *box, rec snapshotRecord, err error) (*snap, error) {
	t.mu.Lock()
	if cause := context.Cause(b.life); cause != nil && (err != nil || !errors.Is(cause, errClosed)) {
		err = cause
	}
	if err == nil {
		s := &snap{rec}
		t.snaps[rec.Snapshot.ID] = s
		t.releaseSnapshot(b)
		t.emitSnapshot(s, api.SnapshotCreated)
		t.mu.Unlock()
		return s, nil
	}
	t.mu.Unlock()
	if rec.Stored != "" {
		t.logError("remove a snapshot that failed", b, t.unstore(ctx, rec))
	}
	return nil, err
}

// unstore removes the record of a snapshot and then what it names: as long as
// there is a record, there is what it names.
func (t *Team) unstore(ctx context.Context, rec snapshotRecord) error {
	if err := t.db.deleteSnapshot(rec.Snapshot.ID); err != nil {
		return err
	}
	return t.machines.delete(context.WithoutCancel(ctx), rec.Stored)
}

// Snapshot implements [api.Service].
func (t *Team) Snapshot(ctx context.Context, id string) (*api.Snapshot, error) {
	s, err := t.findSnapshot(id)
	if err != nil {
		return nil, err
	}
	return s.record(t.Engine), nil
}

// Snapshots implements [api.Service].
func (t *Team) Snapshots(ctx context.Context, q api.SnapshotQuery) (*api.SnapshotPage, error) {
	before, limit, err := checkPage(q.Page, api.SnapshotPrefix)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	list := []api.Snapshot{}
	for id, s := range t.snaps {
		r := &s.rec.Snapshot
		if s.rec.Team == t.name && (before == "" || id < before) && (q.SandboxID == "" || r.SandboxID == q.SandboxID) &&
			strings.HasPrefix(r.Name, q.NamePrefix) {
			list = append(list, *s.copy())
		}
	}
	slices.SortFunc(list, func(a, b api.Snapshot) int { return cmp.Compare(b.ID, a.ID) })
	page := &api.SnapshotPage{Snapshots: list}
	if len(list) > limit {
		page.Snapshots, page.NextCursor = list[:limit], list[limit-1].ID
	}
	return page, nil
}

// RenameSnapshot implements [api.Service].
func (t *Team) RenameSnapshot(ctx context.Context, id, name string) (*api.Snapshot, error) {
	if err := checkName("name", name); err != nil {
		return nil, err
	}
	s, err := t.findSnapshot(id)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	s.rec.Snapshot.Name = name
	t.mu.Unlock()
	// Of two at once the database has that which memory has.
	if err := t.db.renameSnapshot(id, func() string { return s.record(t.Engine).Name }); err != nil {
		return nil, outer(err, "rename snapshot %s", id)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.snaps[id] == nil {
		return nil, api.Errorf(api.NotFound, "there is no snapshot %s", id)
	}
	t.emitSnapshot(s, api.SnapshotRenamed)
	return s.copy(), nil
}

// DeleteSnapshot implements [api.Service].
func (t *Team) DeleteSnapshot(ctx context.Context, id string) error {
	s, err := t.findSnapshot(id)
	if errors.Is(err, api.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := t.db.deleteSnapshot(id); err != nil {
		return outer(err, "delete snapshot %s", id)
	}
	t.mu.Lock()
	if t.snaps[id] == s { // and not deleted by somebody else meanwhile
		delete(t.snaps, id)
		t.emitSnapshot(s, api.SnapshotDeleted)
	}
	t.mu.Unlock()
	return outer(t.machines.delete(context.WithoutCancel(ctx), s.rec.Stored), "delete snapshot %s", id)
}
