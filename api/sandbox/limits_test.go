package sandbox

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/forkvm/forkvm/api"
)

// take takes n snapshots.
func (r *rig) take(t *testing.T, id string, n int) (last *api.Snapshot) {
	t.Helper()
	for range n {
		last = must[*api.Snapshot](t)(r.CreateSnapshot(t.Context(), id, api.SnapshotRequest{}))
	}
	return last
}

func TestS37_SnapshotsOfATeam(t *testing.T) {
	r := newRig(t, Limits{SnapshotsPerSandbox: 1000})
	b := r.create(t, api.Settings{})
	r.take(t, b.ID, 100)
	_, err := r.CreateSnapshot(t.Context(), b.ID, api.SnapshotRequest{})
	wantCode(t, err, api.TooManySnapshots, "100")
	other := r.Engine.Team("other")
	c := must[*api.Sandbox](t)(other.Create(t.Context(), api.CreateRequest{}))
	must[*api.Snapshot](t)(other.CreateSnapshot(t.Context(), c.ID, api.SnapshotRequest{}))
}

func TestS38_SnapshotsOfASandbox(t *testing.T) {
	r := newRig(t, Limits{})
	a, b := r.create(t, api.Settings{}), r.create(t, api.Settings{})
	r.take(t, a.ID, 20)
	_, err := r.CreateSnapshot(t.Context(), a.ID, api.SnapshotRequest{})
	wantCode(t, err, api.TooManySnapshots, "20", "this sandbox")
	r.take(t, b.ID, 1)
}

func TestS39_SnapshotsInFlight(t *testing.T) {
	r := newRig(t, Limits{})
	b := r.create(t, api.Settings{})
	r.w.saving = make(chan struct{})
	ended := make(chan error, 4)
	for range 4 {
		go func() {
			_, err := r.CreateSnapshot(t.Context(), b.ID, api.SnapshotRequest{})
			ended <- err
		}()
	}
	for range 4 {
		<-r.w.saving
	}
	_, err := r.CreateSnapshot(t.Context(), b.ID, api.SnapshotRequest{})
	wantCode(t, err, api.TooManySnapshotsInFlight, "4")
	if e, _ := errors.AsType[*api.Error](err); e == nil || e.RetryAfter <= 0 {
		t.Error("it does not say when to try again")
	}
	for range 4 {
		r.w.goOn <- struct{}{}
	}
	for range 4 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestS40_DeletionFreesRoomAtOnce(t *testing.T) {
	r := newRig(t, Limits{})
	b := r.create(t, api.Settings{})
	last := r.take(t, b.ID, 20)
	if err := r.DeleteSnapshot(t.Context(), last.ID); err != nil {
		t.Fatal(err)
	}
	r.take(t, b.ID, 1)
	_, err := r.CreateSnapshot(t.Context(), b.ID, api.SnapshotRequest{})
	wantCode(t, err, api.TooManySnapshots)
}

func TestS41_LimitsAreSettings(t *testing.T) {
	r := newRig(t, Limits{SnapshotsPerSandbox: 22, SnapshotsPerTeam: 23, SandboxesPerTeam: 3})
	b := r.create(t, api.Settings{})
	r.take(t, b.ID, 22)
	_, err := r.CreateSnapshot(t.Context(), b.ID, api.SnapshotRequest{})
	wantCode(t, err, api.TooManySnapshots, "22")
	_, err = r.Fork(t.Context(), b.ID, api.ForkRequest{Count: 3})
	wantCode(t, err, api.TooManySandboxes, "3")
	if _, err := open(t.Context(), t.TempDir(), Options{Limits: Limits{SnapshotsInFlight: -1}}, r.w); err == nil {
		t.Error("a negative limit was taken")
	}
}

// TestD03_OneBeingTakenCounts: against every limit, and no more once it failed.
func TestD03_OneBeingTakenCounts(t *testing.T) {
	r := newRig(t, Limits{SnapshotsPerSandbox: 2, SnapshotsPerTeam: 2})
	b := r.create(t, api.Settings{})
	r.take(t, b.ID, 1)
	r.w.saving = make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := r.CreateSnapshot(t.Context(), b.ID, api.SnapshotRequest{})
		ended <- err
	}()
	<-r.w.saving
	_, err := r.CreateSnapshot(t.Context(), b.ID, api.SnapshotRequest{})
	wantCode(t, err, api.TooManySnapshots)
	r.w.mu.Lock()
	r.w.saveErr = errors.New("no luck")
	r.w.mu.Unlock()
	r.w.goOn <- struct{}{}
	wantCode(t, <-ended, api.InternalError, "no luck")
	r.w.mu.Lock()
	r.w.saveErr, r.w.saving = nil, nil
	r.w.mu.Unlock()
	r.take(t, b.ID, 1)
}

