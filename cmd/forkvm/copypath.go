package main

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/forkvm/forkvm/api"
)

// isContents tells whether a path stands for what is in a directory.
func isContents(name string) bool { return name == "." || strings.HasSuffix(name, "/.") }

func noName(from, to string) error {
	return usageError("cp: %s has no name to have in %s (try: %s)", from, to, strings.TrimSuffix(from, "/")+"/.")
}

// source is the file to copy, which a link may lead to.
func (c *copier) source(ctx context.Context, from string) (*api.FileInfo, error) {
	info, err := c.find(ctx, from)
	switch {
	case err != nil:
		return nil, err
	case info == nil:
		return nil, api.Errorf(api.NotFound, "%s: no such file or directory", from)
	case info.Type != api.Directory && (strings.HasSuffix(from, "/") || isContents(from)):
		return nil, usageError("cp: %s is no directory", from)
	}
	return info, nil
}

// target is where in the sandbox what is copied from one path to another goes,
// with base as its name if it goes into a directory.
func (c *copier) target(ctx context.Context, from, base, to string) (string, error) {
	if isContents(from) {
		return to, nil
	}
	there, err := c.find(ctx, to)
	if err != nil {
		return "", err
	}
	if !strings.HasSuffix(to, "/") && (there == nil || there.Type != api.Directory) {
		return to, nil
	}
	if base == "/" {
		return "", noName(from, to)
	}
	return path.Join(to, base), nil
}

// find is the file that a path leads to, also if that is a link. It is nil if
// there is none.
func (c *copier) find(ctx context.Context, name string) (*api.FileInfo, error) {
	info, err := c.stat(ctx, name)
	if info == nil || info.Type != api.Symlink {
		return info, err
	}
	there, err := c.files.RealPath(ctx, c.access, name)
	if err != nil {
		return nil, err
	}
	return c.stat(ctx, there.Path)
}

// stat is the file, nil if there is none. A link is not followed.
func (c *copier) stat(ctx context.Context, name string) (*api.FileInfo, error) {
	info, err := c.files.Stat(ctx, c.access, name)
	if errors.Is(err, api.NotFound) {
		return nil, nil
	}
	return info, err
}
