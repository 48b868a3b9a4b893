package sandbox

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
)

// buildTemplate builds one without a context.
func (r *rig) buildTemplate(t testing.TB, name string) *api.Template {
	t.Helper()
	return must[*api.Template](t)(r.BuildTemplate(t.Context(), api.BuildRequest{Name: name, File: "FROM base"}, nil, nil))
}

func (r *rig) createFrom(t testing.TB, name string) *api.Sandbox {
	t.Helper()
	return must[*api.Sandbox](t)(r.Create(t.Context(), api.CreateRequest{Template: name}))
}

// wantConflict checks that a template cannot be deleted, and what is said of
// why.
func (r *rig) wantConflict(t testing.TB, when string, words string) {
	t.Helper()
	err := r.DeleteTemplate(t.Context(), "web")
	if !errors.Is(err, api.Conflict) || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v, want a conflict for %s", when, err, words)
	}
	if err != nil && (strings.Contains(err.Error(), api.SandboxPrefix+"_") || strings.Contains(err.Error(), "two")) {
		t.Errorf("%s: it says whose they are: %v", when, err)
	}
	if _, err := r.Template(t.Context(), "web"); err != nil {
		t.Errorf("%s: the template: %v", when, err)
	}
}

// TestX18_ReferencedTemplate has all that goes back to a template keep it from
// being deleted: sandboxes in every state and snapshots, of all teams.
func TestX18_ReferencedTemplate(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	r.buildTemplate(t, "web")
	other := r.Engine.Team("two")
	b := must[*api.Sandbox](t)(other.Create(ctx, api.CreateRequest{Template: "web"}))
	r.wantConflict(t, "one that runs", "1 sandbox of")
	must[*api.Sandbox](t)(other.Pause(ctx, b.ID))
	r.wantConflict(t, "one that is paused", "1 sandbox of")
	s := must[*api.Snapshot](t)(other.CreateSnapshot(ctx, b.ID, api.SnapshotRequest{}))
	child := must[*api.ForkResult](t)(other.Fork(ctx, b.ID, api.ForkRequest{})).Children[0].Sandbox
	r.wantConflict(t, "a fork and a snapshot", "2 sandboxes and 1 snapshot of")
	r.machine(child.ID).die(errors.New("broken"))
	must[*api.Sandbox](t)(other.Wait(ctx, child.ID, api.WaitRequest{States: []api.State{api.Failed}, Timeout: api.MaxWait}))
	r.wantConflict(t, "one that has failed", "2 sandboxes and")

	r.buildTemplate(t, "web") // another of the same name is the same reference
	r.wantConflict(t, "built again", "2 sandboxes and")
	for _, id := range []string{b.ID, child.ID} {
		if err := other.Destroy(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	r.wantConflict(t, "the snapshot alone", "what 1 snapshot of")
	r.createFrom(t, "base") // of another
	done, err := r.useTemplate(ctx, "web")
	if err != nil {
		t.Fatal(err)
	}
	r.wantConflict(t, "the snapshot, and a sandbox that is being made", "1 sandbox and 1 snapshot of")
	done()
	again := must[*api.Sandbox](t)(other.Create(ctx, api.CreateRequest{FromSnapshot: s.ID}))
	if err := other.DeleteSnapshot(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	r.wantConflict(t, "a sandbox of the snapshot", "1 sandbox of")
	if err := other.Destroy(ctx, again.ID); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is no error if there is none
		if err := r.DeleteTemplate(ctx, "web"); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Create(ctx, api.CreateRequest{Template: "web"}); !errors.Is(err, api.NotFound) {
			t.Errorf("created of a template that was deleted: %v", err)
		}
	}
	if err := r.DeleteTemplate(ctx, "../web"); !errors.Is(err, api.BadRequest) {
		t.Errorf("a bad name: %v", err)
	}
}

// TestX18_ReferencesOutliveACrash: what is in the database counts.
func TestX18_ReferencesOutliveACrash(t *testing.T) {
	r := newRig(t, Limits{})
	r.buildTemplate(t, "web")
	b := r.createFrom(t, "web")
	must[*api.Snapshot](t)(r.CreateSnapshot(t.Context(), b.ID, api.SnapshotRequest{}))
	r.crash(t)
	r.open(t)
	r.wantConflict(t, "after a crash", "1 sandbox and 1 snapshot of")
}

// TestDeletionAndCreationAtOnce: a sandbox is created while its template is
// there, or is not created. Either way nothing refers to a template that is
// gone.
func TestDeletionAndCreationAtOnce(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	r.buildTemplate(t, "web")
	removing, goOn := make(chan struct{}), make(chan struct{})
	r.w.onRemove = func() { removing <- struct{}{}; <-goOn }
	deleted := make(chan error, 2)
	go func() { deleted <- r.DeleteTemplate(ctx, "web") }()
	<-removing
	created := make(chan error, 1)
	go func() {
		_, err := r.Create(ctx, api.CreateRequest{Template: "web"})
		created <- err
	}()
	impatient, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.Create(impatient, api.CreateRequest{Template: "web"}); !errors.Is(err, context.Canceled) {
		t.Errorf("who does not wait: %v", err)
	}
	if err := r.DeleteTemplate(impatient, "web"); !errors.Is(err, context.Canceled) {
		t.Errorf("who does not wait: %v", err)
	}
	r.createFrom(t, "base") // others are not in the way
	select {
	case err := <-created:
		t.Fatalf("created while the template was being removed: %v", err)
	default:
	}
	r.w.onRemove = nil
	close(goOn)
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	if err := <-created; !errors.Is(err, api.NotFound) {
		t.Errorf("created: %v", err)
	}
}

// TestDeletionsAndCreationsHammered has each sandbox that there is go back to a
// template that there is.
func TestDeletionsAndCreationsHammered(t *testing.T) {
	r := newRig(t, Limits{})
	ctx := t.Context()
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			for range 30 {
				switch k % 4 {
				case 0:
					if _, err := r.BuildTemplate(ctx, api.BuildRequest{Name: "web", File: "FROM base"}, nil, nil); err != nil && !errors.Is(err, api.OutOfCapacity) {
						t.Error(err)
					}
				case 1:
					if err := r.DeleteTemplate(ctx, "web"); err != nil && !errors.Is(err, api.Conflict) {
						t.Error(err)
					}
				default:
					b, err := r.Create(ctx, api.CreateRequest{Template: "web"})
					if errors.Is(err, api.NotFound) {
						continue
					}
					if err != nil {
						t.Error(err)
						continue
					}
					if _, err := r.Template(ctx, "web"); err != nil {
						t.Errorf("the template of a sandbox: %v", err)
					}
					if err := r.Destroy(ctx, b.ID); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	r.Engine.mu.Lock()
	defer r.Engine.mu.Unlock()
	if len(r.making)+len(r.removing)+r.builds != 0 {
		t.Errorf("left are %v, %v and %d builds", r.making, r.removing, r.builds)
	}
}

// TestFailedCreationCountsNoMore: who could not make a sandbox is no reference.
func TestFailedCreationCountsNoMore(t *testing.T) {
	r := newRig(t, Limits{SandboxesPerTeam: 1})
	r.buildTemplate(t, "web")
	r.createFrom(t, "base")
	if _, err := r.Create(t.Context(), api.CreateRequest{Template: "web"}); !errors.Is(err, api.TooManySandboxes) {
		t.Errorf("created: %v", err)
	}
	if err := r.DeleteTemplate(t.Context(), "web"); err != nil {
		t.Error(err)
	}
}

func TestTemplateLog(t *testing.T) {
	r := newRig(t, Limits{})
	r.buildTemplate(t, "web")
	log := must[io.ReadCloser](t)(r.TemplateLog(t.Context(), "web"))
	defer log.Close()
	if b, err := io.ReadAll(log); err != nil || string(b) != "log of web\n" {
		t.Errorf("%q, %v", b, err)
	}
	for name, code := range map[string]api.Code{"none": api.NotFound, "../web": api.BadRequest} {
		if _, err := r.TemplateLog(t.Context(), name); !errors.Is(err, code) {
			t.Errorf("log of %s: %v", name, err)
		}
		if _, err := r.Template(t.Context(), name); !errors.Is(err, code) {
			t.Errorf("template %s: %v", name, err)
		}
	}
}

// TestRemovalFails: the template is there, and can be used.
func TestRemovalFails(t *testing.T) {
	r := newRig(t, Limits{})
	r.buildTemplate(t, "web")
	r.w.removeErr = template.ErrBusy
	if err := r.DeleteTemplate(t.Context(), "web"); !errors.Is(err, api.Conflict) {
		t.Errorf("deleted while it is being built: %v", err)
	}
	r.createFrom(t, "web")
}
