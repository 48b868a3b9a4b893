package snapshot

import (
	"context"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxCached is how many layers a store keeps open. A layer that it let go of
// is verified again when it is next asked for.
const maxCached = 64

// cache keeps the layers that have been verified. Each entry holds a
// reference.
type cache struct {
	mu      sync.Mutex
	entries map[Sum]*cached
	uses    int64
	closed  bool
}

type cached struct {
	turn  chan struct{} // has room for the one that verifies
	layer *Layer        // guarded by cache.mu; nil until verified
	used  int64         // guarded by cache.mu
}

// layer returns the layer of which f is the file, with a reference for the
// caller. It verifies the file unless that has been done, and once only
// however many ask. It takes f over.
func (c *cache) layer(ctx context.Context, f *os.File, info LayerInfo, p *progress) (*Layer, error) {
	e, l := c.find(info)
	if l == nil {
		select {
		case e.turn <- struct{}{}:
			defer func() { <-e.turn }()
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		}
		_, l = c.find(info) // somebody else may have verified it meanwhile
	}
	if l != nil {
		f.Close()
		p.add(info.Data)
		return l, nil
	}
	if err := verifyLayer(ctx, f, info, p); err != nil {
		f.Close()
		return nil, err
	}
	l = newStoredLayer(f, info)
	c.keep(info.Sum, e, l)
	return l, nil
}

// find returns the entry of a layer, and the layer, retained, if it is there.
func (c *cache) find(info LayerInfo) (*cached, *Layer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[info.Sum]
	if e == nil {
		e = &cached{turn: make(chan struct{}, 1)}
		if c.entries == nil {
			c.entries = map[Sum]*cached{}
		}
		c.entries[info.Sum] = e
	}
	if e.layer == nil {
		return e, nil
	}
	c.uses++
	e.used = c.uses
	e.layer.Retain()
	return e, e.layer
}

// keep adds a verified layer, and lets go of others if they are too many or
// their files are gone.
func (c *cache) keep(sum Sum, e *cached, l *Layer) {
	c.dropUnlinked()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.entries[sum] != e {
		return
	}
	l.Retain()
	c.uses++
	e.layer, e.used = l, c.uses
	for n, oldest := c.oldest(); n > maxCached; n, oldest = c.oldest() {
		c.dropLocked(oldest)
	}
}

// oldest counts the layers and finds the one not used for longest.
func (c *cache) oldest() (n int, oldest Sum) {
	var first *cached
	for sum, e := range c.entries {
		if e.layer == nil {
			continue
		}
		n++
		if first == nil || e.used < first.used {
			first, oldest = e, sum
		}
	}
	return n, oldest
}

func (c *cache) dropLocked(sum Sum) {
	if e := c.entries[sum]; e != nil && e.layer != nil {
		e.layer.Release()
		delete(c.entries, sum)
	}
}

// dropUnlinked lets go of layers that no store has any more, so that their
// space becomes free.
func (c *cache) dropUnlinked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for sum, e := range c.entries {
		var st unix.Stat_t
		if e.layer != nil && unix.Fstat(e.layer.FD(), &st) == nil && st.Nlink == 0 {
			c.dropLocked(sum)
		}
	}
}

func (c *cache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for sum := range c.entries {
		c.dropLocked(sum)
	}
}
