package main

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/forkvm/forkvm/initrd/rootfs"
)

// libraryDirs is where the libraries of a Debian machine are.
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/ceph", "/lib", "/usr/lib"}

// buildFioImage makes a root file system of this machine's fio and of what it
// loads, and nothing else.
func buildFioImage(ctx context.Context, path string) error {
	fio, err := exec.LookPath("fio")
	if err != nil {
		return err
	}
	tree, err := os.MkdirTemp("", "forkvm-fio-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	if err := copyProgram(tree, fioProgram, fio, map[string]bool{}); err != nil {
		return err
	}
	for _, dir := range []string{"dev", "tmp", "proc"} {
		if err := os.Mkdir(filepath.Join(tree, dir), 0o755); err != nil {
			return err
		}
	}
	_, err = rootfs.Build(ctx, path, rootfs.Dir(tree), rootfs.Options{RootOwns: true})
	return err
}

// copyProgram copies an ELF file to where it is to be in the tree, and what it
// needs to where its loader looks.
func copyProgram(tree, to, from string, done map[string]bool) error {
	if done[to] {
		return nil
	}
	done[to] = true
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	target := filepath.Join(tree, to)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(target, b, 0o755); err != nil {
		return err
	}
	f, err := elf.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	if p := f.Section(".interp"); p != nil {
		loader, err := p.Data()
		if err != nil {
			return err
		}
		name := string(loader[:len(loader)-1])
		if err := copyProgram(tree, name, name, done); err != nil {
			return err
		}
	}
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, name := range libraries {
		path, err := findLibrary(name)
		if err != nil {
			return err
		}
		if err := copyProgram(tree, filepath.Join(libraryDirs[0], name), path, done); err != nil {
			return err
		}
	}
	return nil
}

func findLibrary(name string) (string, error) {
	for _, dir := range libraryDirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("library %s: not found", name)
}

// fioImageFor is the path of such an image, made once for this machine's fio.
func fioImageFor(ctx context.Context) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "forkvm", "bench", "fio.erofs")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return path, buildFioImage(ctx, path)
}