// TestEnvironmentIsBounded: also what comes together over generations.
func TestEnvironmentIsBounded(t *testing.T) {
	r := newRig(t, Limits{})
	big := func(name string) api.Settings {
		return api.Settings{EnvVars: map[string]string{name: strings.Repeat("x", 60<<10)}}
	}
	b := r.create(t, big("A"))
	for _, name := range []string{"B", "C", "D"} {
		f := must[*api.ForkResult](t)(r.Fork(t.Context(), b.ID, api.ForkRequest{Settings: big(name)}))
		b = f.Children[0].Sandbox
	}
	_, err := r.Fork(t.Context(), b.ID, api.ForkRequest{Settings: big("E")})
	wantCode(t, err, api.BadRequest, "env_vars")
}

// TestMetadataIsBounded: as given, and as a child has it from its parent and the
// request.
func TestMetadataIsBounded(t *testing.T) {
	r := newRig(t, Limits{})
	half := func(key string) map[string]string {
		return map[string]string{key: strings.Repeat("x", api.MaxMetaBytes/2)}
	}
	many := func(key string) map[string]string {
		m := make(map[string]string)
		for i := range api.MaxMetadata/2 + 1 {
			m[fmt.Sprint(key, i)] = ""
		}
		return m
	}
	exact := map[string]string{"k": strings.Repeat("x", api.MaxMetaBytes-1)}
	r.create(t, api.Settings{Metadata: exact})
	exact["k"] += "x"
	_, err := r.Create(t.Context(), api.CreateRequest{Settings: api.Settings{Metadata: exact}})
	wantCode(t, err, api.BadRequest, "metadata")
	for _, m := range []func(string) map[string]string{half, many} {
		b := r.create(t, api.Settings{Metadata: m("a")})
		_, err := r.Fork(t.Context(), b.ID, api.ForkRequest{Settings: api.Settings{Metadata: m("b")}})
		wantCode(t, err, api.BadRequest, "metadata")
		patched := must[*api.Sandbox](t)(r.Update(t.Context(), b.ID, api.Patch{Metadata: m("b")}))
		if len(patched.Metadata) != len(m("b")) {
			t.Errorf("replaced: %d entries", len(patched.Metadata))
		}
		_, err = r.Update(t.Context(), b.ID, api.Patch{Metadata: exact})
		wantCode(t, err, api.BadRequest, "metadata")
		_, err = r.CreateSnapshot(t.Context(), b.ID, api.SnapshotRequest{Metadata: exact})
		wantCode(t, err, api.BadRequest, "metadata")
	}
}

// TestNamesAreCounted in characters, as the description has it.
func TestNamesAreCounted(t *testing.T) {
	r := newRig(t, Limits{})
	b := r.create(t, api.Settings{Name: strings.Repeat("ü", api.MaxName)})
	if _, err := r.Fork(t.Context(), b.ID, api.ForkRequest{Settings: api.Settings{Name: strings.Repeat("ü", api.MaxName+1)}}); !errors.Is(err, api.BadRequest) {
		t.Errorf("a longer one: %v", err)
	}
}
