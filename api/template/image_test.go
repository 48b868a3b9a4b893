package template

import (
	"context"
	"errors"
	"testing"

	"github.com/forkvm/forkvm/vmm"
)

// loads has a store load images that are none, and counts which are open.
func loads(s *Store) (open map[string]int) {
	open = map[string]int{}
	s.load = func(_ context.Context, id string) (*vmm.Image, func() error, error) {
		open[id]++
		return new(vmm.Image), func() error { open[id]--; return nil }, nil
	}
	return open
}

// TestImagesThatWereReplaced are closed with their last user, and not before.
func TestImagesThatWereReplaced(t *testing.T) {
	s, _ := fakeStore(t, t.TempDir())
	open := loads(s)
	use := func(want Info) func() {
		t.Helper()
		image, info, done, err := s.Use(t.Context(), "x", BuildOptions{})
		if err != nil || image == nil || info.Snapshot != want.Snapshot {
			t.Fatalf("got that of %s, %v; want %s", info.Snapshot, err, want.Snapshot)
		}
		return done
	}
	is := func(when string, info Info, want int) {
		t.Helper()
		if open[info.Snapshot] != want {
			t.Errorf("%s: %s is open %d times, want %d", when, info.Snapshot, open[info.Snapshot], want)
		}
	}
	first := build1(t, s, Spec{Name: "x", Source: []byte("FROM base\nRUN 1")})
	done1, done2 := use(first), use(first)
	done1()
	done1() // counts once
	is("in use", first, 1)
	second := build1(t, s, Spec{Name: "x", Source: []byte("FROM base\nRUN 2")})
	is("built again, in use", first, 1)
	done3 := use(second)
	done2()
	is("built again, without users", first, 0)
	is("in use", second, 1)
	done3()
	is("without users, and as it is", second, 1)
	done4 := use(second)
	if err := s.Remove(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := s.Use(t.Context(), "x", BuildOptions{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed: %v", err)
	}
	is("removed, in use", second, 1)
	done4()
	is("removed, without users", second, 0)

	third := build1(t, s, Spec{Name: "x", Source: []byte("FROM base\nRUN 3")})
	if _, _, err := s.Image(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	done5 := use(third)
	fourth := build1(t, s, Spec{Name: "x", Source: []byte("FROM base\nRUN 4")})
	use(fourth)
	done5()
	is("handed out until the store is closed", third, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	done5()
	for id, n := range open {
		if n != 0 {
			t.Errorf("closed: %s is open %d times", id, n)
		}
	}
}
