package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/server"
)

// TestServiceScripts ask a server of a fake.
func TestServiceScripts(t *testing.T) {
	s := newFakeService()
	url := s.start(t)
	runScripts(t, "testdata/service", func(env *testscript.Env) {
		env.Setenv("FORKVM_SERVER", url)
		env.Setenv("FORKVM_API_KEY", fakeKey)
		for i, b := range s.boxes {
			env.Setenv(fmt.Sprintf("box%d", i), b.ID)
		}
		env.Setenv("snap0", s.snaps[0].ID)
	})
}

// stuckList has pages that never end.
type stuckList struct{ api.Service }

func (stuckList) List(context.Context, api.SandboxQuery) (*api.SandboxPage, error) {
	return &api.SandboxPage{NextCursor: "next"}, nil
}

// TestRepeatedPage: a server that never comes to an end of its list is told of.
func TestRepeatedPage(t *testing.T) {
	if _, err := allBoxes(t.Context(), stuckList{}, api.SandboxQuery{}); !errors.Is(err, api.InternalError) {
		t.Errorf("error %v", err)
	}
}

func TestPick(t *testing.T) {
	all := []record{
		{kind: boxKind, id: "sb_aa1", name: "one"}, {kind: boxKind, id: "sb_aa2", name: "two"},
		{kind: boxKind, id: "sb_b", name: "two"}, {kind: boxKind, id: "sb_c", name: "sb_aa"},
		{kind: boxKind, id: "sb_d", name: "sb_b"},
	}
	for word, want := range map[string]string{
		"one": "sb_aa1", "sb_aa1": "sb_aa1", "sb_c": "sb_c",
		"sb_aa": "sb_c", // a name is a name also if it begins an id
		"sb_b":  "sb_b", // an id is an id also if it is a name
	} {
		if id, err := pick(boxKind, all, word); id != want || err != nil {
			t.Errorf("%s: %q, %v, want %s", word, id, err, want)
		}
	}
	for word, words := range map[string]string{"two": "\n  sb_aa2  \n", "sb_": "sb_d", "none": "no such sandbox", "": "empty name"} {
		if id, err := pick(boxKind, all, word); err == nil || !strings.Contains(err.Error()+" ", strings.TrimRight(words, " \n")) {
			t.Errorf("%s: %q, %v, want an error with %q", word, id, err, words)
		}
	}
}

func TestPeriod(t *testing.T) {
	for in, want := range map[string]string{"never": "never", "90s": "1m30s", "10m": "10m0s", "0": "0s"} {
		var p period
		if err := p.Set(in); err != nil || p.String() != want {
			t.Errorf("%s: %s, %v", in, p.String(), err)
		}
	}
	for _, in := range []string{"", "10", "-1s", "1500ms", "soon"} {
		var p period
		if err := p.Set(in); err == nil {
			t.Errorf("%q was taken as %s", in, p.String())
		}
	}
}

