package server

import "github.com/forkvm/forkvm/api"

func (c *call) createSnapshot() (any, error) {
	return onSandbox(c, func(id string) (*api.Snapshot, error) {
		var r api.SnapshotRequest
		if err := c.decode(&r); err != nil {
			return nil, err
		}
		return c.svc.CreateSnapshot(c.ctx(), id, r)
	})
}

func (c *call) sandboxSnapshots() (any, error) {
	return onSandbox(c, c.listSnapshots)
}

func (c *call) snapshots() (any, error) {
	id := c.query.Get("sandbox_id")
	if c.query.Has("sandbox_id") {
		if err := api.CheckID(api.SandboxPrefix, id); err != nil {
			return nil, api.Errorf(api.BadRequest, "query: sandbox_id: %w", err)
		}
	}
	return c.listSnapshots(id)
}

func (c *call) listSnapshots(sandboxID string) (any, error) {
	q := api.SnapshotQuery{SandboxID: sandboxID, NamePrefix: c.query.Get("name_prefix")}
	var err error
	if q.Page, err = c.page(); err != nil {
		return nil, err
	}
	p, err := c.svc.Snapshots(c.ctx(), q)
	if err == nil && p.Snapshots == nil {
		p.Snapshots = []api.Snapshot{}
	}
	return p, err
}

// onSnapshot calls f with the id in the path, if it is one.
func onSnapshot[T any](c *call, f func(id string) (T, error)) (any, error) {
	id, err := c.snapshotID()
	if err != nil {
		return nil, err
	}
	return f(id)
}

func (c *call) snapshot() (any, error) {
	return onSnapshot(c, func(id string) (*api.Snapshot, error) { return c.svc.Snapshot(c.ctx(), id) })
}

func (c *call) renameSnapshot() (any, error) {
	return onSnapshot(c, func(id string) (*api.Snapshot, error) {
		var r struct {
			Name *string `json:"name"`
		}
		if err := c.decodeSome(&r); err != nil {
			return nil, err
		}
		if r.Name == nil {
			return nil, api.Errorf(api.BadRequest, "name: missing")
		}
		return c.svc.RenameSnapshot(c.ctx(), id, *r.Name)
	})
}

func (c *call) deleteSnapshot() (any, error) {
	return onSnapshot(c, func(id string) (any, error) { return nil, c.svc.DeleteSnapshot(c.ctx(), id) })
}
