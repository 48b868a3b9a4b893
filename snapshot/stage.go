package snapshot

import (
	"context"
	"fmt"
	"os"
	"strconv"
)

// stage is a snapshot on its way into the store: a directory under tmp with
// the layers that the store has not got, and the shared lock. The directory is
// also the sign that there may be something to sweep.
type stage struct {
	store     *Store
	lock      *lock
	dir       string
	files     map[string]bool // in dir
	made      int             // files so far
	fresh     map[Sum]string  // which file has which layer
	added     int64           // bytes in fresh
	published bool            // some layers left dir
	done      bool
}

func (s *Store) newStage(ctx context.Context) (*stage, error) {
	l, err := s.lock(ctx, lockName, shared)
	if err != nil {
		return nil, err
	}
	st := &stage{store: s, lock: l, dir: tmpDir + "/" + newID(), fresh: map[Sum]string{}, files: map[string]bool{}}
	if err := s.disk.mkdir(st.dir); err != nil {
		l.unlock()
		return nil, err
	}
	return st, nil
}

// close leaves no trace of what was not published.
func (st *stage) close() {
	s := st.store
	for name := range st.files {
		_ = s.disk.remove(name)
	}
	if st.done || !st.published {
		_ = s.disk.remove(st.dir)
	}
	st.lock.unlock()
	if !st.done && st.published {
		// Layers cannot be taken back one by one: somebody who writes
		// another snapshot may count on them by now.
		_, _ = s.tryCollect()
	}
}

func (st *stage) create() (*newFile, error) {
	name := st.dir + "/" + strconv.Itoa(st.made)
	st.made++
	f, err := st.store.disk.create(name)
	if err == nil {
		st.files[name] = true
	}
	return f, err
}

// has tells whether a layer is in the store or on its way.
func (st *stage) has(l LayerInfo) bool {
	return st.fresh[l.Sum] != "" || st.store.hasLayer(l)
}

// write writes the wanted part of a layer's file, unless it turns out that
// the store has the same.
func (st *stage) write(ctx context.Context, from *os.File, size int64, want spans, p *progress) (LayerInfo, error) {
	f, err := st.create()
	if err != nil {
		return LayerInfo{}, err
	}
	defer f.abandon()
	if err := f.truncate(size); err != nil {
		return LayerInfo{}, err
	}
	src := scanner{file: from, size: size, want: want}
	info, err := src.scan(ctx, p, f.writeAt)
	if err != nil {
		return LayerInfo{}, fmt.Errorf("write layer: %w", err)
	}
	return info, st.finish(f, info)
}

// finish makes a layer's file durable, unless it is not needed.
func (st *stage) finish(f *newFile, info LayerInfo) error {
	if st.has(info) {
		return nil
	}
	if err := f.finish(); err != nil {
		return err
	}
	st.fresh[info.Sum] = f.name
	st.added += info.Data
	return nil
}

// publish makes the layers part of the store, then the snapshot.
func (st *stage) publish(ctx context.Context, id string, raw []byte) error {
	name, err := st.writeManifest(raw)
	if err != nil {
		return err
	}
	if err := st.publishLayers(); err != nil {
		return err
	}
	// So that nobody publishes the same id in between.
	names, err := st.store.lock(ctx, snapshotsDir, exclusive)
	if err != nil {
		return err
	}
	defer names.unlock()
	if st.store.hasManifest(id) {
		return fmt.Errorf("%w: %s", ErrExists, id)
	}
	if err := st.move(name, manifestName(id)); err != nil {
		return err
	}
	if err := st.store.disk.syncDir(snapshotsDir); err != nil {
		_ = st.store.disk.remove(manifestName(id))
		return err
	}
	st.done = true
	return nil
}

// replace puts another manifest in the place of one. The caller holds the
// exclusive lock of the directory.
func (st *stage) replace(id string, raw []byte) error {
	name, err := st.writeManifest(raw)
	if err != nil {
		return err
	}
	if err := st.move(name, manifestName(id)); err != nil {
		return err
	}
	return st.store.disk.syncDir(snapshotsDir)
}

func (st *stage) writeManifest(raw []byte) (name string, err error) {
	f, err := st.create()
	if err != nil {
		return "", err
	}
	defer f.abandon()
	if err := f.writeAt(0, raw); err != nil {
		return "", err
	}
	return f.name, f.finish()
}

// publishLayers gives the layers their names. It makes the directory durable
// even if there is no new one: another process may have named a layer that
// this snapshot needs, and not got as far.
func (st *stage) publishLayers() error {
	for sum, name := range st.fresh {
		st.published = true
		if err := st.move(name, layerName(sum)); err != nil {
			return err
		}
	}
	return st.store.disk.syncDir(layersDir)
}

func (st *stage) move(from, to string) error {
	err := st.store.disk.rename(from, to)
	if err == nil {
		delete(st.files, from)
	}
	return err
}
