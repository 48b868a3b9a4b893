package template

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestX18_ReadyCheckEvery2SecondsFor10Minutes has a start command become ready
// in the last moment, and never.
func TestX18_ReadyCheckEvery2SecondsFor10Minutes(t *testing.T) {
	for name, c := range map[string]struct {
		ready time.Duration // after which the check succeeds
		want  error
		took  time.Duration
	}{
		"at once": {0, nil, 0}, "later": {5 * time.Second, nil, 6 * time.Second},
		"in the last moment": {598 * time.Second, nil, 598 * time.Second}, "never": {time.Hour, ErrNotReady, 10 * time.Minute},
	} {
		s, f := fakeStore(t, t.TempDir())
		s.checkEvery, s.checkFor = checkEvery, checkFor
		synctest.Test(t, func(t *testing.T) {
			var checks []time.Duration
			begin := time.Now()
			f.on = func(context.Context, *fakeMachine, string, io.Writer) error {
				checks = append(checks, time.Since(begin))
				if time.Since(begin) < c.ready {
					return exit(1)
				}
				return nil
			}
			_, err := s.Build(t.Context(), Spec{Name: "x", Source: []byte("FROM base\nCMD serve\nHEALTHCHECK CMD check")}, BuildOptions{})
			if !errors.Is(err, c.want) || time.Since(begin) != c.took {
				t.Errorf("%s: after %v: %v, want %v after %v", name, time.Since(begin), err, c.want, c.took)
			}
			for k, at := range checks {
				if at != time.Duration(k)*2*time.Second {
					t.Errorf("%s: check %d came after %v", name, k, at)
				}
			}
		})
	}
}

// TestRemoveDuringABuild: what is being built cannot be removed.
func TestRemoveDuringABuild(t *testing.T) {
	s, f := fakeStore(t, t.TempDir())
	build1(t, s, Spec{Name: "x", Source: []byte("FROM base\nRUN a")})
	f.on = func(ctx context.Context, _ *fakeMachine, _ string, _ io.Writer) error {
		if err := s.Remove(ctx, "x"); !errors.Is(err, ErrBusy) {
			t.Errorf("removed while it is built: %v", err)
		}
		return nil
	}
	build1(t, s, Spec{Name: "x", Source: []byte("FROM base\nRUN b")})
	if err := s.Remove(t.Context(), "x"); err != nil {
		t.Error(err)
	}
	if err := s.Remove(t.Context(), "x"); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
}

// TestBuildThatIsGivenUp leaves the template as it was, and nothing half done;
// what was done need not be done again.
func TestBuildThatIsGivenUp(t *testing.T) {
	s, f := fakeStore(t, t.TempDir())
	before := build1(t, s, Spec{Name: "x", Source: []byte("FROM base\nRUN a")})
	spec := Spec{Name: "x", Source: []byte("FROM base\nRUN a\nRUN b\nRUN c")}
	for _, last := range []string{"b", "c"} {
		ctx, cancel := context.WithCancel(t.Context())
		f.on = func(ctx context.Context, _ *fakeMachine, line string, _ io.Writer) error {
			if line == last {
				cancel()
				return context.Cause(ctx)
			}
			return nil
		}
		if _, err := s.Build(ctx, spec, BuildOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
		if now, err := s.Get("x"); err != nil || now.Snapshot != before.Snapshot {
			t.Errorf("the template is %+v, %v", now, err)
		}
		for _, dir := range []string{"tmp", "scratch"} {
			if left, err := os.ReadDir(s.path(dir)); err != nil || len(left) != 0 {
				t.Errorf("left in %s: %v, %v", dir, left, err)
			}
		}
	}
	f.on = nil
	f.take()
	build1(t, s, spec)
	wantDid(t, f, "restore", "run c")
	if _, err := s.Prune(t.Context()); err != nil {
		t.Errorf("the locks were not given back: %v", err)
	}
}
