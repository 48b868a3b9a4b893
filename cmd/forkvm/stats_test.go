package main

import (
	"testing"

	"github.com/forkvm/forkvm/api"
)

// TestSharesWith: of many partners those with most are named, by name if they have
// one to themselves; who has none is told from who was not compared.
func TestSharesWith(t *testing.T) {
	boxes, s := map[string]*api.Sandbox{}, &api.Sharing{}
	for _, name := range []string{"a", "two words", "", "same", "same"} {
		b := &api.Sandbox{ID: api.NewID(api.SandboxPrefix, fakeTime), Name: name}
		boxes[b.ID] = b
		s.Sandboxes = append(s.Sandboxes, api.SandboxSharing{SandboxID: b.ID})
	}
	id := func(i int) string { return s.Sandboxes[i].SandboxID }
	s.Pairs = []api.SharingPair{
		{SandboxIDs: [2]string{id(0), id(2)}, MemoryBytes: 3 << 20}, {SandboxIDs: [2]string{id(1), id(0)}, MemoryBytes: 2 << 20},
		{SandboxIDs: [2]string{id(3), id(0)}, MemoryBytes: 1 << 20}, {SandboxIDs: [2]string{id(4), id(0)}, DiskBytes: 1 << 20},
	}
	with := partners(s, boxes)
	for i, want := range []string{shortID(id(2)) + " 3.0 MiB, two words 2.0 MiB, 1 more", "a 2.0 MiB", "a 3.0 MiB", "a 1.0 MiB", "nobody"} {
		if got := (boxStats{SharesWith: with[id(i)], compared: true}).sharesWith(); got != want {
			t.Errorf("%d shares with %q, want %q", i, got, want)
		}
	}
	for state, want := range map[api.State]string{api.Running: "?", api.Paused: "-"} {
		if got := (boxStats{Stats: api.Stats{State: state}}).sharesWith(); got != want {
			t.Errorf("one that was not compared and is %s shares with %q", state, got)
		}
	}
}
