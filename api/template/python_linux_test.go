package template

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/vmm"
)

// pythonTime bounds each command in a guest of the python template, however
// slow the machine.
const pythonTime = 3 * time.Minute

// TestLinuxPython does in forks of the python template what it is there for.
func TestLinuxPython(t *testing.T) {
	s := pythonStore(t)
	var log bytes.Buffer
	begin := time.Now()
	image, info, err := s.ImageOrBuild(t.Context(), "python", BuildOptions{Output: &log})
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	t.Logf("built in %.1f s", time.Since(begin).Seconds())
	start := func(t *testing.T) pythonGuest {
		ctx, cancel := context.WithTimeout(t.Context(), bootTimeout)
		defer cancel()
		vm, err := image.Start(ctx, vmm.StartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { vm.Close() })
		return pythonGuest{t, vm, info}
	}
	t.Run("pytest", func(t *testing.T) { testPytest(start(t)) })
	t.Run("git", func(t *testing.T) { testGit(start(t)) })
	t.Run("pip", func(t *testing.T) { testPip(start(t), start) })
}

// testPytest: python3 and pytest are there as Debian's packages, and a project's
// tests pass and fail.
func testPytest(g pythonGuest) {
	g.want("install ok installed", "dpkg-query", "-W", "-f", "${Status}", "python3-pytest")
	g.want("42\n", "python3", "-c", "print(6 * 7)")
	g.put(map[string]string{
		"/srv/project/sums.py":      "def add(a, b):\n    return a + b\n",
		"/srv/project/test_sums.py": "from sums import add\n\ndef test_add():\n    assert add(2, 2) == 4\n",
		"/srv/project/wrong.py":     "from sums import add\n\ndef test_wrong():\n    assert add(2, 2) == 5\n",
	})
	pytest := []string{"python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "/srv/project"}
	if out, code := g.run(append(pytest, "/srv/project")...); code != 0 || !strings.Contains(out, "1 passed") {
		g.t.Errorf("tests that pass: exit code %d\n%s", code, out)
	}
	if out, code := g.run(append(pytest, "/srv/project/wrong.py")...); code != 1 || !strings.Contains(out, "1 failed") {
		g.t.Errorf("a test that fails: exit code %d\n%s", code, out)
	}
}

// testGit clones from a server of git's own.
func testGit(g pythonGuest) {
	g.put(map[string]string{"/srv/git/project/README": "cloned\n"})
	git := []string{"git", "-C", "/srv/git/project", "-c", "user.name=test", "-c", "user.email=test@localhost"}
	g.must(append(git, "init", "-q")...)
	g.must(append(git, "add", "README")...)
	g.must(append(git, "commit", "-qm", "first")...)
	g.serve("Ready to rumble", "git", "daemon", "--verbose", "--listen=127.0.0.1", "--base-path=/srv/git", "--export-all")
	g.must("git", "clone", "-q", "git://127.0.0.1/project", "/srv/clone")
	g.want("cloned\n", "cat", "/srv/clone/README")
	g.want("first\n", "git", "-C", "/srv/clone", "log", "--format=%s")
}

// testPip installs a package from an index into a virtual environment. Forks of
// the machine have it, each for itself, and other forks of the template do not.
func testPip(parent pythonGuest, start func(*testing.T) pythonGuest) {
	const python, module = "/srv/venv/bin/python", "/srv/index/greeting/greeting-1.0-py3-none-any.whl"
	t := parent.t
	parent.put(map[string]string{module: wheel(t)})
	parent.serve("Serving HTTP", "python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory", "/srv/index", "8000")
	parent.must("python3", "-m", "venv", "/srv/venv")
	parent.must(python, "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir", "--index-url", "http://127.0.0.1:8000", "greeting")

	ctx, cancel := context.WithTimeout(t.Context(), bootTimeout)
	defer cancel()
	vms, err := parent.vm.Fork(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	var children []pythonGuest
	for _, vm := range vms {
		t.Cleanup(func() { vm.Close() })
		children = append(children, pythonGuest{t, vm, parent.info})
	}
	use := []string{python, "-c", "import greeting; print(greeting.text)"}
	children[0].want("hello\n", use...)
	children[0].must("sh", "-c", "rm /srv/venv/lib/python3*/site-packages/greeting.py")
	if out, code := children[0].run(use...); code != 1 || !strings.Contains(out, "ModuleNotFoundError") {
		t.Errorf("in the fork that removed it: exit code %d\n%s", code, out)
	}
	children[1].want("hello\n", use...)
	parent.want("hello\n", use...)
	if out, code := start(t).run("test", "-e", "/srv/venv"); code != 1 {
		t.Errorf("another fork of the template has it too: exit code %d\n%s", code, out)
	}
}

// wheel is a package of one module, ready to be installed.
func wheel(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	const meta = "greeting-1.0.dist-info/"
	for _, f := range [][2]string{
		{"greeting.py", "text = 'hello'\n"},
		{meta + "METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n"},
		{meta + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{meta + "RECORD", "greeting.py,,\n" + meta + "METADATA,,\n" + meta + "WHEEL,,\n" + meta + "RECORD,,\n"},
	} {
		file, err := w.Create(f[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// pythonStore is a store that has nothing but images of bases: to make one
// takes a program and an archive of packages that a lab does not have.
func pythonStore(t *testing.T) *Store {
	t.Helper()
	bases := os.Getenv("FORKVM_TEST_BASES")
	if bases == "" {
		if os.Getenv("FORKVM_REQUIRE_BASES") == "1" {
			t.Fatal("FORKVM_REQUIRE_BASES=1, but FORKVM_TEST_BASES names no store's bases")
		}
		t.Skip("FORKVM_TEST_BASES names no store's bases")
	}
	m := linuxMachine(t)
	dir := t.TempDir()
	if err := os.Symlink(bases, filepath.Join(dir, "bases")); err != nil {
		t.Fatal(err)
	}
	return openStore(t, dir, Options{Machine: m})
}

// pythonGuest is a machine of the python template.
type pythonGuest struct {
	t    *testing.T
	vm   *vmm.VM
	info Info
}

// run runs a command and returns what it printed and its exit code.
func (g pythonGuest) run(argv ...string) (string, int) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), pythonTime)
	defer cancel()
	begin := time.Now()
	out, err := g.info.Command(ctx, g.vm, argv[0], argv[1:]...).CombinedOutput()
	g.t.Logf("%5.2f s: %s", time.Since(begin).Seconds(), strings.Join(argv, " "))
	if exit, ok := errors.AsType[*client.ExitError](err); ok && exit.Signal == 0 {
		return string(out), exit.Code
	}
	if err != nil {
		g.t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return string(out), 0
}

// must runs a command that has to succeed, and returns what it printed.
func (g pythonGuest) must(argv ...string) string {
	g.t.Helper()
	out, code := g.run(argv...)
	if code != 0 {
		g.t.Fatalf("%q: exit code %d\n%s", argv, code, out)
	}
	return out
}

// want runs a command that has to print what is given.
func (g pythonGuest) want(text string, argv ...string) {
	g.t.Helper()
	if out := g.must(argv...); out != text {
		g.t.Errorf("%q printed %q, want %q", argv, out, text)
	}
}

func (g pythonGuest) put(files map[string]string) {
	g.t.Helper()
	guest := g.vm.Agent().FS().WithContext(g.t.Context())
	for name, text := range files {
		err := guest.MkdirAll(path.Dir(name), 0o755)
		if err == nil {
			err = guest.WriteFile(name, []byte(text), 0o644)
		}
		if err != nil {
			g.t.Fatal(err)
		}
	}
}

// serve starts a server, and returns once it has printed what it does when it
// listens.
func (g pythonGuest) serve(says string, argv ...string) {
	g.t.Helper()
	cmd := g.info.Command(g.t.Context(), g.vm, argv[0], argv[1:]...)
	out := &watched{says: says, said: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-out.said:
	case err := <-ended:
		g.t.Fatalf("%q ended: %v\n%s", argv, err, out.text())
	case <-time.After(pythonTime):
		g.t.Fatalf("%q did not say %q\n%s", argv, says, out.text())
	}
}

// watched is output in which something is waited for.
type watched struct {
	says string
	said chan struct{} // closed then

	mu  sync.Mutex
	all bytes.Buffer
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := bytes.Contains(w.all.Bytes(), []byte(w.says))
	w.all.Write(b)
	if !before && bytes.Contains(w.all.Bytes(), []byte(w.says)) {
		close(w.said)
	}
	return len(b), nil
}

func (w *watched) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}
