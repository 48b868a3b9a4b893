package sandbox

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
)

// fakeTemplates are the templates of a world: base, and what was built, of which
// nothing is but the name.
type fakeTemplates struct {
	templatesMu sync.Mutex
	built       map[string]template.Spec
	// onBuild, if set, is asked what a build comes to, and onRemove is told of
	// a removal before there is one.
	onBuild   func(ctx context.Context, spec template.Spec, o template.BuildOptions) error
	onRemove  func()
	removeErr error
}

func (f *fakeTemplates) isTemplate(name string) bool {
	f.templatesMu.Lock()
	defer f.templatesMu.Unlock()
	_, ok := f.built[name]
	return ok || name == "base"
}

func (f *fakeTemplates) Templates(context.Context) (*api.TemplateList, error) {
	f.templatesMu.Lock()
	defer f.templatesMu.Unlock()
	list := []api.Template{{Name: "base", BuiltIn: true}}
	for name := range f.built {
		list = append(list, api.Template{Name: name, Ready: true})
	}
	return &api.TemplateList{Templates: list}, nil
}

func (f *fakeTemplates) Template(_ context.Context, name string) (*api.Template, error) {
	if err := template.CheckName(name); err != nil {
		return nil, err
	}
	if !f.isTemplate(name) {
		return nil, template.ErrNotFound
	}
	return &api.Template{Name: name, BuiltIn: name == "base"}, nil
}

func (f *fakeTemplates) Build(ctx context.Context, spec template.Spec, o template.BuildOptions) (template.Info, error) {
	if o.Progress != nil {
		o.Progress(template.Progress{Step: 1, Steps: 1, Text: "FROM base"})
	}
	if f.onBuild != nil {
		if err := f.onBuild(ctx, spec, o); err != nil {
			return template.Info{}, err
		}
	}
	f.templatesMu.Lock()
	defer f.templatesMu.Unlock()
	if f.built == nil {
		f.built = map[string]template.Spec{}
	}
	f.built[spec.Name] = spec
	return template.Info{Name: spec.Name, From: "base", Source: string(spec.Source)}, ctx.Err()
}

func (f *fakeTemplates) OpenLog(name string) (io.ReadCloser, error) {
	if err := template.CheckName(name); err != nil {
		return nil, err
	}
	if !f.isTemplate(name) || name == "base" {
		return nil, fmt.Errorf("log: %w", template.ErrNotFound)
	}
	return io.NopCloser(strings.NewReader("log of " + name + "\n")), nil
}

func (f *fakeTemplates) Remove(_ context.Context, name string) error {
	if f.onRemove != nil {
		f.onRemove()
	}
	f.templatesMu.Lock()
	defer f.templatesMu.Unlock()
	if _, ok := f.built[name]; !ok {
		return template.ErrNotFound
	}
	if f.removeErr != nil {
		return f.removeErr
	}
	delete(f.built, name)
	return nil
}
