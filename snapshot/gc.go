package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Collected is what a garbage collection removed.
type Collected struct {
	// Layers that no snapshot needed.
	Layers int `json:"layers"`
	// Bytes of disk space that they took.
	Bytes int64 `json:"bytes"`
}

// GC removes layers that no snapshot needs and what writers that were killed
// left behind. It waits until nobody writes or loads a snapshot, or ctx ends.
//
// As long as the store has a manifest that this program cannot read, any layer
// may be needed and none is removed: the error then names it, and wraps
// [ErrCorrupt] or [ErrVersion].
func (s *Store) GC(ctx context.Context) (Collected, error) {
	l, err := s.lock(ctx, lockName, exclusive)
	if err != nil {
		return Collected{}, wrapf(err, "snapshot: gc")
	}
	defer l.unlock()
	got, broken, err := s.collect(ctx)
	if err == nil {
		err = broken
	}
	return got, wrapf(err, "snapshot: gc")
}

// tryCollect collects unless the store is in use. Manifests that cannot be
// read are no error here: nobody asked.
func (s *Store) tryCollect() (Collected, error) {
	l, err := s.tryLock(lockName, exclusive)
	if l == nil || err != nil {
		return Collected{}, err
	}
	defer l.unlock()
	got, _, err := s.collect(context.Background())
	return got, err
}

// collect does the work, under the exclusive lock. broken is why no layer was
// removed.
func (s *Store) collect(ctx context.Context) (got Collected, broken, err error) {
	all, unread, err := s.readAll(ctx)
	if err != nil {
		return got, nil, err
	}
	for id, err := range unread {
		broken = errors.Join(broken, fmt.Errorf("layers kept for %s: %w", id, err))
	}
	if broken == nil {
		if got, err = s.removeLayers(ctx, references(all)); err != nil {
			return got, nil, err
		}
	}
	s.cache.dropUnlinked()
	return got, broken, s.sweep() // last: the sign that there is work
}

func (s *Store) removeLayers(ctx context.Context, needed map[Sum]int) (got Collected, err error) {
	names, err := s.disk.names(layersDir)
	if err != nil {
		return got, err
	}
	for _, name := range names {
		var sum Sum
		if sum.UnmarshalText([]byte(name)) != nil || needed[sum] > 0 {
			continue
		}
		if err := context.Cause(ctx); err != nil {
			return got, err
		}
		if got.Layers == 0 {
			// A manifest that was removed must not come back without them.
			if err := s.disk.syncDir(snapshotsDir); err != nil {
				return got, err
			}
		}
		bytes := s.diskSpace(layerName(sum))
		if err := s.disk.remove(layerName(sum)); err != nil {
			return got, err
		}
		got.Layers++
		got.Bytes += bytes
	}
	return got, nil
}

// diskSpace is what a file takes on the disk, 0 if that cannot be told.
func (s *Store) diskSpace(name string) int64 {
	f, _, err := s.disk.open(name)
	if err != nil {
		return 0
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

// sweep empties tmp, which has two levels.
func (s *Store) sweep() error {
	dirs, err := s.disk.names(tmpDir)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		dir = tmpDir + "/" + dir
		files, err := s.disk.names(dir)
		if err != nil && !errors.Is(err, unix.ENOTDIR) {
			return err
		}
		for _, f := range files {
			if err := s.disk.remove(dir + "/" + f); err != nil {
				return err
			}
		}
		if err := s.disk.remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
