package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// rootSize is the size of the root file system in bytes. The image is sparse.
const rootSize = 32 << 30

const (
	// Room in the image of a folder beyond the files' own sizes, in bytes: for the journal and
	// the like, for each file, and for what is written to it later.
	treeRoom    = 256 << 20
	treePerFile = 8 << 10
)

// Packages that the tools come from.
const (
	qemuProgram, qemuPackage     = "qemu-system-x86_64", "qemu-system-x86"
	mke2fsProgram, mke2fsPackage = "mke2fs", "e2fsprogs"
)

// MissingError says which program the lab lacks on this host.
type MissingError struct {
	Program, Package string
}

// Error names the program and the command that installs it.
func (e *MissingError) Error() string {
	return fmt.Sprintf("image: %s is not installed: run `apt-get install --no-install-recommends %s` as root", e.Program, e.Package)
}

// tools finds the programs that the lab needs.
func tools() (qemu, mke2fs string, err error) {
	qemu, err = tool(qemuProgram, qemuPackage)
	if err != nil {
		return "", "", err
	}
	mke2fs, err = tool(mke2fsProgram, mke2fsPackage)
	return qemu, mke2fs, err
}

func tool(program, pkg string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	// On Debian not every user's PATH has /usr/sbin, where mke2fs is.
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return path, nil
		}
	}
	return "", &MissingError{Program: program, Package: pkg}
}

// makeRoot makes an empty file system, once: machines forget what they write to it.
func makeRoot(ctx context.Context, mke2fs, path string) error {
	if info, err := os.Stat(path); err == nil && info.Size() == rootSize {
		return nil
	}
	return makeFilesystem(ctx, mke2fs, path, rootSize)
}

// makeTree makes a file system with a copy of a folder.
func makeTree(ctx context.Context, mke2fs, dir, path string) error {
	// mke2fs would copy a link, and not what it leads to.
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	size, err := treeSize(dir)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	return makeFilesystem(ctx, mke2fs, path, size, "-d", dir)
}

// kernelsImage makes an image of the folder of guest kernels, unless the one made last still is one.
func kernelsImage(ctx context.Context, mke2fs, kernels, dir string) (string, error) {
	entries, err := os.ReadDir(kernels)
	if err != nil {
		return "", fmt.Errorf("image: %w", err)
	}
	// Each kernel's folder is published as a whole, so its time says enough.
	id := sha256.New()
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			fmt.Fprintf(id, "%q %d\n", e.Name(), info.ModTime().UnixNano())
		}
	}
	path := filepath.Join(dir, fmt.Sprintf("kernels-%.8x.ext4", id.Sum(nil)))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	old, err := filepath.Glob(filepath.Join(dir, "kernels-*.ext4"))
	if err != nil {
		return "", fmt.Errorf("image: %w", err)
	}
	for _, o := range old {
		os.Remove(o)
	}
	return path, makeTree(ctx, mke2fs, kernels, path)
}

// makeFilesystem makes an ext4 image that appears as a whole. It has no journal: a machine that
// crashes takes its disk along.
func makeFilesystem(ctx context.Context, mke2fs, path string, size int64, args ...string) error {
	tmp := path + ".tmp"
	defer os.Remove(tmp)
	if err := os.WriteFile(tmp, nil, 0o600); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := os.Truncate(tmp, size); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	args = append([]string{"-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", "root_owner=0:0"}, args...)
	if out, err := exec.CommandContext(ctx, mke2fs, append(args, tmp)...).CombinedOutput(); err != nil {
		return fmt.Errorf("image: %s: %w: %s", filepath.Base(path), err, out)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	return nil
}

// treeSize is how large an image for a folder must be.
func treeSize(dir string) (int64, error) {
	size := int64(treeRoom)
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		size += treePerFile
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return err
	})
	return size, err
}
