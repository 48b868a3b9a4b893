package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIgnore(t *testing.T) {
	rules, err := parseIgnore(`
# comment
*.pyc
/build
docs/**/draft?.md
**/node_modules
!keep.pyc
a[0-9].txt
\*
`)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"x.pyc": true, "sub/x.pyc": false, "keep.pyc": false, "build": true, "build/x/y": true, "sub/build": false,
		"docs/draft1.md": true, "docs/a/b/draft2.md": true, "docs/draft.md": false, "node_modules/x": true, "a/b/node_modules": true,
		"node_modules2": false, "a1.txt": true, "ab.txt": false, "*": true, "comment": false,
	} {
		if got := rules.ignores(name); got != want {
			t.Errorf("%s: ignored %v, want %v", name, got, want)
		}
	}
	for _, bad := range []string{"a[z-a]", strings.Repeat("x\n", maxIgnoreRules+1)} {
		if _, err := parseIgnore(bad); err == nil {
			t.Errorf("%.20q was taken", bad)
		}
	}
}

func FuzzIgnore(f *testing.F) {
	f.Add("*.x\n!y/**/[a-b]?\n\\", "a/b.x")
	f.Fuzz(func(t *testing.T, text, name string) {
		if rules, err := parseIgnore(text); err == nil {
			rules.ignores(name)
		}
	})
}

// copied is what a COPY puts into a guest, and to whom it gives what.
func copied(t *testing.T, dir, line string) (files, owners map[string]string, err error) {
	t.Helper()
	p := planOf(t, "FROM base\nWORKDIR /work\n"+line, nil)
	c, err := openContext(dir)
	if err != nil {
		return nil, nil, err
	}
	defer c.close()
	s := p.steps[1]
	h := sha256.New()
	if err := c.sum(t.Context(), s, h); err != nil {
		return nil, nil, err
	}
	m, err := (&fakeMachines{}).boot(t.Context(), setting{}, "")
	if err != nil {
		t.Fatal(err)
	}
	guest := m.(*fakeMachine)
	before := maps.Clone(guest.state.files)
	b := &builder{context: c}
	err = b.copy(t.Context(), guest, s, hex.EncodeToString(h.Sum(nil)))
	for name := range before {
		delete(guest.state.files, name)
	}
	return guest.state.files, guest.owners, err
}

func TestCopy(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "one.txt", "1")
	put(t, dir, "two.txt", "2")
	put(t, dir, "tree/a", "A")
	put(t, dir, "tree/sub/b", "B")
	put(t, dir, "tree/sub/skip.o", "O")
	put(t, dir, "skip.o", "O")
	put(t, dir, "odd [name]", "odd")
	put(t, dir, ignoreFile, "**/*.o\n")
	if err := os.Symlink("../one.txt", filepath.Join(dir, "tree/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("one.txt", filepath.Join(dir, "named")); err != nil {
		t.Fatal(err)
	}
	tree := func(at string) map[string]string {
		return map[string]string{at + "/a": "A", at + "/sub/": "", at + "/sub/b": "B", at + "/link": "-> ../one.txt"}
	}
	with := func(m map[string]string, more ...string) map[string]string {
		for _, d := range more {
			m[d+"/"] = ""
		}
		return m
	}
	for line, want := range map[string]map[string]string{
		"COPY one.txt /f":                  {"/f": "1"},
		"COPY one.txt f":                   {"/work/": "", "/work/f": "1"},
		"COPY one.txt .":                   {"/work/": "", "/work/one.txt": "1"},
		"COPY one.txt two.txt /d/":         {"/d/": "", "/d/one.txt": "1", "/d/two.txt": "2"},
		"COPY *.txt /d/":                   {"/d/": "", "/d/one.txt": "1", "/d/two.txt": "2"},
		"COPY t*.txt /d":                   {"/d": "2"},
		"COPY one.txt /existing/dir":       {"/existing/dir/one.txt": "1"},
		"COPY one.txt /":                   {"/one.txt": "1"},
		"COPY named /f":                    {"/f": "1"},
		"COPY named /d/":                   {"/d/": "", "/d/named": "1"},
		"COPY tree /d":                     with(tree("/d"), "/d"),
		"COPY tree /d/":                    with(tree("/d"), "/d"),
		"COPY ./tree/../tree/ /existing":   tree("/existing"),
		"COPY ../../one.txt /f":            {"/f": "1"}, // there is nothing above the context
		`COPY ["odd [name]", "/f"]`:        {"/f": "odd"},
		"COPY --chown=app one.txt /d/f":    {"/d/": "", "/d/f": "1"},
		"COPY --chown=5:staff tree /owned": with(tree("/owned"), "/owned"),
	} {
		got, _, err := copied(t, dir, line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", line, diff)
		}
	}
	for line, want := range map[string]map[string]string{
		"COPY --chown=app one.txt /existing/dir": {"/existing/dir/one.txt": "7:8"},
		"COPY --chown=7 one.txt /f":              {"/f": "7:8"},
		"COPY --chown=9 one.txt /f":              {"/f": "9:9"},
		"COPY --chown=app:staff tree /d": {
			"/d": "7:50", "/d/a": "7:50", "/d/sub": "7:50", "/d/sub/b": "7:50", "/d/link": "7:50",
		},
	} {
		if _, owners, err := copied(t, dir, line); err != nil || !cmp.Equal(owners, want) {
			t.Errorf("%s: %v, %v", line, owners, err)
		}
	}
}

