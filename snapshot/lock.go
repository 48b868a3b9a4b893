package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lock is a flock(2) on a file of the store. Each is a descriptor of its own,
// so goroutines of one process exclude each other as processes do.
type lock struct{ file *os.File }

type lockKind int

const (
	shared    lockKind = unix.LOCK_SH
	exclusive lockKind = unix.LOCK_EX
)

// tryLock returns nil if somebody else has the lock.
func (s *Store) tryLock(name string, kind lockKind) (*lock, error) {
	f, err := s.disk.root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), int(kind)|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		f.Close()
		return nil, nil
	case err != nil:
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return &lock{f}, nil
}

// lock waits until it has the lock or ctx ends. It asks again and again since
// a thread that waits in flock(2) cannot be called back.
func (s *Store) lock(ctx context.Context, name string, kind lockKind) (*lock, error) {
	const longest = 20 * time.Millisecond
	wait := 100 * time.Microsecond
	for {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		l, err := s.tryLock(name, kind)
		if l != nil || err != nil {
			return l, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
			wait = min(2*wait, longest)
		}
	}
}

// unlock gives the lock up, even if a child that is being started still has
// a copy of the descriptor.
func (l *lock) unlock() {
	_ = unix.Flock(int(l.file.Fd()), unix.LOCK_UN)
	l.file.Close()
}
