package template

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

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

// TestImageOfATemplateThatGoesWhileItIsLoaded is closed with its last user.
func TestImageOfATemplateThatGoesWhileItIsLoaded(t *testing.T) {
	s, _ := fakeStore(t, t.TempDir())
	open := loads(s)
	load := s.load
	s.load = func(ctx context.Context, id string) (*vmm.Image, func() error, error) {
		image, closeImage, err := load(ctx, id)
		return image, closeImage, errors.Join(err, s.Remove(ctx, "x"))
	}
	x := build1(t, s, Spec{Name: "x", Source: []byte("FROM base")})
	_, _, done, err := s.Use(t.Context(), "x", BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if open[x.Snapshot] != 1 {
		t.Errorf("in use, it is open %d times", open[x.Snapshot])
	}
	done()
	if open[x.Snapshot] != 0 {
		t.Errorf("without users, it is open %d times", open[x.Snapshot])
	}
}

// TestNamesThatAreNone leave nothing behind.
func TestNamesThatAreNone(t *testing.T) {
	s, _ := fakeStore(t, t.TempDir())
	for k := range 100 {
		if _, _, _, err := s.Use(t.Context(), fmt.Sprint("x", k), BuildOptions{}); !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
	}
	if n := len(s.images); n != 0 {
		t.Errorf("%d are remembered", n)
	}
}

// TestImagesUnderWay has some use a template, and others build and remove it, at
// once: each image is closed once, and when it is not used.
func TestImagesUnderWay(t *testing.T) {
	s, _ := fakeStore(t, t.TempDir())
	var mu sync.Mutex
	open := map[*vmm.Image]bool{}
	s.load = func(context.Context, string) (*vmm.Image, func() error, error) {
		mu.Lock()
		defer mu.Unlock()
		image := new(vmm.Image)
		open[image] = true
		return image, func() error {
			mu.Lock()
			defer mu.Unlock()
			if !open[image] {
				t.Error("closed twice")
			}
			delete(open, image)
			return nil
		}, nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := func(err error) bool { return err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrBusy) }
	var wg sync.WaitGroup
	for n := range 3 {
		wg.Go(func() {
			for k := range 50 {
				source := fmt.Sprintf("FROM base\nRUN %d-%d", n, k)
				if _, err := s.Build(ctx, Spec{Name: "x", Source: []byte(source)}, BuildOptions{}); !ended(err) {
					t.Error(err)
				}
				if err := s.Remove(ctx, "x"); !ended(err) {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 200 {
				image, _, done, err := s.Use(ctx, "x", BuildOptions{})
				if err != nil {
					if !ended(err) && !unusable(err) {
						t.Error(err)
					}
					continue
				}
				mu.Lock()
				if !open[image] {
					t.Error("closed while it is used")
				}
				mu.Unlock()
				done()
			}
		})
	}
	wg.Wait()
	if err := s.Remove(ctx, "x"); !ended(err) {
		t.Error(err)
	}
	if len(open) != 0 {
		t.Errorf("%d are open in the end", len(open))
	}
}
