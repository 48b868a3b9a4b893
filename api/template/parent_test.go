package template

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// family is a store with the template "mother".
func family(t *testing.T) (*Store, *fakeMachines, Info) {
	t.Helper()
	s, f := fakeStore(t, t.TempDir())
	mother := build1(t, s, motherSpec("a"))
	f.take()
	return s, f, mother
}

func motherSpec(line string) Spec {
	return Spec{Name: "mother", Source: []byte("FROM base\nENV A=1 B=2\nWORKDIR /existing/dir\nUSER app\nRUN " + line + "\nCMD serve"),
		Machine: Machine{Memory: 1 << 30, VCPUs: 3}}
}

var childSpec = Spec{Name: "child", Source: []byte("FROM mother\nENV B=3\nRUN b")}

// TestTemplateFromATemplate: its machine goes on, with its settings.
func TestTemplateFromATemplate(t *testing.T) {
	s, f, mother := family(t)
	child := build1(t, s, childSpec)
	wantDid(t, f, "restore", "run b")
	if got := f.stored[child.Snapshot].history; !cmp.Equal(got, []string{"a", "b"}) {
		t.Errorf("it has run %q", got)
	}
	if child.From != "mother" || child.Parent != mother.Snapshot {
		t.Errorf("made from %s, %s", child.From, child.Parent)
	}
	if child.Memory != 1<<30 || child.VCPUs != 3 || child.Disk != mother.Disk || child.Base != mother.Base {
		t.Errorf("a machine like %+v", child)
	}
	want := Config{Env: []string{"A=1", "B=3"}, Workdir: "/existing/dir", User: "app", Cmd: mother.Config.Cmd}
	if diff := cmp.Diff(want, child.Config); diff != "" {
		t.Error(diff)
	}
	if got, err := s.Get("child"); err != nil || got.Parent != mother.Snapshot {
		t.Errorf("recorded is %+v, %v", got, err)
	}
	build1(t, s, childSpec)
	wantDid(t, f)
	grandchild := build1(t, s, Spec{Name: "grandchild", Source: []byte("ARG OF\nFROM $OF\nRUN c"), Args: map[string]string{"OF": "child"}})
	wantDid(t, f, "restore", "run c")
	if got := f.stored[grandchild.Snapshot].history; !cmp.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("the grandchild has run %q", got)
	}
}

// TestParentIsBuiltAgain: what is made from it is too, when that is asked for.
func TestParentIsBuiltAgain(t *testing.T) {
	s, f, _ := family(t)
	child := build1(t, s, childSpec)
	build1(t, s, motherSpec("a2"))
	if _, ok := f.stored[child.Snapshot]; !ok {
		t.Fatal("the child is gone with what its parent was")
	}
	f.take()
	child = build1(t, s, childSpec)
	wantDid(t, f, "restore", "run b")
	if got := f.stored[child.Snapshot].history; !cmp.Equal(got, []string{"a2", "b"}) {
		t.Errorf("it has run %q", got)
	}
}

// TestParentIsRemoved: what was made from it stays, with its cached steps, and
// cannot be built again from something else of that name.
func TestParentIsRemoved(t *testing.T) {
	s, f, _ := family(t)
	child := build1(t, s, childSpec)
	if err := s.Remove(t.Context(), "mother"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := f.stored[child.Snapshot]; !ok || len(f.stored) != 1+len(child.Steps) {
		t.Errorf("%d machines are stored, want the child's and those of %d steps", len(f.stored), len(child.Steps))
	}
	if _, err := s.Build(t.Context(), childSpec, BuildOptions{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("built again: %v", err)
	}
	if got, err := s.Get("child"); err != nil || got.Snapshot != child.Snapshot {
		t.Errorf("the child is now %+v, %v", got, err)
	}
	if err := s.Remove(t.Context(), "child"); err != nil || len(f.stored) != 0 {
		t.Errorf("left are %d machines, %v", len(f.stored), err)
	}
}

// TestParentGoesDuringABuild: the build fails in words, or has no need of it.
func TestParentGoesDuringABuild(t *testing.T) {
	s, f, mother := family(t)
	f.on = func(context.Context, *fakeMachine, string, io.Writer) error { return s.Remove(t.Context(), "mother") }
	build1(t, s, childSpec)
	f.on = nil

	mother = build1(t, s, motherSpec("a"))
	delete(f.stored, mother.Snapshot)
	_, err := s.Build(t.Context(), Spec{Name: "other", Source: []byte("FROM mother")}, BuildOptions{})
	if step, ok := errors.AsType[*StepError](err); !ok || step.Step != 1 || !strings.Contains(err.Error(), "FROM mother") || !unusable(err) {
		t.Errorf("error %v", err)
	}
}

func TestTemplateFromATemplateRefuses(t *testing.T) {
	s, f, _ := family(t)
	for what, m := range map[string]Machine{
		"1073741824 bytes of memory, not 4096": {Memory: 4096}, "3 virtual CPUs, not 1": {VCPUs: 1}, "0 bytes of disk, not 4096": {Disk: 4096},
	} {
		spec := childSpec
		spec.Machine = m
		if _, err := s.Build(t.Context(), spec, BuildOptions{}); !errors.Is(err, ErrMachine) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	spec := childSpec
	spec.Machine = Machine{Memory: 1 << 30, VCPUs: 3}
	build1(t, s, spec)
	f.take()
	put(t, s.dir, "names/mother.json", "{")
	if _, err := s.Build(t.Context(), childSpec, BuildOptions{}); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("from a template with a damaged record: %v", err)
	}
	wantDid(t, f)
}

// TestWhatIsATemplate: of all that FROM may say.
func TestWhatIsATemplate(t *testing.T) {
	s, _, _ := family(t)
	for _, name := range []string{"base", "debian", "python"} {
		put(t, s.dir, "names/"+name+".json", `{"name":"`+name+`"}`)
	}
	for from, want := range map[string]bool{
		"mother": true, "base": false, "debian": false, "python": false, "child": false, "unknown": false,
		"mother:latest": false, "./mother": false, "/mother": false, "docker.io/library/mother": false, "..": false,
	} {
		if p, err := s.parent(from, "child"); err != nil || (p != nil) != want {
			t.Errorf("FROM %s: %+v, %v", from, p, err)
		}
	}
	if n, err := s.Fetch(t.Context(), "mother", nil); err != nil || n != 0 {
		t.Errorf("fetch: %d, %v", n, err)
	}
	if p, err := s.parent("mother", "mother"); err != nil || p != nil {
		t.Errorf("a template is made from itself: %+v, %v", p, err)
	}
}
