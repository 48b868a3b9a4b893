package initrd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CacheDir returns the directory in which kernels are kept: $FORKVM_CACHE, else
// forkvm in the user's cache directory. It may not exist yet.
func CacheDir() (string, error) {
	if dir := os.Getenv("FORKVM_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("initrd: no cache directory (set FORKVM_CACHE): %w", err)
	}
	return filepath.Join(dir, "forkvm"), nil
}

// kernelsDir is where the cache holds one directory a kernel.
func kernelsDir() (string, error) {
	dir, err := CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "kernels"), nil
}

const (
	stagingPrefix = ".staging-"
	// staleAfter is when a staging directory is taken for a crashed process's.
	staleAfter = 24 * time.Hour
)

// publish makes the directory name in parent appear as a whole: fill writes into a
// hidden directory beside it, which is synced and then renamed. What had the name
// before is replaced in the same instant: a path into it leads to the old file or
// to the new one, never nowhere.
func publish(parent, name string, fill func(staging *os.Root) error) error {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	sweepStaging(parent)
	staging, err := os.MkdirTemp(parent, stagingPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(staging) // or what it was exchanged for
	if err := os.Chmod(staging, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(staging)
	if err != nil {
		return err
	}
	err = fill(root)
	root.Close()
	if err != nil {
		return err
	}
	if err := syncTree(staging); err != nil {
		return err
	}
	target := filepath.Join(parent, name)
	err = os.Rename(staging, target)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		err = unix.Renameat2(unix.AT_FDCWD, staging, unix.AT_FDCWD, target, unix.RENAME_EXCHANGE)
	}
	if err != nil {
		return fmt.Errorf("publish %s: %w", target, err)
	}
	return nil
}

// syncTree makes what was written below dir durable before it gets its name: one
// syncfs is much cheaper than an fsync for each of a thousand modules.
func syncTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("syncfs %s: %w", dir, err)
	}
	return nil
}

// sweepStaging removes what crashed processes left behind. It is a courtesy: its
// errors do not matter.
func sweepStaging(parent string) {
	entries, _ := os.ReadDir(parent)
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), stagingPrefix) && time.Since(info.ModTime()) > staleAfter {
			_ = os.RemoveAll(filepath.Join(parent, e.Name()))
		}
	}
}
