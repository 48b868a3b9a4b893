package template

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/forkvm/forkvm/internal/localtree"
)

// TestPackedContextIsTheSame: a build elsewhere finds what one here does, and
// nothing that is ignored.
func TestPackedContextIsTheSame(t *testing.T) {
	here, there := t.TempDir(), t.TempDir()
	put(t, here, "file", "content")
	put(t, here, "dir/program", "run")
	put(t, here, "secret/key", "s")
	put(t, here, ".dockerignore", "secret\n")
	if err := os.Chmod(filepath.Join(here, "dir/program"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../file", filepath.Join(here, "dir/link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(here, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := Pack(t.Context(), here, &archive); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(archive.String(), "secret/") || strings.Contains(archive.String(), "fifo") {
		t.Error("what is ignored, or cannot be copied, was packed")
	}
	if err := localtree.Unpack(there, &archive, localtree.Limits{}); err != nil {
		t.Fatal(err)
	}
	s, f := fakeStore(t, t.TempDir())
	spec := Spec{Name: "x", Source: []byte("FROM base\nCOPY dir file /d/"), Context: here}
	first := build1(t, s, spec)
	f.take()
	spec.Context = there
	if again := build1(t, s, spec); again.Key != first.Key {
		t.Error("what was unpacked is not what was packed")
	}
	wantDid(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Pack(ctx, here, &archive); !errors.Is(err, context.Canceled) {
		t.Errorf("packed although nobody wants it: %v", err)
	}
	if err := Pack(t.Context(), filepath.Join(here, "none"), &archive); err == nil {
		t.Error("a directory that is not there was packed")
	}
}

// TestConfined: FROM reaches files in the context, and no others.
func TestConfined(t *testing.T) {
	outer := t.TempDir()
	dir := filepath.Join(outer, "context")
	put(t, dir, "root/etc/name", "in")
	put(t, outer, "out/etc/name", "out")
	for name, to := range map[string]string{"in": "root", "away": "../out", "far": filepath.Join(outer, "out")} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s, _ := fakeStore(t, t.TempDir())
	for from, want := range map[string]error{
		"./root": nil, "./in": nil, filepath.Join(dir, "root"): nil,
		filepath.Join(outer, "out"): ErrOutside, "../out": ErrOutside, "./root/../../out": ErrOutside, "..": ErrOutside, "/etc": ErrOutside,
		"./away": ErrContext, "./far": ErrContext, "./away/etc": ErrContext, "./none": ErrContext,
	} {
		spec := Spec{Name: "x", Source: []byte("ARG WHERE=" + from + "\nFROM $WHERE"), Context: dir, Confined: true}
		if _, err := s.Build(t.Context(), spec, BuildOptions{}); !errors.Is(err, want) {
			t.Errorf("FROM %s: %v, want %v", from, err, want)
		}
		spec.Context = ""
		if _, err := s.Build(t.Context(), spec, BuildOptions{}); err == nil {
			t.Errorf("FROM %s without a context: it was built", from)
		}
	}
}
