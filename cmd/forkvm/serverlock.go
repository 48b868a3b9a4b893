package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Files in the directory of a server that are locked with flock(2). Locks end
// with their processes, whatever becomes of these.
const (
	// startLock is had by who starts a server, and by a server from when it
	// stops until it has ended: so one is started when the last has ended.
	startLock = "start.lock"
	// useLock is shared by commands that ask the user's own server, from before
	// they look for it. A server with nothing to do ends only if it gets this
	// alone, and then has it until it has ended.
	useLock = "use.lock"
)

// takeLock waits for a lock: unix.LOCK_SH or LOCK_EX. Closing the file gives it
// back.
func takeLock(ctx context.Context, state, name string, how int) (*os.File, error) {
	f, err := openLock(state, name)
	if err != nil {
		return nil, err
	}
	fd, locked := int(f.Fd()), make(chan error, 1)
	go func() { locked <- flock(fd, how) }()
	select {
	case err = <-locked:
	case <-ctx.Done():
		err = ctx.Err()
		go func() { // the file must be there for as long as it is waited for
			<-locked
			f.Close()
		}()
		return nil, err
	}
	if err != nil {
		f.Close()
		return nil, &os.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	return f, nil
}

// tryLock is nil if somebody else has the lock, or shares it.
func tryLock(state, name string) (*os.File, error) {
	f, err := openLock(state, name)
	if err != nil {
		return nil, err
	}
	err = flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, &os.PathError{Op: "lock", Path: f.Name(), Err: err}
}

func openLock(state, name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(state, name), os.O_RDWR|os.O_CREATE, 0o600)
}

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); err != unix.EINTR {
			return err
		}
	}
}