func TestParsePlace(t *testing.T) {
	for in, want := range map[string]place{
		"box:/a/b": {"box", "/a/b"}, "box:/": {"box", "/"}, "a": {"", "a"}, "./box:/a": {"", "./box:/a"}, ":/a": {"", ":/a"},
		"-": {"", "-"}, "a:b": {"", "a:b"}, "b:/a:/c": {"b", "/a:/c"},
	} {
		if got := parsePlace(in); got != want {
			t.Errorf("%s: %+v, want %+v", in, got, want)
		}
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{"a name": "a name", "ü 😀": "ü 😀", "\x1b[2J": `"\x1b[2J"`, "a\tb": `"a\tb"`, "": ""} {
		if got := plain(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestLineageOfWhatIsGone(t *testing.T) {
	gone, lost := "sb_0", "sn_0"
	boxes := []api.Sandbox{{ID: "sb_2", Template: "base", ParentSandboxID: &gone}, {ID: "sb_1", Template: "base", SourceSnapshotID: &lost}}
	roots := lineage(boxes, []api.Snapshot{{ID: "sn_3", SandboxID: gone, Template: "base"}})
	var b strings.Builder
	for _, r := range roots {
		printTree(&b, r, "", "")
	}
	want := []string{"template base", "snapshot sn_0 (gone)", "sandbox sb_1", "sandbox sb_0 (gone)", "sandbox sb_2", "snapshot sn_3"}
	for _, w := range want {
		if strings.Count(b.String(), w+"\n")+strings.Count(b.String(), w+" ") != 1 {
			t.Errorf("%q is not there once:\n%s", w, &b)
		}
	}
}

func TestSecretsStayOnThisMachine(t *testing.T) {
	for _, test := range []struct {
		flags listenFlags
		ok    bool
	}{
		{listenFlags{}, true},
		{listenFlags{address: "127.0.0.1:80"}, false}, // no keys
		{listenFlags{address: "127.0.0.1:80", keys: "k"}, true},
		{listenFlags{address: "[::1]:80", keys: "k"}, true},
		{listenFlags{address: "localhost:80", keys: "k"}, false},
		{listenFlags{address: ":80", keys: "k"}, false},
		{listenFlags{address: "0.0.0.0:80", keys: "k"}, false},
		{listenFlags{address: "[::]:80", keys: "k"}, false},
		{listenFlags{address: "192.0.2.1:80", keys: "k"}, false},
		{listenFlags{address: "192.0.2.1:80", keys: "k", plain: true}, true},
		{listenFlags{address: "192.0.2.1:80", keys: "k", cert: "c", key: "k"}, true},
		{listenFlags{address: "192.0.2.1:80", keys: "k", cert: "c"}, false},
	} {
		if err := test.flags.check(); (err == nil) != test.ok {
			t.Errorf("%+v: %v", test.flags, err)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "socket")
	l, err := listenUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
	if _, err := listenUnix(t.Context(), path); !errors.Is(err, errInUse) {
		t.Errorf("in use: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	if l, err = listenUnix(t.Context(), path); err != nil {
		t.Fatalf("left behind: %v", err)
	}
	l.Close()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(t.Context(), path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file: %v", err)
	}
}

// TestAddKeyLine: what a server would not take is not added.
func TestAddKeyLine(t *testing.T) {
	name := filepath.Join(t.TempDir(), "keys")
	line := func(key string) string {
		l, err := server.KeyLine("team", key, key, false)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for i, l := range []string{line("a"), line("b"), line("a")} {
		if err := addKeyLine(name, l); (err == nil) != (i < 2) {
			t.Errorf("line %d: %v", i, err)
		}
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := server.ParseKeys(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"a", "b"} {
		if team, ok := keys.Team(k); team != "team" || !ok {
			t.Errorf("key %s: %q, %v", k, team, ok)
		}
	}
}

func TestCommandResults(t *testing.T) {
	lookup := api.Errorf(api.SpawnFailed, "none")
	lookup.Details = map[string]any{"stage": "lookup", "errno": "ENOENT"}
	for _, test := range []struct {
		exit *api.Exit
		err  error
		want int
	}{
		{&api.Exit{}, nil, 0}, {&api.Exit{Code: 42}, nil, 42}, {&api.Exit{Code: -1, Signal: "SIGKILL"}, nil, 128 + int(syscall.SIGKILL)},
		{nil, api.Errorf(api.ExecTimeout, "late"), 124}, {nil, lookup, 127}, {nil, api.Errorf(api.SpawnFailed, "no"), 126},
		{nil, api.Errorf(api.Gone, "went"), 125}, {nil, api.Errorf(api.BadRequest, "bad"), 2},
	} {
		err := serviceError(commandResult("c", func() (*api.Exit, error) { return test.exit, test.err }))
		if got := exitCode(err); got != test.want {
			t.Errorf("%v, %v: exit code %d, want %d", test.exit, test.err, got, test.want)
		}
	}
}
