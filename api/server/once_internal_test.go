package server

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"
)

// TestOnceIsBounded fills the memory of a team by number and by size, and lets
// answers grow old.
func TestOnceIsBounded(t *testing.T) {
	o := newOnce()
	now := time.Unix(1e9, 0)
	o.now = func() time.Time { return now }
	calls := 0
	do := func(team, key string, size int) {
		t.Helper()
		_, err := o.do(t.Context(), team, key, sha256.Sum256(nil), func() answer {
			calls++
			return answer{status: 201, body: make([]byte, size)}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	again := func(key string, want bool) {
		t.Helper()
		before := calls
		if do("a", key, 1); (calls > before) != want {
			t.Errorf("%s: carried out again: %v", key, calls > before)
		}
	}
	do("b", "0", 1)
	for k := range onceCount + 1 {
		do("a", fmt.Sprint(k), 1)
	}
	again("1", false)
	again("0", true)
	do("a", "large", onceBytes)
	again("large", false) // alone
	again("2", true)      // which drops the large one
	again("large", true)
	now = now.Add(onceFor + 1)
	again("large", true)
	if team := o.teams["a"]; len(team.entries) != team.kept.Len() || team.bytes != 1 {
		t.Errorf("%d entries, %d kept, %d bytes", len(team.entries), team.kept.Len(), team.bytes)
	}
	before := calls
	if do("b", "0", 1); calls == before {
		t.Error("an answer was kept for more than a day")
	}
	func() {
		defer func() { recover() }()
		o.do(t.Context(), "a", "panics", sha256.Sum256(nil), func() answer { panic("no") })
	}()
	again("panics", true)
}
