package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Store keeps snapshots in a directory:
//
//	snapshots/ID.json   a manifest: what the snapshot is, with its state
//	layers/SUM          the bytes of memory and disks, in sparse files
//	tmp/                what is being written
//	lock                see below
//
// A layer never changes, is named by the sum of its content, and is shared by
// all snapshots that need it. A manifest is written last, when everything it
// names is durable, and appears at once and whole; so a snapshot is there
// completely or not at all, whenever the writing of it ends.
//
// The sum is SHA-256 of "forkvm layer 1\n", then for each MiB of the layer
// that is not all zeros its offset and the SHA-256 of what is in it, then the
// size of the layer. What is in a MiB is summed as the longest runs of pages
// that are not all zeros: offset, length, bytes. All numbers are of 64 bits,
// little-endian. So a sum does not depend on where a file system keeps holes.
//
// Any number of processes may use a directory at once. Whoever writes a
// snapshot or opens the layers of one holds a shared flock(2) on lock, whoever
// removes layers an exclusive one; none is held while a machine runs. Nothing
// disturbs a machine that runs from a snapshot, not even the end of the
// snapshot: a [Layer] is an open file.
//
// Nothing that is stored is believed before it was verified: manifests and
// state each time they are read, a layer the first time this Store hands it
// out. That guards against accidents of all kinds, and a hostile file can do
// no more than fail; but whoever can write to the directory can change layers
// that were verified, so it belongs to one user.
//
// A Store is safe for concurrent use.
type Store struct {
	disk  disk
	cache cache
}

const (
	lockName     = "lock"
	snapshotsDir = "snapshots"
	layersDir    = "layers"
	tmpDir       = "tmp"
	suffix       = ".json"
)

// DefaultDir is where snapshots are kept unless the user says otherwise:
// forkvm/snapshots in $XDG_STATE_HOME, or else in ~/.local/state.
func DefaultDir() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) { // the specification says to ignore others
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("snapshot: default directory: %w", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "forkvm", "snapshots"), nil
}

// Open opens the store in dir and makes it if it is not there. It sweeps away
// what a process that was killed left behind, unless the store is in use.
func Open(dir string) (*Store, error) { return open(dir, nil) }

func open(dir string, before beforeFunc) (*Store, error) {
	s, err := openDir(dir, before)
	if err != nil {
		return nil, fmt.Errorf("snapshot: open store %s: %w", dir, withNoSpace(err))
	}
	return s, nil
}

func openDir(dir string, before beforeFunc) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := makeDurableDir(dir); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{disk: disk{root, before}}
	if err := s.prepare(); err != nil {
		root.Close()
		return nil, err
	}
	return s, nil
}

// prepare makes the directories and sweeps.
func (s *Store) prepare() error {
	if err := s.makeDirs(); err != nil {
		return err
	}
	left, err := s.disk.names(tmpDir)
	if err == nil && len(left) > 0 {
		// A store that cannot be swept, of a full disk say, can still be used.
		_, _ = s.tryCollect()
	}
	return err
}

// makeDirs makes what is not there. Another process may be doing the same.
func (s *Store) makeDirs() error {
	if f, err := s.disk.root.Open(lockName); err == nil {
		return f.Close() // it is made last
	}
	for _, name := range []string{layersDir, snapshotsDir, tmpDir} {
		if err := s.disk.mkdir(name); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := s.disk.syncDir("."); err != nil {
		return err
	}
	f, err := s.disk.root.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// Close closes the files that the store keeps open. Snapshots that were loaded
// stay valid. It may be called again.
func (s *Store) Close() error {
	s.cache.close()
	return s.disk.root.Close()
}

func manifestName(id string) string { return snapshotsDir + "/" + id + suffix }

func layerName(sum Sum) string { return layersDir + "/" + sum.String() }

// ids are the names of all snapshots, readable or not.
func (s *Store) ids() (ids []string, err error) {
	names, err := s.disk.names(snapshotsDir)
	for _, name := range names {
		if id, ok := strings.CutSuffix(name, suffix); ok && CheckID(id) == nil {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// readFile reads the bytes of a manifest.
func (s *Store) readFile(id string) ([]byte, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	f, size, err := s.disk.open(manifestName(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > maxManifest {
		return nil, corrupt("manifest of %d bytes", size)
	}
	raw := make([]byte, size)
	if _, err := f.ReadAt(raw, 0); err != nil {
		return nil, err
	}
	return raw, nil
}

// read reads and verifies a manifest.
func (s *Store) read(id string) (*contents, error) {
	raw, err := s.readFile(id)
	if err != nil {
		return nil, err
	}
	c, err := decode(raw)
	if err != nil {
		return nil, err
	}
	if c.ID != id {
		return nil, corrupt("the manifest is that of %s", c.ID)
	}
	return c, nil
}

// openLayers opens the files of all layers of c, which are not verified yet.
// The caller holds the shared lock.
func (s *Store) openLayers(c *contents) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	for _, l := range c.layers {
		f, size, err := s.disk.open(layerName(l.Sum))
		if errors.Is(err, fs.ErrNotExist) {
			return files, corrupt("layer %s is missing", l.Sum)
		}
		if err != nil {
			return files, fmt.Errorf("layer %s: %w", l.Sum, err)
		}
		files = append(files, f)
		if size != l.Size {
			return files, corrupt("layer %s has %d bytes instead of %d", l.Sum, size, l.Size)
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// hasLayer tells whether the store has a file of that name and size.
func (s *Store) hasLayer(l LayerInfo) bool {
	info, err := s.disk.root.Lstat(layerName(l.Sum))
	return err == nil && info.Mode().IsRegular() && info.Size() == l.Size
}

func (s *Store) hasManifest(id string) bool {
	_, err := s.disk.root.Lstat(manifestName(id))
	return !errors.Is(err, fs.ErrNotExist)
}

// openSnapshot reads a manifest and opens its layers, so that from then on
// nobody can take them away.
func (s *Store) openSnapshot(ctx context.Context, id string) (*contents, []*os.File, error) {
	l, err := s.lock(ctx, lockName, shared)
	if err != nil {
		return nil, nil, err
	}
	defer l.unlock()
	c, err := s.read(id)
	if err != nil {
		return nil, nil, err
	}
	files, err := s.openLayers(c)
	return c, files, err
}
