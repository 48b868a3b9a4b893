package template

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func build1(t *testing.T, s *Store, spec Spec) Info {
	t.Helper()
	info, err := s.Build(t.Context(), spec, BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func wantDid(t *testing.T, f *fakeMachines, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, f.take()); diff != "" {
		t.Errorf("what was done (-want +got):\n%s", diff)
	}
}

// TestBuildRunsWhatChanged: a build goes on from the last step that is still
// the same.
func TestBuildRunsWhatChanged(t *testing.T) {
	s, f := fakeStore(t, t.TempDir())
	dir := t.TempDir()
	put(t, dir, "file", "content")
	put(t, dir, "other", "")
	spec := func(lines ...string) Spec {
		return Spec{Name: "x", Source: []byte("FROM base\n" + strings.Join(lines, "\n")), Context: dir}
	}
	first := build1(t, s, spec("RUN a", "COPY file /f", "RUN b"))
	wantDid(t, f, "boot", "run a", "run b")
	again := build1(t, s, spec("RUN a", "COPY file /f", "RUN b"))
	wantDid(t, f)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("the same again: %s", diff)
	}

	last := build1(t, s, spec("RUN a", "COPY file /f", "RUN c"))
	wantDid(t, f, "restore", "run c")
	if got := f.stored[last.Snapshot]; !cmp.Equal(got.history, []string{"a", "c"}) || got.files["/f"] != "content" || got.label != "x" {
		t.Errorf("came to %+v", got)
	}
	if _, ok := f.stored[first.Snapshot]; ok {
		t.Error("what was replaced is still there")
	}

	put(t, dir, "other", "changed")
	if err := os.Chtimes(filepath.Join(dir, "file"), time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	build1(t, s, spec("# comment", "RUN a", "COPY   file /f", "RUN c"))
	wantDid(t, f)

	put(t, dir, "file", "changed")
	build1(t, s, spec("RUN a", "COPY file /f", "RUN c"))
	wantDid(t, f, "restore", "run c")

	build1(t, s, spec("RUN a", "ENV A=1", "COPY file /f", "RUN c"))
	wantDid(t, f, "restore", "run c")

	build1(t, s, spec("RUN a", "ENV A=1", "COPY file /f", "RUN c", "ENV B=2"))
	wantDid(t, f, "restore") // only what commands in forks get

	bigger := spec("RUN a")
	bigger.Machine.Memory = 1 << 30
	build1(t, s, bigger)
	wantDid(t, f, "boot", "run a")
	other := spec("RUN a")
	other.Name = "y"
	other.Machine.Memory = 1 << 30
	build1(t, s, other)
	wantDid(t, f, "restore")

	if _, err := s.Build(t.Context(), other, BuildOptions{NoCache: true}); err != nil {
		t.Fatal(err)
	}
	wantDid(t, f, "boot", "run a")
}

func TestStepThatFails(t *testing.T) {
	s, f := fakeStore(t, t.TempDir())
	f.on = func(_ context.Context, _ *fakeMachine, line string, out io.Writer) error {
		if line != "bad" {
			return nil
		}
		for k := range 1000 {
			fmt.Fprintf(out, "line %d\n", k)
		}
		return exit(3)
	}
	source := []byte("FROM base\nRUN good\n\nRUN bad\nRUN never")
	var output bytes.Buffer
	_, err := s.Build(t.Context(), Spec{Name: "x", Source: source}, BuildOptions{Output: &output})
	step, ok := errors.AsType[*StepError](err)
	if !ok {
		t.Fatalf("error %v", err)
	}
	if step.Step != 3 || step.Steps != 5 || step.Line != 4 || step.Text != "RUN bad" || step.Code != 3 {
		t.Errorf("%+v", step)
	}
	text := err.Error()
	if !strings.HasPrefix(text, "template: step 3 of 5, line 4: RUN bad: exit code 3\n") || !strings.HasSuffix(text, "line 998\nline 999\n") ||
		strings.Count(text, "\n") > maxTailLines+1 {
		t.Errorf("says %q", text)
	}
	if !strings.Contains(output.String(), "line 0\n") {
		t.Error("the output was not shown")
	}
	log, logErr := s.Log("x")
	if logErr != nil || !bytes.Contains(log, []byte("line 0\n")) || !bytes.Contains(log, []byte("exit code 3")) {
		t.Errorf("log %.200q, %v", log, logErr)
	}
	if _, err := s.Get("x"); !errors.Is(err, ErrNotFound) {
		t.Errorf("there is a template: %v", err)
	}
	wantDid(t, f, "boot", "run good", "run bad")
	f.on = nil
	info := build1(t, s, Spec{Name: "x", Source: source})
	wantDid(t, f, "restore", "run bad", "run never")
	if logs, err := os.ReadDir(filepath.Dir(info.Log)); err != nil || len(logs) != 1 {
		t.Errorf("%d logs, %v; want that of the build that succeeded", len(logs), err)
	}
}

// TestStepIsLost: a cached step whose machine cannot be restored is as good as
// none.
func TestStepIsLost(t *testing.T) {
	s, f := fakeStore(t, t.TempDir())
	spec := Spec{Name: "x", Source: []byte("FROM base\nRUN a\nRUN b")}
	info := build1(t, s, spec)
	f.take()
	lose := func(key string) {
		var st stepRecord
		if err := s.steps.read(key+".json", &st); err != nil {
			t.Fatal(err)
		}
		delete(f.stored, st.Snapshot)
	}
	lose(info.Steps[2])
	delete(f.stored, info.Snapshot)
	info = build1(t, s, spec)
	wantDid(t, f, "restore", "run b")

	if err := os.WriteFile(s.steps.path(info.Steps[2]+".json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	lose(info.Steps[1])
	lose(info.Steps[0])
	delete(f.stored, info.Snapshot)
	build1(t, s, spec)
	wantDid(t, f, "boot", "run a", "run b")
}

func TestX18_StartCommandIsCapturedWhenReady(t *testing.T) {
	s, f := fakeStore(t, t.TempDir())
	checks := 0
	f.on = func(_ context.Context, m *fakeMachine, line string, _ io.Writer) error {
		if line != "check" {
			return nil
		}
		if checks++; checks < 3 {
			return exit(1)
		}
		return nil
	}
	var seen []Progress
	info, err := s.Build(t.Context(), Spec{Name: "x", Source: []byte("FROM base\nRUN a\nCMD serve\nHEALTHCHECK CMD check")},
		BuildOptions{Progress: func(p Progress) { p.Elapsed = 0; seen = append(seen, p) }})
	if err != nil {
		t.Fatal(err)
	}
	wantDid(t, f, "boot", "run a", "start serve", "run check", "run check", "run check")
	if got := f.stored[info.Snapshot].history; !cmp.Equal(got, []string{"a", "check", "check", "check"}) {
		t.Errorf("captured after %q", got)
	}
	if diff := cmp.Diff([]Progress{
		{Step: 1, Steps: 3, Text: "FROM base"}, {Step: 1, Steps: 3, Text: "FROM base", Done: true},
		{Step: 2, Steps: 3, Text: "RUN a"}, {Step: 2, Steps: 3, Text: "RUN a", Done: true},
		{Step: 3, Steps: 3, Text: "capture"}, {Step: 3, Steps: 3, Text: "capture", Done: true},
	}, seen); diff != "" {
		t.Error(diff)
	}
}

func TestStartCommandFails(t *testing.T) {
	source := []byte("FROM base\nCMD serve\nHEALTHCHECK CMD check")
	t.Run("never ready", func(t *testing.T) {
		s, f := fakeStore(t, t.TempDir())
		s.checkFor = 20 * time.Millisecond
		f.on = func(context.Context, *fakeMachine, string, io.Writer) error { return exit(1) }
		_, err := s.Build(t.Context(), Spec{Name: "x", Source: source}, BuildOptions{})
		if !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "last words") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("ended", func(t *testing.T) {
		s, f := fakeStore(t, t.TempDir())
		f.on = func(context.Context, *fakeMachine, string, io.Writer) error { return exit(1) }
		f.died = exit(9)
		_, err := s.Build(t.Context(), Spec{Name: "x", Source: source}, BuildOptions{})
		step, ok := errors.AsType[*StepError](err)
		if !ok || step.Code != 9 || !strings.Contains(step.Output, "last words") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("check cannot be run", func(t *testing.T) {
		s, f := fakeStore(t, t.TempDir())
		f.on = func(context.Context, *fakeMachine, string, io.Writer) error { return errFake }
		if _, err := s.Build(t.Context(), Spec{Name: "x", Source: source}, BuildOptions{}); !errors.Is(err, errFake) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("given up", func(t *testing.T) {
		s, f := fakeStore(t, t.TempDir())
		ctx, cancel := context.WithCancelCause(t.Context())
		f.on = func(context.Context, *fakeMachine, string, io.Writer) error {
			cancel(errFake)
			return exit(1)
		}
		if _, err := s.Build(ctx, Spec{Name: "x", Source: source}, BuildOptions{}); !errors.Is(err, errFake) {
			t.Errorf("error %v", err)
		}
	})
}

// TestBuildsOfOneNameTakeTurns, in two stores of one directory, as those of two
// processes.
func TestBuildsOfOneNameTakeTurns(t *testing.T) {
	dir := t.TempDir()
	s, f := fakeStore(t, dir)
	other, _ := fakeStore(t, dir)
	other.machines = f
	f.on = func(context.Context, *fakeMachine, string, io.Writer) error {
		f.did1("end")
		return nil
	}
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			store := []*Store{s, other}[k%2]
			if _, err := store.Build(t.Context(), Spec{Name: "x", Source: []byte("FROM base\nRUN a")}, BuildOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantDid(t, f, "boot", "run a", "end")
	if len(f.stored) != 3 {
		t.Errorf("%d machines are stored, want those of two steps and the template's", len(f.stored))
	}
}

func TestWhoWaitsForABuildCanGiveUp(t *testing.T) {
	s, f := fakeStore(t, t.TempDir())
	spec := Spec{Name: "x", Source: []byte("FROM base\nRUN a")}
	f.on = func(context.Context, *fakeMachine, string, io.Writer) error {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errFake)
		if _, err := s.Build(ctx, spec, BuildOptions{}); !errors.Is(err, errFake) {
			t.Errorf("another build: %v", err)
		}
		if _, err := s.Prune(t.Context()); !errors.Is(err, ErrBusy) {
			t.Errorf("prune during a build: %v", err)
		}
		return nil
	}
	build1(t, s, spec)
}

func TestBuildRefuses(t *testing.T) {
	s, _ := fakeStore(t, t.TempDir())
	for _, test := range []struct {
		spec Spec
		want error
	}{
		{Spec{Name: "", Source: []byte("FROM base")}, ErrName},
		{Spec{Name: "../x", Source: []byte("FROM base")}, ErrName},
		{Spec{Name: "python", Source: []byte("FROM base")}, ErrName},
		{Spec{Name: "x"}, ErrNotFound},
		{Spec{Name: "x", Source: []byte{}}, ErrSyntax},
		{Spec{Name: "x", Source: []byte("FROM base\nCOPY a /")}, nil},
		{Spec{Name: "x", Source: []byte("FROM base\nCOPY a /"), Context: t.TempDir()}, nil},
		{Spec{Name: "x", Source: []byte("FROM base"), Context: filepath.Join(t.TempDir(), "none")}, os.ErrNotExist},
		{Spec{Name: "x", Source: []byte("FROM ./none")}, nil},
		{Spec{Name: "x", Source: []byte("FROM /none")}, os.ErrNotExist},
		{Spec{Name: "x", Source: []byte("FROM base"), Args: map[string]string{"A": "1"}}, ErrSyntax},
	} {
		_, err := s.Build(t.Context(), test.spec, BuildOptions{})
		if err == nil || test.want != nil && !errors.Is(err, test.want) || !strings.HasPrefix(err.Error(), "template: ") {
			t.Errorf("%+v: %v, want %v", test.spec, err, test.want)
		}
	}
}
