package main

import (
	"context"
	"path"
	"strings"

	"github.com/forkvm/forkvm/api"
)

// copyTo copies a file or directory of the sandbox to one of a sandbox, which may
// be the same. What is read goes there as it comes.
func (c *copier) copyTo(ctx context.Context, from string, there *copier, to string) error {
	info, err := c.source(ctx, from)
	if err != nil {
		return err
	}
	if to, err = there.target(ctx, from, path.Base(path.Clean(from)), to); err != nil {
		return err
	}
	if info.Type == api.Directory {
		return c.copyTree(ctx, info.Path, there, to)
	}
	r, info, err := c.files.ReadFile(ctx, c.access, info.Path)
	if err != nil {
		return err
	}
	defer r.Close()
	mode := info.Mode & 0o777 // who may run it as whom is for that sandbox to say
	_, err = there.files.WriteFile(ctx, there.access, to, r, api.WriteOptions{Mode: &mode})
	return err
}

func (c *copier) copyTree(ctx context.Context, from string, there *copier, to string) error {
	if c.access.ID == there.access.ID {
		if err := c.checkApart(ctx, from, to); err != nil {
			return err
		}
	}
	r, err := c.files.ReadTree(ctx, c.access, from)
	if err != nil {
		return err
	}
	defer r.Close()
	return there.files.WriteTree(ctx, there.access, to, r)
}

// checkApart refuses to copy a directory into itself, which would never end.
func (c *copier) checkApart(ctx context.Context, from, to string) error {
	outer, err := c.files.RealPath(ctx, c.access, from)
	if err != nil {
		return err
	}
	inner, err := c.files.RealPath(ctx, c.access, to)
	if err != nil {
		return err
	}
	if inner.Path == outer.Path || strings.HasPrefix(inner.Path, strings.TrimSuffix(outer.Path, "/")+"/") {
		return usageError("cp: %s is in %s, and a directory cannot be copied into itself", to, from)
	}
	return nil
}
