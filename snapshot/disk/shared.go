package disk

import "github.com/forkvm/forkvm/snapshot"

// Shared calls f with what the disk has of layers, in order: what was below when
// it was made or last frozen, less what was written or discarded since. It is as
// at the time of the call, but for what is written meanwhile. Layers live at
// least until it returns, or until f tells it to stop by returning false.
// Requests do not wait for it.
func (d *Disk) Shared(f func(snapshot.Extent) bool) error {
	below, top, err := d.parts()
	if err != nil {
		return err
	}
	defer below.release()
	table, err := below.resolve()
	if err != nil {
		return err
	}
	for _, e := range table.Extents() {
		if !top.without(e, f) {
			return nil
		}
	}
	return nil
}

// parts is what the disk is made of. The caller releases the level.
func (d *Disk) parts() (*level, *cover, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.check(0, 0); err != nil {
		return nil, nil, err
	}
	if d.top == nil {
		return d.below.retain(), nil, nil
	}
	return d.below.retain(), d.top.cover, nil
}

// without calls f with the parts of an extent that a top does not cover, until
// it returns false. A cover that is nil covers nothing.
func (c *cover) without(e snapshot.Extent, f func(snapshot.Extent) bool) bool {
	if c == nil {
		return f(e)
	}
	for at := e.Start; at < e.End(); {
		owned, page := c.run(at/pageSize, e.End()/pageSize)
		next := page * pageSize
		if !owned && !f(snapshot.Extent{Start: at, Length: next - at, Layer: e.Layer, Offset: e.Offset + at - e.Start}) {
			return false
		}
		at = next
	}
	return true
}
