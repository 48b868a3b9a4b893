package template

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
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

// toolVariable says what the test binary does under the name of mmdebstrap.
const toolVariable = "FORKVM_TEST_TOOL"

// fakeTool makes PATH lead to a mmdebstrap that does as it is told, and returns
// the path of a list of its calls.
func fakeTool(t *testing.T, what string) (calls string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "mmdebstrap")); err != nil {
		t.Fatal(err)
	}
	calls = filepath.Join(dir, "calls")
	t.Setenv("PATH", dir)
	t.Setenv(toolVariable, strings.Join([]string{what, tinyRoot(t), calls}, ","))
	return calls
}

// toolMain is that mmdebstrap. It returns the exit code.
func toolMain() int {
	what := strings.Split(os.Getenv(toolVariable), ",")
	calls, err := os.OpenFile(what[2], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(calls, strings.Join(os.Args[1:], " "))
	calls.Close()
	root, err := os.ReadFile(what[1])
	if err != nil {
		panic(err)
	}
	switch what[0] {
	case "good":
		fmt.Fprintln(os.Stderr, "talk")
		os.Stdout.Write(root)
		os.Stdout.Write(make([]byte, 100000)) // archives are padded
		return 0
	case "early":
		fmt.Fprintln(os.Stderr, "E: no network")
		return 25
	case "late":
		os.Stdout.Write(root)
		fmt.Fprintln(os.Stderr, "E: no space")
	case "half":
		os.Stdout.Write(root[:700])
	case "noise":
		os.Stdout.Write(bytes.Repeat([]byte("noise"), 100000))
		time.Sleep(time.Hour) // until it is interrupted
	case "nothing":
		return 0
	case "killed":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "talker":
		os.Stderr.Write(bytes.Repeat([]byte("x"), 1<<20))
	}
	return 1
}

func TestRecipe(t *testing.T) {
	s, f := fakeStore(t, t.TempDir())
	calls := fakeTool(t, "good")
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
	for what, want := range map[string]string{
		"early": "exit status 25\nE: no network", "late": "exit status 1\nE: no space", "half": "exit status 1",
		"noise": "FROM debian: ", "nothing": "FROM debian: ", "killed": "signal: killed", "talker": "exit status 1",
	} {
		t.Run(what, func(t *testing.T) {
			s, _ := fakeStore(t, t.TempDir())
			fakeTool(t, what)
			_, err := s.Build(t.Context(), Spec{Name: "debian"}, BuildOptions{})
			if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 2*maxTail {
				t.Errorf("%.300v, want %q", err, want)
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
