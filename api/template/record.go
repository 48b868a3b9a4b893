package template

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/forkvm/forkvm/api"
)

// Template is what an api.Service says of the template; a list of templates
// leaves some of it out.
func (i Info) Template() api.Template {
	return api.Template{
		Name: i.Name, BuiltIn: Builtin(i.Name), Ready: true, CreatedAt: i.Created, From: i.From,
		VCPUs: i.VCPUs, MemoryBytes: i.Memory, DiskBytes: i.Disk, StoredBytes: i.Stored,
		Kernel: i.Kernel, BuildSeconds: i.BuildSeconds, File: i.Source,
		Env: i.Config.Env, Cwd: i.Config.Workdir, User: i.Config.User, Cmd: i.Config.Cmd,
	}
}

// Templates lists the templates that there are, and the built-in ones, which can
// be built at once, in the order of their names. What cannot be read is left
// out, and is in the error.
func (s *Store) Templates(context.Context) (*api.TemplateList, error) {
	infos, err := s.List()
	list := []api.Template{}
	for _, i := range infos {
		t := i.Template()
		t.File, t.Env, t.Cwd, t.User, t.Cmd = "", nil, "", "", nil
		list = append(list, t)
	}
	for _, name := range Builtins() {
		if !slices.ContainsFunc(list, func(t api.Template) bool { return t.Name == name }) {
			list = append(list, unbuilt(name))
		}
	}
	slices.SortFunc(list, func(a, b api.Template) int { return cmp.Compare(a.Name, b.Name) })
	return &api.TemplateList{Templates: list}, err
}

func unbuilt(name string) api.Template { return api.Template{Name: name, BuiltIn: true} }

// Template describes a template, of which a built-in one need not be there. It
// fails with ErrNotFound or ErrName.
func (s *Store) Template(_ context.Context, name string) (*api.Template, error) {
	info, err := s.Get(name)
	t := info.Template()
	if errors.Is(err, ErrNotFound) && Builtin(name) {
		t, err = unbuilt(name), nil
	}
	if err != nil {
		return nil, err
	}
	return &t, nil
}
