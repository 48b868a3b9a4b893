package template

import (
	"context"
	"errors"
	"fmt"
)

// ErrMachine: a template that is made from another was to have machines that
// are not like those of the other.
var ErrMachine = errors.New("machines are like those of the template that they are made from")

// parent is the template that FROM names, nil if it names anything else. In the
// template of the name child: a template is not made from itself, so that its
// own name can only be that of an image.
func (s *Store) parent(from, child string) (*Info, error) {
	if _, isRecipe := recipes[from]; isRecipe || from == "base" || from == child || CheckName(from) != nil {
		return nil, nil
	}
	info, err := s.Get(from)
	if err == nil {
		return &info, nil
	}
	if !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	// An image that somebody else has given the same name is not what is meant.
	if old, oldErr := s.Get(child); oldErr == nil && old.From == from && old.Parent != "" {
		return nil, fmt.Errorf("FROM %s: %w any more, and %s was made from it", from, ErrNotFound, child)
	}
	return nil, nil
}

// inherit makes the build one that goes on from another template.
func (b *builder) inherit(p *Info) error {
	asked := b.spec.Machine
	for _, v := range []struct {
		what      string
		want, has int64
	}{
		{"virtual CPUs", int64(asked.VCPUs), int64(p.VCPUs)},
		{"bytes of memory", asked.Memory, p.Memory},
		{"bytes of disk", asked.Disk, p.Disk},
	} {
		if v.want != 0 && v.want != v.has {
			return fmt.Errorf("FROM %s: %w: %d %s, not %d", p.Name, ErrMachine, v.has, v.what, v.want)
		}
	}
	b.parent = p
	b.setting.VCPUs, b.setting.Memory, b.setting.Disk = p.VCPUs, p.Memory, p.Disk
	b.base = base{Size: p.Base, Config: p.Config, From: p.Name}
	return nil
}

// goOn lets the parent's machine go on. Between the reading of its record and
// of its snapshot the parent may have been removed or built again.
func (b *builder) goOn(ctx context.Context) (machine, error) {
	m, err := b.store.machines.restore(ctx, b.parent.Snapshot)
	if err != nil {
		return nil, fmt.Errorf("the template's machine: %w", err)
	}
	return m, nil
}
