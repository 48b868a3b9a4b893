package sandbox

import (
	"testing"
	"testing/synctest"

	"github.com/forkvm/forkvm/api"
)

// TestIdle: a sandbox keeps its engine busy while it runs, and not while it is
// paused.
func TestIdle(t *testing.T) { synctest.Test(t, testIdle) }

func testIdle(t *testing.T) {
	r := newRig(t, Limits{})
	want := func(idle bool, after string) {
		t.Helper()
		if r.Idle() != idle {
			t.Errorf("idle after %s: %v, want %v", after, r.Idle(), idle)
		}
	}
	want(true, "opening it")
	b := r.create(t, api.Settings{})
	want(false, "create")
	for range 2 {
		if _, err := r.Pause(t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		want(true, "pause")
		if _, err := r.Resume(t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		want(false, "resume")
	}
	if err := r.Destroy(t.Context(), b.ID); err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // for the end of its machine
	want(true, "destroy")
	_, done, err := r.beginBuild(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want(false, "the beginning of a build")
	done()
	want(true, "its end")
}
