package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a taken lock is tried again: flock(2) cannot wait and heed a context.
const lockPoll = 50 * time.Millisecond

// silentWait is after how long waiting is mentioned.
const silentWait = 2 * time.Second

// A lock is what those who use the lab's machine hold: shared, or each alone.
type lock struct {
	f      *os.File
	shared bool
}

// lock waits until the machine is free to use.
func (l *lab) lock(ctx context.Context, shared bool) (*lock, error) {
	return l.lockFile(ctx, lockFile, shared)
}

// lockFiles is for those who share the machine: while one of them copies files in, no other does.
// They may be the same files.
func (l *lab) lockFiles(ctx context.Context) (*lock, error) {
	return l.lockFile(ctx, copyLockFile, false)
}

func (l *lab) lockFile(ctx context.Context, name string, shared bool) (*lock, error) {
	f, err := os.OpenFile(filepath.Join(l.dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_EX
	if shared {
		how = unix.LOCK_SH
	}
	k := &lock{f: f, shared: shared}
	if err := k.wait(ctx, how); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the lab: %w", err)
	}
	return k, nil
}

func (k *lock) wait(ctx context.Context, how int) error {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	mention := time.After(silentWait)
	for {
		err := unix.Flock(int(k.f.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-mention:
			fmt.Fprintln(os.Stderr, "lab: waiting for the machine, which others use")
		case <-tick.C:
		}
	}
}

// alone tells whether nobody else uses the machine, and keeps it so. It is for those who are about
// to leave: a shared lock is lost if the answer is no. The last of those who share gets a yes.
func (k *lock) alone() bool {
	return !k.shared || unix.Flock(int(k.f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

func (k *lock) unlock() { k.f.Close() }
