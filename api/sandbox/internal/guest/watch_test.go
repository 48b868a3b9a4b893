package guest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/agent"
)

// TestD14_Watch: from when ready is called nothing is missed, until what is
// watched is gone.
func TestD14_Watch(t *testing.T) {
	g := start(t, agent.Options{})
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var got []api.FileEvent
	err := g.Watch(within(t, 30*time.Second), dir, func() {
		for _, step := range []error{os.Mkdir(filepath.Join(dir, "sub"), 0o755), os.Remove(filepath.Join(dir, "sub")), os.Remove(dir)} {
			if step != nil {
				t.Error(step)
			}
		}
	}, func(e api.FileEvent) error {
		got = append(got, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []api.FileEvent{{Name: "sub", Op: "create", Directory: true}, {Name: "sub", Op: "remove", Directory: true}, {Op: "gone"}}
	if len(got) != len(want) {
		t.Fatalf("%+v, want %+v", got, want)
	}
	for i := range want {
		if got[i].Name != want[i].Name || got[i].Op != want[i].Op || i < 2 && !got[i].Directory {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
}

// TestWatchMoved: what was moved is not there any more.
func TestWatchMoved(t *testing.T) {
	g := start(t, agent.Options{})
	p := filepath.Join(t.TempDir(), "f")
	write(t, g, p, "")
	err := g.Watch(within(t, 30*time.Second), p, func() {
		if err := os.Rename(p, p+"2"); err != nil {
			t.Error(err)
		}
	}, func(api.FileEvent) error { return nil })
	if err != nil {
		t.Error(err)
	}
}

func TestWatchEnds(t *testing.T) {
	g := start(t, agent.Options{})
	dir := t.TempDir()
	enough := errors.New("enough")
	touch := func() {
		if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
			t.Error(err)
		}
	}
	if err := g.Watch(within(t, 30*time.Second), dir, touch, func(api.FileEvent) error { return enough }); err != enough {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(within(t, 30*time.Second))
	if err := g.Watch(ctx, dir, func() { cancel(enough) }, func(api.FileEvent) error { return nil }); err != enough {
		t.Errorf("%v", err)
	}
	err := answering(frame(replyFrame, "{}")).Watch(within(t, 30*time.Second), "/x", nil, func(api.FileEvent) error { return nil })
	if want(t, err, api.Gone); !errors.Is(err, ErrLost) {
		t.Errorf("%v", err)
	}
}