func TestCopyRefuses(t *testing.T) {
	outside := t.TempDir()
	put(t, outside, "secret", "s")
	dir := t.TempDir()
	put(t, dir, "skip.o", "")
	put(t, dir, "a", "")
	put(t, dir, "b", "")
	put(t, dir, "pipes/x", "")
	put(t, dir, ignoreFile, "skip.o")
	for name, to := range map[string]string{"out": outside, "secret": filepath.Join(outside, "secret"), "up": "../" + filepath.Base(outside)} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipes/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"COPY none /":             "no such file",
		"COPY n*e /":              "no such file",
		"COPY skip.o /":           ignoreFile,
		"COPY [ab] /f":            "must end in a slash",
		"COPY [ /f":               "syntax error in pattern",
		"COPY out /f":             "escapes",
		"COPY secret /f":          "escapes",
		"COPY up/secret /f":       "no such file",
		"COPY pipes /f":           "neither a file",
		"COPY pipes/pipe /f":      "neither a file",
		"COPY --chown=nobody a /": `user "nobody"`,
		"COPY --chown=0:none a /": `group "none"`,
	} {
		files, _, err := copied(t, dir, line)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, copied %v; want %q", line, err, files, want)
		}
	}
	if err := os.Remove(filepath.Join(dir, ignoreFile)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, ignoreFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := openContext(dir); err == nil { // it is read as an empty file
		c.close()
	}
}

// TestCopyOfWhatChanges: what was copied is what was summed, or the build
// fails.
func TestCopyOfWhatChanges(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "tree/a", "before")
	s, f := fakeStore(t, t.TempDir())
	f.on = func(context.Context, *fakeMachine, string, io.Writer) error {
		put(t, dir, "tree/a", "after!")
		return nil
	}
	source := []byte("FROM base\nRUN change\nCOPY tree /d")
	_, err := s.Build(t.Context(), Spec{Name: "x", Source: source, Context: dir}, BuildOptions{})
	if step, ok := errors.AsType[*StepError](err); !ok || !errors.Is(err, errChanged) || step.Step != 3 {
		t.Errorf("error %v", err)
	}
	f.on = nil
	info := build1(t, s, Spec{Name: "x", Source: source, Context: dir})
	if got := f.stored[info.Snapshot].files["/d/a"]; got != "after!" {
		t.Errorf("copied %q", got)
	}
}

func TestContentOfAFileThatShrank(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "a", "content")
	c, err := openContext(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	info, err := os.Stat(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "a", "co")
	err = c.content(entry{host: "a", info: info}, func(r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	})
	if !errors.Is(err, errChanged) {
		t.Errorf("error %v", err)
	}
}

func TestSumOfContext(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "tree/a", "A")
	put(t, dir, "tree/b", "B")
	sum := func() string {
		t.Helper()
		c, err := openContext(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		h := sha256.New()
		if err := c.sum(t.Context(), planOf(t, "FROM base\nCOPY tree /d", nil).steps[0], h); err != nil {
			t.Fatal(err)
		}
		return hex.EncodeToString(h.Sum(nil))
	}
	sums := []string{sum()}
	for _, change := range []func() error{
		func() error { return os.Chmod(filepath.Join(dir, "tree/a"), 0o755) },
		func() error { return os.Rename(filepath.Join(dir, "tree/b"), filepath.Join(dir, "tree/c")) },
		func() error { return os.Symlink("a", filepath.Join(dir, "tree/l")) },
		func() error { return os.Mkdir(filepath.Join(dir, "tree/d"), 0o755) },
		func() error { return os.WriteFile(filepath.Join(dir, "tree/a"), []byte("AA"), 0o755) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		now := sum()
		if slices.Contains(sums, now) {
			t.Errorf("change %d is not seen", len(sums))
		}
		sums = append(sums, now)
	}
}
