package template

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNames(t *testing.T) {
	for _, good := range []string{"a", "0", "web-1.2_x", strings.Repeat("a", 63)} {
		if err := CheckName(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", ".", "..", "-a", ".a", "A", "a/b", "a b", "é", "a\n", strings.Repeat("a", 64)} {
		if err := CheckName(bad); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestBuiltinsParse(t *testing.T) {
	for name, source := range builtins {
		f, err := Parse([]byte(source))
		if err != nil || CheckName(name) != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if from, err := f.from(nil); err != nil || from != name {
			t.Errorf("%s: from %q, %v", name, from, err)
		}
	}
}

// TestRemove: what other templates need stays.
func TestRemove(t *testing.T) {
	s, f := fakeStore(t, t.TempDir())
	a := build1(t, s, Spec{Name: "a", Source: []byte("FROM base\nRUN one\nRUN two")})
	b := build1(t, s, Spec{Name: "b", Source: []byte("FROM base\nRUN one\nRUN three")})
	f.take()
	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	for _, do := range []func() error{
		func() error { _, err := s.Get("a"); return err },
		func() error { return s.Remove(t.Context(), "a") },
		func() error { _, err := s.Log("a"); return err },
	} {
		if err := do(); !errors.Is(err, ErrNotFound) {
			t.Errorf("after it was removed: %v", err)
		}
	}
	if infos, err := s.List(); err != nil || len(infos) != 1 || infos[0].Name != "b" {
		t.Errorf("listed %+v, %v", infos, err)
	}
	if _, ok := f.stored[a.Snapshot]; ok {
		t.Error("its machine is still stored")
	}
	if len(f.stored) != 4 {
		t.Errorf("stored are %v, want what b was made of", slices.Sorted(maps.Keys(f.stored)))
	}
	again := build1(t, s, Spec{Name: "b", Source: []byte("FROM base\nRUN one\nRUN three")})
	if again.Snapshot != b.Snapshot {
		t.Error("the other template had to be built again")
	}
	if err := s.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if len(f.stored) != 0 {
		t.Errorf("left is %v", slices.Sorted(maps.Keys(f.stored)))
	}
	if err := s.Remove(t.Context(), "../b"); !errors.Is(err, ErrName) {
		t.Errorf("a bad name: %v", err)
	}
}

// TestPrune removes what programs that were killed left, and no more.
func TestPrune(t *testing.T) {
	s, f := fakeStore(t, t.TempDir())
	spec := Spec{Name: "a", Source: []byte("FROM base\nRUN one")}
	build1(t, s, Spec{Name: "a", Source: []byte("FROM base\nRUN old")})
	info := build1(t, s, spec)
	m, err := f.boot(t.Context(), setting{}, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.save(t.Context(), "nobody's"); err != nil {
		t.Fatal(err)
	}
	for _, junk := range []string{"tmp/base-1/erofs", "names/.new-1", "steps/.new-2", "bases/00.erofs", "bases/00.json"} {
		put(t, s.dir, junk, "half")
	}
	got, err := s.Prune(t.Context())
	if want := (Pruned{Steps: 1, Snapshots: 2, Bases: 1}); err != nil || got != want {
		t.Errorf("removed %+v, %v; want %+v", got, err, want)
	}
	for _, dir := range []string{"tmp", "bases", "names", "steps"} {
		list, err := os.ReadDir(s.path(dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if dir == "tmp" || dir == "bases" || strings.HasPrefix(e.Name(), ".") {
				t.Errorf("%s/%s is left", dir, e.Name())
			}
		}
	}
	f.take()
	if again := build1(t, s, spec); again.Snapshot != info.Snapshot {
		t.Error("the template had to be built again")
	}
	build1(t, s, Spec{Name: "a", Source: []byte("FROM base\nRUN one\nRUN more")})
	wantDid(t, f, "restore", "run more")
	if got, err := s.Prune(t.Context()); err != nil || got != (Pruned{}) {
		t.Errorf("removed %+v, %v; want nothing", got, err)
	}
}

// TestDamagedRecord: it is told of, disturbs no other, and nothing is removed
// that it may need.
func TestDamagedRecord(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "{", "another's": `{"name": "b"}`, "empty": "", "too long": strings.Repeat(" ", maxRecord+1),
	} {
		t.Run(name, func(t *testing.T) {
			s, f := fakeStore(t, t.TempDir())
			build1(t, s, Spec{Name: "a", Source: []byte("FROM base")})
			build1(t, s, Spec{Name: "good", Source: []byte("FROM base\nRUN x")})
			put(t, s.dir, "names/a.json", text)
			if _, err := s.Get("a"); err == nil || errors.Is(err, ErrNotFound) {
				t.Errorf("get: %v", err)
			}
			infos, err := s.List()
			if err == nil || len(infos) != 1 || infos[0].Name != "good" {
				t.Errorf("list: %+v, %v", infos, err)
			}
			before := len(f.stored)
			if _, err := s.Prune(t.Context()); err == nil || len(f.stored) != before {
				t.Errorf("prune: %v, %d of %d machines are left", err, len(f.stored), before)
			}
			build1(t, s, Spec{Name: "a", Source: []byte("FROM base")})
			if _, err := s.Get("a"); err != nil {
				t.Errorf("after it was built again: %v", err)
			}
			put(t, s.dir, "names/a.json", text)
			if err := s.Remove(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			if _, err := s.Prune(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestClosed(t *testing.T) {
	s, _ := fakeStore(t, t.TempDir())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := s.Image(t.Context(), "base"); !errors.Is(err, ErrClosed) {
		t.Errorf("image: %v", err)
	}
}

func TestKeys(t *testing.T) {
	in := ingredients{kernel: "k", initramfs: "i", base: "b", cmdline: "c", vcpus: 1, memory: 2, disk: 3}
	seen := map[key]string{in.key(): "as it is"}
	differs := func(what string, k key) {
		t.Helper()
		if other, ok := seen[k]; ok {
			t.Errorf("%s: the key is that of %s", what, other)
		}
		seen[k] = what
	}
	for what, change := range map[string]func(*ingredients){
		"kernel":     func(i *ingredients) { i.kernel = "K" },
		"initramfs":  func(i *ingredients) { i.initramfs = "I" },
		"base":       func(i *ingredients) { i.base = "" },
		"cmdline":    func(i *ingredients) { i.cmdline = "" },
		"boundaries": func(i *ingredients) { i.kernel, i.initramfs = "ki", "" },
		"vcpus":      func(i *ingredients) { i.vcpus = 2 },
		"memory":     func(i *ingredients) { i.memory = 1 },
		"disk":       func(i *ingredients) { i.disk = 2 },
	} {
		changed := in
		change(&changed)
		differs(what, changed.key())
	}
	s := step{kind: stepCopy, argv: []string{"a", "b"}, dest: "/d", chown: "o", env: []string{"E=1"}, dir: "/", user: "u"}
	differs("a step", s.after("k", "sum"))
	for what, change := range map[string]func(*step){
		"kind":      func(s *step) { s.kind = stepWorkdir },
		"argv":      func(s *step) { s.argv = []string{"ab"} },
		"dest":      func(s *step) { s.dest = "/e" },
		"into":      func(s *step) { s.intoDir = true },
		"owner":     func(s *step) { s.chown = "" },
		"env":       func(s *step) { s.env = nil },
		"dir":       func(s *step) { s.dir = "" },
		"user":      func(s *step) { s.user = "" },
		"env, argv": func(s *step) { s.argv, s.env = []string{"a", "b", "E=1"}, nil },
	} {
		changed := s
		change(&changed)
		differs(what, changed.after("k", "sum"))
	}
	differs("key before", s.after("K", "sum"))
	differs("copied content", s.after("k", "SUM"))
	moved := s
	moved.line, moved.text = 9, "written in another way"
	if moved.after("k", "sum") != s.after("k", "sum") {
		t.Error("how a step is written changes its key")
	}
}

func TestRecordIsWholeOrNotThere(t *testing.T) {
	d := files{t.TempDir()}
	if err := d.write("a.json", strings.Repeat("x", maxRecord)); err == nil {
		t.Error("a record that could not be read again was written")
	}
	if err := d.write("a.json", func() {}); err == nil {
		t.Error("what is no JSON was written")
	}
	list, err := os.ReadDir(d.dir)
	if err != nil || len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
	var got string
	if err := d.read("a.json", &got); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := d.write("a.json", "text"); err != nil {
		t.Fatal(err)
	}
	if err := d.read("a.json", &got); err != nil || got != "text" {
		t.Errorf("%q, %v", got, err)
	}
	if names, err := d.names(".json"); err != nil || !cmp.Equal(names, []string{"a"}) {
		t.Errorf("%q, %v", names, err)
	}
}

// TestLogWhileNothingIsBuilt: a build in which there is nothing to do has a log
// for a moment only.
func TestLogWhileNothingIsBuilt(t *testing.T) {
	s, _ := fakeStore(t, t.TempDir())
	spec := Spec{Name: "x", Source: []byte("FROM base")}
	build1(t, s, spec)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 300 {
			if _, err := s.Build(t.Context(), spec, BuildOptions{}); err != nil {
				t.Error(err)
			}
		}
	}()
	for {
		select {
		case <-done:
			return
		default:
		}
		r, err := s.OpenLog("x")
		if err != nil {
			t.Error(err)
			continue
		}
		r.Close()
	}
}

func TestLogIsBounded(t *testing.T) {
	s, _ := fakeStore(t, t.TempDir())
	l, err := s.newLog("x", nil)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 1<<20)
	for range maxLog>>20 + 3 {
		if n, err := l.Write(block); n != len(block) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(l.path)
	if err != nil || info.Size() > maxLog+200 {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
	if filepath.Dir(l.path) != s.logDir("x") {
		t.Error(l.path)
	}
}
