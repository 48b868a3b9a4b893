package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/forkvm/forkvm/api"
)

// database keeps the records. Its writes take turns, are whole or not there,
// and return when they are durable.
type database struct{ bolt *bbolt.DB }

var (
	metaBucket     = []byte("meta")
	sandboxBucket  = []byte("sandboxes")
	snapshotBucket = []byte("snapshots")

	formatKey = []byte("format")
	engineKey = []byte("engine")
)

// format is what the records look like.
const format = "1"

// lockWait is how long another engine is waited for that is just ending.
const lockWait = time.Second

func openDatabase(path string) (*database, error) {
	b, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%w: %s", ErrLocked, path)
	}
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", path, err)
	}
	d := &database{b}
	if err := b.Update(prepare); err != nil {
		return nil, errors.Join(fmt.Errorf("database %s: %w", path, err), b.Close())
	}
	return d, nil
}

// prepare makes what a new database lacks.
func prepare(tx *bbolt.Tx) error {
	for _, name := range [][]byte{metaBucket, sandboxBucket, snapshotBucket} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	meta := tx.Bucket(metaBucket)
	if have := meta.Get(formatKey); have != nil && string(have) != format {
		return fmt.Errorf("its format is %.20q, and this program knows %s", have, format)
	}
	if meta.Get(engineKey) == nil {
		if err := meta.Put(engineKey, []byte(api.NewID("", time.Now()))); err != nil {
			return err
		}
	}
	return meta.Put(formatKey, []byte(format))
}

func (d *database) close() error { return d.bolt.Close() }

// engine is an id that the database was given when it was made.
func (d *database) engine() (id string, err error) {
	err = d.bolt.View(func(tx *bbolt.Tx) error {
		id = string(tx.Bucket(metaBucket).Get(engineKey))
		return nil
	})
	return id, err
}

func put(tx *bbolt.Tx, bucket []byte, id string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.Bucket(bucket).Put([]byte(id), b)
}

func (d *database) delete(bucket []byte, ids ...string) error {
	if len(ids) == 0 {
		return nil
	}
	return d.bolt.Update(func(tx *bbolt.Tx) error {
		for _, id := range ids {
			if err := tx.Bucket(bucket).Delete([]byte(id)); err != nil {
				return err
			}
		}
		return nil
	})
}

// update changes a record, unless it is gone.
func update[T any](d *database, bucket []byte, id string, change func(*T)) error {
	return d.bolt.Update(func(tx *bbolt.Tx) error {
		old := tx.Bucket(bucket).Get([]byte(id))
		if old == nil {
			return nil
		}
		var v T
		if err := json.Unmarshal(old, &v); err != nil {
			return err
		}
		change(&v)
		return put(tx, bucket, id, v)
	})
}

// read calls f with each record.
func read[T any](d *database, bucket []byte, f func(id string, v T)) error {
	return d.bolt.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(k, b []byte) error {
			var v T
			if err := json.Unmarshal(b, &v); err != nil {
				return fmt.Errorf("record %.80q: %w", k, err)
			}
			f(string(k), v)
			return nil
		})
	})
}

// persist stores sandboxes as they are when it is their turn, but for what
// change does to the records; nil is nothing. Those that are being destroyed are
// left alone: their records are not to come back. One that has failed is stored
// also when the engine is being closed, or the next would not know why it did.
func (e *Engine) persist(change func(*sandboxRecord), boxes ...*box) error {
	return e.db.bolt.Update(func(tx *bbolt.Tx) error {
		for _, b := range boxes {
			e.mu.Lock()
			doomed := b.life.Err() != nil && b.rec.Sandbox.State != api.Failed
			rec := b.rec
			rec.Sandbox = *b.record()
			e.mu.Unlock()
			if doomed {
				continue
			}
			if change != nil {
				change(&rec)
			}
			if err := put(tx, sandboxBucket, b.id, rec); err != nil {
				return err
			}
		}
		return nil
	})
}

func (d *database) updateSandbox(id string, change func(*sandboxRecord)) error {
	return update(d, sandboxBucket, id, change)
}

func (d *database) deleteSandbox(ids ...string) error { return d.delete(sandboxBucket, ids...) }

func (d *database) putSnapshot(r snapshotRecord) error {
	return d.bolt.Update(func(tx *bbolt.Tx) error { return put(tx, snapshotBucket, r.Snapshot.ID, r) })
}

func (d *database) renameSnapshot(id string, name func() string) error {
	return update(d, snapshotBucket, id, func(r *snapshotRecord) { r.Snapshot.Name = name() })
}

func (d *database) deleteSnapshot(id string) error { return d.delete(snapshotBucket, id) }
