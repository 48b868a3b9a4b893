package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/forkvm/forkvm/initrd/rootfs"
	"github.com/forkvm/forkvm/initrd/rootfs/registry"
)

// base is what a template is made from.
type base struct {
	Sum    string `json:"sum"`  // of the image; empty: there is none, and no disk
	Size   int64  `json:"size"` // of the image, in bytes
	Config Config `json:"config"`
	From   string `json:"from"` // what it was made of
}

// bases makes and keeps the images of bases.
type bases struct {
	dir files // SUM.erofs, and KEY.json for what need not be looked at again
	tmp string
}

// place is where FROM finds files.
type place struct {
	dir      string // relative paths are below it; empty: there are none
	confined bool   // and there are no others
}

// ErrOutside: FROM names a file of this machine that is not in the context
// directory, and may not.
var ErrOutside = errors.New("a file outside of the context directory")

// path is the file that FROM names.
func (p place) path(from string) (string, error) {
	if !filepath.IsAbs(from) {
		if p.dir == "" {
			return "", fmt.Errorf("%w: there is none, and the path is relative", ErrContext)
		}
		from = filepath.Join(p.dir, from)
	}
	if !p.confined {
		return from, nil
	}
	rel, err := filepath.Rel(p.dir, from) // by its letters: what is outside is not looked at
	if err != nil || !filepath.IsLocal(rel) {
		return "", ErrOutside
	}
	root, err := os.OpenRoot(p.dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	if _, err := root.Stat(rel); err != nil { // links that lead out are refused
		return "", fmt.Errorf("%w: %w", ErrContext, err)
	}
	// Nobody changes the directory meanwhile: it is the build's own.
	return filepath.EvalSymlinks(from)
}

// find makes the base that FROM names. What comes from elsewhere is got once,
// unless fresh says otherwise.
func (b *bases) find(ctx context.Context, from string, in place, fresh bool, log io.Writer) (base, error) {
	if from == "base" {
		return base{From: from}, nil
	}
	id := from
	if r, ok := recipes[from]; ok {
		id = r.text()
	} else if isPath(from) {
		return b.make(ctx, from, in, log)
	}
	name := sumText(id) + ".json"
	var known base
	if err := b.dir.read(name, &known); err == nil && !fresh && b.has(known) {
		return known, nil
	}
	made, err := b.make(ctx, from, in, log)
	if err != nil {
		return base{}, err
	}
	return made, b.dir.write(name, made)
}

// isPath tells whether FROM names a file of this machine.
func isPath(from string) bool {
	return strings.HasPrefix(from, "/") || strings.HasPrefix(from, "./") || strings.HasPrefix(from, "../") || from == "." || from == ".."
}

func (b *bases) has(k base) bool {
	info, err := os.Stat(b.image(k))
	return err == nil && info.Size() == k.Size
}

// image is the path of a base's image.
func (b *bases) image(k base) string { return b.dir.path(k.Sum + ".erofs") }

// make makes the image of a base.
func (b *bases) make(ctx context.Context, from string, in place, log io.Writer) (base, error) {
	tmp, err := os.MkdirTemp(b.tmp, "base-")
	if err != nil {
		return base{}, err
	}
	defer os.RemoveAll(tmp)
	path := filepath.Join(tmp, "erofs")
	info, err := build(ctx, path, tmp, from, in, log)
	if err != nil {
		return base{}, fmt.Errorf("FROM %s: %w", from, err)
	}
	made := base{Sum: hex.EncodeToString(info.Sum[:]), Size: info.Size, Config: configOf(info.Config), From: from}
	if b.has(made) {
		return made, nil
	}
	return made, os.Rename(path, b.image(made))
}

func build(ctx context.Context, path, tmp, from string, in place, log io.Writer) (rootfs.Info, error) {
	if r, ok := recipes[from]; ok {
		return r.build(ctx, path, tmp, log)
	}
	if !isPath(from) {
		src, err := registry.Image(from, registry.Options{})
		if err != nil {
			return rootfs.Info{}, fmt.Errorf("%w: %w", rootfs.ErrNoImage, err)
		}
		return rootfs.Build(ctx, path, src, rootfs.Options{})
	}
	from, err := in.path(from)
	if err != nil {
		return rootfs.Info{}, err
	}
	return buildPath(ctx, path, from)
}

// buildPath makes the image of a file or directory of this machine.
func buildPath(ctx context.Context, path, from string) (rootfs.Info, error) {
	info, err := os.Stat(from)
	if err != nil {
		return rootfs.Info{}, err
	}
	if info.IsDir() {
		if _, err := os.Stat(filepath.Join(from, "oci-layout")); !errors.Is(err, fs.ErrNotExist) {
			return rootfs.Build(ctx, path, rootfs.Layout(from, ""), rootfs.Options{})
		}
		return rootfs.Build(ctx, path, rootfs.Dir(from), rootfs.Options{})
	}
	if !info.Mode().IsRegular() {
		return rootfs.Info{}, errors.New("neither a file nor a directory")
	}
	made, err := rootfs.Build(ctx, path, rootfs.Archive(from, ""), rootfs.Options{})
	missing, ok := errors.AsType[*fs.PathError](err)
	if !ok || missing.Path != "index.json" { // without it an archive is no image's
		return made, err
	}
	f, err := os.Open(from)
	if err != nil {
		return rootfs.Info{}, err
	}
	defer f.Close()
	return rootfs.Build(ctx, path, rootfs.Tar(f), rootfs.Options{})
}

// configOf is what a container image says about running it.
func configOf(c rootfs.Config) Config {
	return Config{Env: c.Env, Workdir: c.WorkingDir, User: c.User, Cmd: append(c.Entrypoint[:len(c.Entrypoint):len(c.Entrypoint)], c.Cmd...)}
}

func sumText(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
