package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api/client"
)

// complete is what a shell is offered after words, the last of which is being
// typed.
func complete(t *testing.T, words ...string) []string {
	t.Helper()
	root, out := newRoot(nil), &bytes.Buffer{}
	root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, words...))
	root.SetOut(out)
	root.SetErr(&bytes.Buffer{}) // what is said of the directive
	if code := execute(t.Context(), root); code != exitOK {
		t.Errorf("%q: exit code %d", words, code)
	}
	var offers []string
	for line := range strings.Lines(out.String()) {
		offer, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !strings.HasPrefix(offer, ":") {
			offers = append(offers, offer)
		}
	}
	return offers
}

// eachCommand calls f with the commands that help shows, and their names
// without forkvm.
func eachCommand(cmd *cobra.Command, f func(cmd *cobra.Command, names []string)) {
	f(cmd, strings.Fields(cmd.CommandPath())[1:])
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			eachCommand(c, f)
		}
	}
}

// TestCompletion: each command that takes a sandbox, a snapshot or a template of
// a server is offered those by id and name, for as many as it takes.
func TestCompletion(t *testing.T) {
	s := newFakeService()
	t.Setenv(serverVariable, s.start(t))
	t.Setenv(client.KeyVariable, fakeKey)
	offered := map[string][]string{
		"SANDBOX":  {"web", s.boxes[0].ID, s.boxes[1].ID, s.boxes[2].ID}, // and not twice, which two have
		"SNAPSHOT": {"ready", s.snaps[0].ID},
		"TEMPLATE": {"base", "web"},
	}
	seen := map[string]int{}
	eachCommand(newRoot(nil), func(cmd *cobra.Command, names []string) {
		before := ""
		for _, word := range strings.Fields(cmd.Use)[1:] {
			isValue := strings.HasPrefix(before, "-") // of a flag
			before = strings.Trim(word, "[]")
			if isValue {
				continue
			}
			kind := strings.Trim(word, "[].")
			more := strings.Contains(word, "...")
			if len(names) > 1 && names[0] == "template" && kind == "NAME" && names[1] != "build" {
				kind = "TEMPLATE"
			}
			want := offered[kind]
			if want == nil || names[0] == "store" || names[0] == "restore" { // of which there is a script
				continue
			}
			seen[kind]++
			if got := complete(t, append(names, "")...); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
				t.Errorf("%s: %q, want %q", cmd.CommandPath(), got, want)
			}
			if got := complete(t, append(names, want[0], "")...); (len(got) > 0) != more {
				t.Errorf("%s: a second one: %q", cmd.CommandPath(), got)
			}
		}
	})
	if seen["SANDBOX"] < 13 || seen["SNAPSHOT"] < 3 || seen["TEMPLATE"] < 3 {
		t.Errorf("looked at %v", seen)
	}
	states := []string{"creating", "running", "pausing", "paused", "resuming", "failed", "destroying"}
	for _, c := range []struct {
		line string
		want []string
	}{
		{"create --snapshot ", offered["SNAPSHOT"]},
		{"create --template ", offered["TEMPLATE"]},
		{"create --on-timeout ", []string{"destroy", "pause"}},
		{"demo service --template ", offered["TEMPLATE"]},
		{"template build -t ", offered["TEMPLATE"]},
		{"snapshot ls --sandbox ", offered["SANDBOX"]},
		{"snap rm ", offered["SNAPSHOT"]},
		{"exec -it -w /tmp ", offered["SANDBOX"]},
		{"cp we", []string{"web:/"}},
		{"cp file we", []string{"web:/"}},
		{"wait --state ", states},
		{"ls --state ", states},
	} {
		got := complete(t, strings.Split(c.line, " ")...)
		if strings.HasPrefix(c.line, "cp ") { // beside the ids
			got = slices.DeleteFunc(got, func(o string) bool { return strings.HasPrefix(o, "sb_") || strings.HasPrefix(o, "twice") })
		}
		if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(c.want))) {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
	}
}

// TestWhatIsReadHasJSON: a program can read all that is listed or shown.
func TestWhatIsReadHasJSON(t *testing.T) {
	reads := []string{"ls", "inspect", "ps", "stats", "events", "tree", "verify", "gc", "prune", "log", "create", "fork", "wait", "doctor", "version", "bench", "import", "build", "path"}
	n := 0
	eachCommand(newRoot(nil), func(cmd *cobra.Command, names []string) {
		if len(names) == 0 || !slices.Contains(reads, names[len(names)-1]) {
			return
		}
		n++
		if cmd.Flags().Lookup("json") == nil {
			t.Errorf("%s has no --json", cmd.CommandPath())
		}
	})
	if n < len(reads)+6 { // several have ls, inspect or create
		t.Errorf("looked at %d commands", n)
	}
}
