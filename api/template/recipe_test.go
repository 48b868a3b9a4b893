package template

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func TestAptSources(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for name, test := range map[string]struct {
		etc  fstest.MapFS
		want string
	}{
		"none": {fstest.MapFS{}, `deb http://deb.debian.org/debian bookworm main
deb http://deb.debian.org/debian bookworm-updates main
deb http://deb.debian.org/debian-security bookworm-security main
`},
		"another system's": {fstest.MapFS{"sources.list": file("deb http://archive/ubuntu jammy main\n")}, `deb http://deb.debian.org/debian bookworm main
deb http://deb.debian.org/debian bookworm-updates main
deb http://deb.debian.org/debian-security bookworm-security main
`},
		"a mirror": {fstest.MapFS{
			"sources.list": file("# deb http://no bookworm main\ndeb [ signed-by=/k arch=amd64 ] http://mirror/debian bookworm main contrib # x\n" +
				"deb-src http://mirror/debian bookworm main\ndeb http://elsewhere stable main\ndeb http://x bookworm contrib\ndeb [ broken http://x bookworm main\n"),
			"sources.list.d/sec.list": file("deb http://mirror/security bookworm-security main\n"),
			"sources.list.d/a.save":   file("deb http://old bookworm main\n"),
		}, `deb [signed-by=/k arch=amd64] http://mirror/debian bookworm main
deb http://mirror/security bookworm-security main
`},
		"stanzas": {fstest.MapFS{"sources.list.d/debian.sources": file(`Types: deb deb-src
# comment
URIs: http://mirror/debian
Suites: bookworm bookworm-updates
 bookworm-backports
Components: main
 contrib
Signed-By: /usr/share/keyrings/k.gpg

Types: deb
URIs: http://off
Suites: bookworm
Components: main
Enabled: no

Types: deb
URIs: http://in-line
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 xyz
no colon
`)}, `deb [signed-by=/usr/share/keyrings/k.gpg] http://mirror/debian bookworm main
deb [signed-by=/usr/share/keyrings/k.gpg] http://mirror/debian bookworm-updates main
deb http://in-line bookworm main
`},
	} {
		if got := aptSources(test.etc); got != test.want {
			t.Errorf("%s:\n%swant\n%s", name, got, test.want)
		}
	}
}

func FuzzAptSources(f *testing.F) {
	f.Add("deb [a=b] http://x bookworm main", "Types: deb\nURIs: a\n b\nSuites: bookworm\nComponents: main")
	f.Fuzz(func(t *testing.T, list, sources string) {
		got := aptSources(fstest.MapFS{"sources.list": {Data: []byte(list)}, "sources.list.d/x.sources": {Data: []byte(sources)}})
		for l := range strings.Lines(got) {
			if !strings.HasPrefix(l, "deb ") {
				t.Fatalf("line %q", l)
			}
		}
	})
}

// fakeTool makes PATH lead to a mmdebstrap that is a script.
func fakeTool(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mmdebstrap"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestRecipe(t *testing.T) {
	s, f := fakeStore(t, t.TempDir())
	calls := filepath.Join(t.TempDir(), "calls")
	fakeTool(t, `echo "$@" >>`+calls+`; echo talk >&2; cat "`+tinyRoot(t)+`"; head -c 100000 /dev/zero`)
	var out bytes.Buffer
	info, err := s.Build(t.Context(), Spec{Name: "python"}, BuildOptions{Output: &out})
	if err != nil {
		t.Fatal(err)
	}
	if info.Base == 0 || info.Disk != defaultDisk || !strings.Contains(out.String(), "talk\n") {
		t.Errorf("base of %d bytes, disk of %d, printed %q", info.Base, info.Disk, out.String())
	}
	wantDid(t, f, "boot", "run python3 -m pytest --version", "run python3 -c pass")
	build1(t, s, Spec{Name: "mine", Source: []byte("FROM python")})
	args, err := os.ReadFile(calls)
	if err != nil || strings.Count(string(args), "\n") != 1 {
		t.Errorf("called with %q, %v; want once", args, err)
	}
	for _, want := range []string{"--variant=minbase", "python3-pytest", " bookworm - "} {
		if !strings.Contains(string(args), want) {
			t.Errorf("called with %q, want %q", args, want)
		}
	}
	if _, err := s.Build(t.Context(), Spec{Name: "mine", Source: []byte("FROM python")}, BuildOptions{Pull: true}); err != nil {
		t.Fatal(err)
	}
	if args, _ := os.ReadFile(calls); strings.Count(string(args), "\n") != 2 {
		t.Errorf("Pull did not get it again: %q", args)
	}
}

func TestRecipeFails(t *testing.T) {
	root := tinyRoot(t)
	for name, test := range map[string]struct{ script, want string }{
		"the tool":          {"echo E: no network >&2; exit 25", "exit status 25\nE: no network"},
		"the tool, late":    {"cat " + root + "; echo E: no space >&2; exit 1", "exit status 1\nE: no space"},
		"the tool, half":    {"head -c 700 " + root + "; exit 1", "exit status 1"},
		"no archive":        {"head -c 100000 /dev/urandom; sleep 600", "FROM debian: "},
		"nothing":           {"exit 0", "FROM debian: "},
		"killed":            {"kill -9 $$", "signal: killed"},
		"talks without end": {"head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1", "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := fakeStore(t, t.TempDir())
			fakeTool(t, test.script)
			_, err := s.Build(t.Context(), Spec{Name: "debian"}, BuildOptions{})
			if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 2*maxTail {
				t.Errorf("%.300v, want %q", err, test.want)
			}
			for _, dir := range []string{"tmp", "bases"} {
				if left, err := os.ReadDir(s.path(dir)); err != nil || len(left) != 0 {
					t.Errorf("left in %s: %v, %v", dir, left, err)
				}
			}
		})
	}
	t.Run("no tool", func(t *testing.T) {
		s, _ := fakeStore(t, t.TempDir())
		t.Setenv("PATH", t.TempDir())
		_, err := s.Build(t.Context(), Spec{Name: "debian"}, BuildOptions{})
		if !errors.Is(err, ErrNoTool) || !strings.Contains(err.Error(), "apt-get install mmdebstrap") {
			t.Errorf("error %v", err)
		}
	})
}

func TestFetch(t *testing.T) {
	s, _ := fakeStore(t, t.TempDir())
	dir := t.TempDir()
	put(t, dir, "file", "text")
	if n, err := s.Fetch(t.Context(), dir, nil); err != nil || n == 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if n, err := s.Fetch(t.Context(), "base", nil); err != nil || n != 0 {
		t.Errorf("base: %d bytes, %v", n, err)
	}
	if _, err := s.Fetch(t.Context(), "./relative", nil); err == nil {
		t.Error("a relative path without a context was taken")
	}
}
