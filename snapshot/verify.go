package snapshot

import (
	"context"
	"errors"
)

// Verify reads all of a snapshot from the disk, whatever was verified before,
// and tells whether it is what was written. It fails as [Store.Load] does.
func (s *Store) Verify(ctx context.Context, id string, report func(done, total int64)) error {
	c, err := s.read(id)
	if err != nil {
		return wrapf(err, "snapshot: verify %.60q", id)
	}
	p := newProgress(c.dataBytes(nil), report)
	return wrapf(s.verify(ctx, id, map[Sum]bool{}, p), "snapshot: verify %.60q", id)
}

// VerifyAll verifies all snapshots, each layer once. It goes on after an
// error; all of them are joined in the one it returns.
func (s *Store) VerifyAll(ctx context.Context, report func(done, total int64)) error {
	all, broken, err := s.readAll(ctx)
	if err != nil {
		return wrapf(err, "snapshot: verify")
	}
	var errs []error
	for id, err := range broken {
		errs = append(errs, wrapf(err, "snapshot: verify %s", id))
	}
	total, counted := int64(0), map[Sum]bool{}
	for _, c := range all {
		total += c.dataBytes(counted)
	}
	p, good := newProgress(total, report), map[Sum]bool{}
	for _, c := range all {
		err := s.verify(ctx, c.ID, good, p)
		if ctx.Err() != nil {
			return wrapf(err, "snapshot: verify %s", c.ID)
		}
		if err != nil && !errors.Is(err, ErrNotFound) { // deleted since
			errs = append(errs, wrapf(err, "snapshot: verify %s", c.ID))
		}
	}
	return errors.Join(errs...)
}

// dataBytes is the size of the layers that are not in counted, and puts them
// there.
func (c *contents) dataBytes(counted map[Sum]bool) (n int64) {
	for _, l := range c.layers {
		if counted[l.Sum] {
			continue
		}
		n += l.Data
		if counted != nil {
			counted[l.Sum] = true
		}
	}
	return n
}

// verify verifies a snapshot but for the layers known to be good, to which it
// adds.
func (s *Store) verify(ctx context.Context, id string, good map[Sum]bool, p *progress) error {
	c, files, err := s.openSnapshot(ctx, id)
	if err != nil {
		return err
	}
	defer closeAll(files)
	if _, _, err := decodeSections(c.sections); err != nil {
		return err
	}
	for i, l := range c.layers {
		if good[l.Sum] {
			continue
		}
		if err := verifyLayer(ctx, files[i], l, p); err != nil {
			return err
		}
		good[l.Sum] = true
	}
	return nil
}
