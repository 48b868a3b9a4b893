package snapshot

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// What a caller may want to decide on. Every error of this package that has
// one of these causes wraps it.
var (
	// ErrNotFound: the store has no snapshot of that id.
	ErrNotFound = errors.New("no such snapshot")
	// ErrExists: the store already has a snapshot of that id.
	ErrExists = errors.New("snapshot exists")
	// ErrCorrupt: what is stored is not what was written, or was never a
	// snapshot.
	ErrCorrupt = errors.New("damaged snapshot")
	// ErrVersion: the snapshot is of a format that this program cannot read.
	ErrVersion = errors.New("unknown format version")
	// ErrNoSpace: the store's file system is full, or the user's quota is.
	ErrNoSpace = errors.New("no space left for the snapshot")
	// ErrBadID: the text is not an id that a store gave out.
	ErrBadID = errors.New("not a snapshot id")
	// ErrInvalid: what was to be stored is outside the limits of the format.
	ErrInvalid = errors.New("invalid snapshot")
	// ErrIncompatible: this machine cannot run the snapshot.
	ErrIncompatible = errors.New("snapshot cannot run here")
)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupt, fmt.Errorf(format, args...))
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// withNoSpace adds ErrNoSpace to an error of a full file system.
func withNoSpace(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}
