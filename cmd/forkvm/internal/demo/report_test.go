package demo

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// history is that of a counter with common ticks before the fork, and own ones
// after it that only machine has.
func history(common, own int, machine string) []byte {
	var h []byte
	for i := range common {
		h = binary.LittleEndian.AppendUint64(h, uint64(i))
	}
	for i := range own {
		h = append(h, fmt.Sprintf("%-6s%02d", machine, i)...)
	}
	return h
}

// seen is a demo with two children that went as it should.
type seen struct {
	before        result
	first, second []result
}

const theNote = "note"

func wellSeen() *seen {
	at := func(common, own int, machine, note string) result {
		return result{sighting: sighting{PID: 7, History: history(common, own, machine), Note: note, Unique: "u" + machine}}
	}
	return &seen{
		before: at(10, 0, "p", theNote),
		first:  []result{at(12, 3, "p", theNote), at(12, 1, "1", theNote), at(12, 0, "2", theNote)},
		second: []result{at(12, 6, "p", theNote), at(12, 4, "1", "u1"), at(12, 2, "2", "u2")},
	}
}

func (s *seen) report() *Report {
	r := &Report{Forks: []Fork{{ID: 1}, {ID: 2}}}
	r.compare(s.before, s.first, theNote)
	r.compareLater(s.first, s.second, theNote)
	return r
}

func TestClaimsHold(t *testing.T) {
	r := wellSeen().report()
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Forks {
		if f.CounterAtFork != 12 {
			t.Errorf("child %d: counter at fork %d, want 12", f.ID, f.CounterAtFork)
		}
	}
	if r.Parent.Counter != 18 {
		t.Errorf("parent's counter %d, want 18", r.Parent.Counter)
	}
}

func TestClaimsFail(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		name string
		do   func(*seen)
		want string
	}{
		{"parent's command", func(s *seen) { s.first[0].err = broken }, "parent: command failed"},
		{"child's command", func(s *seen) { s.first[1].err = broken }, "child 1: command failed"},
		{"later command", func(s *seen) { s.second[2].err = broken }, "child 2: later: command failed"},
		{"counter restarted", func(s *seen) { s.first[2].PID = 8 }, "child 2: its counter is not"},
		{"parent's counter restarted", func(s *seen) { s.first[0].PID = 8 }, "parent: its counter was replaced"},
		{"old memory", func(s *seen) {
			s.first[1].History = history(9, 1, "1")
			s.first[2].History = history(9, 1, "2")
		}, "the parent had 10 before"},
		{"not one instant", func(s *seen) { s.first[2].History = history(11, 1, "2") }, "child 2: counter at the fork 11, but 12"},
		{"child lacks the file", func(s *seen) { s.first[1].Note = "" }, "child 1: did not see"},
		{"same random bytes", func(s *seen) { s.first[2].Unique = "u1" }, "same random bytes as child 1"},
		{"parent's random bytes", func(s *seen) { s.first[2].Unique = "up" }, "same random bytes as the parent"},
		{"child writes parent's file", func(s *seen) { s.second[0].Note = "u1" }, "parent: a child's write"},
		{"children share a file", func(s *seen) { s.second[1].Note = "u2" }, "child 1: its file"},
		{"child stands still", func(s *seen) { s.second[2].History = history(12, 0, "2") }, "child 2: its counter stands still"},
		{"child follows the parent", func(s *seen) { s.second[1].History = history(12, 4, "p") }, "child 1: shares 16 ticks"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := wellSeen()
			test.do(s)
			if err := s.report().Err(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("claims: %v\nwant %q", err, test.want)
			}
		})
	}
}

func TestReportJSON(t *testing.T) {
	b, err := json.Marshal(wellSeen().report())
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, got, "kvm", "kernel", "boot_ms", "pause_us", "dirty_pages", "forks", "parent")
	wantKeys(t, got["forks"].([]any)[0].(map[string]any), "id", "exit_code", "counter_at_fork", "unique", "state_ready_us", "first_reply_ms")
	wantKeys(t, got["parent"].(map[string]any), "exit_code", "counter")
}

func wantKeys(t *testing.T, got map[string]any, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if _, ok := got[k]; !ok {
			t.Errorf("no %q in %v", k, got)
		}
	}
	if len(got) != len(keys) {
		t.Errorf("%d keys, want %v: %v", len(got), keys, got)
	}
}

func TestPrint(t *testing.T) {
	var b bytes.Buffer
	s := wellSeen()
	if err := s.report().Print(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "went its own way") {
		t.Errorf("no verdict in\n%s", &b)
	}
	b.Reset()
	s.first[1].Note = ""
	if err := s.report().Print(&b); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "went its own way") {
		t.Errorf("a false verdict in\n%s", &b)
	}
}
