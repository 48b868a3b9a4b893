package snapshot

import (
	"cmp"
	"context"
	"errors"
	"slices"
)

// Info is what there is to say of a snapshot. Sizes are in bytes.
type Info struct {
	Manifest
	// Logical is the size of memory and disks.
	Logical int64 `json:"logical"`
	// Stored is what the files hold that the snapshot needs.
	Stored int64 `json:"stored"`
	// Unique is the part of Stored that no other snapshot needs, which
	// deleting this one would free; of a snapshot just made, what it added.
	Unique int64 `json:"unique"`
	// Layers, Disks and Sections are filled in by [Store.Stat] only.
	Layers   []LayerInfo   `json:"layers,omitempty"`
	Disks    []DiskInfo    `json:"disks,omitempty"`
	Sections []SectionInfo `json:"sections,omitempty"`
	// Err is why a snapshot in a list cannot be read: all that is known of it
	// is its ID. It wraps [ErrCorrupt] or [ErrVersion], if it is not the
	// error of a system call.
	Err error `json:"-"`
}

func (c *contents) info(unique int64) Info {
	i := Info{Manifest: c.Manifest, Logical: c.memory.Size, Stored: c.encoded, Unique: c.encoded + unique}
	for _, d := range c.disks {
		i.Logical += d.Size
	}
	for _, l := range c.layers {
		i.Stored += l.Data
	}
	return i
}

// readAll reads all manifests. Those that cannot be read are in broken.
func (s *Store) readAll(ctx context.Context) (all []*contents, broken map[string]error, err error) {
	ids, err := s.ids()
	if err != nil {
		return nil, nil, err
	}
	broken = map[string]error{}
	for _, id := range ids {
		if err := context.Cause(ctx); err != nil {
			return nil, nil, err
		}
		switch c, err := s.read(id); {
		case errors.Is(err, ErrNotFound): // deleted since
		case err != nil:
			broken[id] = err
		default:
			c.sections = nil
			all = append(all, c)
		}
	}
	return all, broken, nil
}

// references counts the snapshots that need each layer.
func references(all []*contents) map[Sum]int {
	n := map[Sum]int{}
	for _, c := range all {
		for _, l := range c.layers {
			n[l.Sum]++
		}
	}
	return n
}

// unique is the size of the layers of c that no other snapshot needs.
func (c *contents) unique(references map[Sum]int) (n int64) {
	for _, l := range c.layers {
		if references[l.Sum] <= 1 {
			n += l.Data
		}
	}
	return n
}

// List describes all snapshots, the oldest first. One that cannot be read is
// in the list with its Err.
func (s *Store) List(ctx context.Context) ([]Info, error) {
	all, broken, err := s.readAll(ctx)
	if err != nil {
		return nil, wrapf(err, "snapshot: list")
	}
	refs := references(all)
	var infos []Info
	for _, c := range all {
		infos = append(infos, c.info(c.unique(refs)))
	}
	for id, err := range broken {
		infos = append(infos, Info{Manifest: Manifest{ID: id}, Err: wrapf(err, "snapshot: %s", id)})
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return infos, nil
}

// Stat describes one snapshot in detail. Its state is verified, its layers
// are not.
func (s *Store) Stat(ctx context.Context, id string) (Info, error) {
	info, err := s.stat(ctx, id)
	return info, wrapf(err, "snapshot: stat %.60q", id)
}

func (s *Store) stat(ctx context.Context, id string) (Info, error) {
	c, err := s.read(id)
	if err != nil {
		return Info{}, err
	}
	all, _, err := s.readAll(ctx)
	if err != nil {
		return Info{}, err
	}
	info := c.info(c.unique(references(all)))
	info.Layers = c.layers
	for _, d := range c.disks {
		info.Disks = append(info.Disks, DiskInfo{d.Name, d.Size})
	}
	_, info.Sections, err = decodeSections(c.sections)
	return info, err
}

// Relabel gives a snapshot another label.
func (s *Store) Relabel(ctx context.Context, id, label string) error {
	return wrapf(s.relabel(ctx, id, label), "snapshot: relabel %.60q", id)
}

func (s *Store) relabel(ctx context.Context, id, label string) error {
	if err := checkText("label", label, maxLabel); err != nil {
		return invalid("%w", err)
	}
	st, err := s.newStage(ctx)
	if err != nil {
		return err
	}
	defer st.close()
	// Whoever deletes the snapshot meanwhile must not find it there again.
	names, err := s.lock(ctx, snapshotsDir, exclusive)
	if err != nil {
		return err
	}
	defer names.unlock()
	c, err := s.read(id)
	if err != nil {
		return err
	}
	c.Label = label
	raw, err := c.encode()
	if err != nil {
		return err
	}
	return st.replace(id, raw)
}

// Delete removes a snapshot at once, readable or not, and then the layers
// that no other snapshot needs; these stay until the next collection if
// somebody else is using the store. Machines that run from the snapshot are
// not disturbed, and neither are snapshots that descend from it.
func (s *Store) Delete(ctx context.Context, id string) error {
	return wrapf(s.delete(ctx, id), "snapshot: delete %.60q", id)
}

func (s *Store) delete(ctx context.Context, id string) error {
	if err := CheckID(id); err != nil {
		return err
	}
	if err := s.unlist(ctx, id); err != nil {
		return err
	}
	_, err := s.tryCollect()
	return err
}

// unlist removes the manifest, and leaves a sign that there is something to
// sweep. On a full disk there may be no room for the sign.
func (s *Store) unlist(ctx context.Context, id string) error {
	l, err := s.lock(ctx, lockName, shared)
	if err != nil {
		return err
	}
	defer l.unlock()
	names, err := s.lock(ctx, snapshotsDir, exclusive)
	if err != nil {
		return err
	}
	defer names.unlock()
	if !s.hasManifest(id) {
		return ErrNotFound
	}
	_ = s.disk.mkdir(tmpDir + "/" + newID())
	if err := s.disk.remove(manifestName(id)); err != nil {
		return err
	}
	return s.disk.syncDir(snapshotsDir)
}
