package vmm

import (
	"bytes"
	"errors"
	"testing"

	"github.com/forkvm/forkvm/devices/virtio/balloon"
)

// layered is memory of which every page is a layer's.
func layered(t *testing.T, pages int) *memory {
	t.Helper()
	parent := newMemory(t, int64(pages)*pageSize)
	for i := range pages {
		parent.ram[i*pageSize] = byte(i)%255 + 1
	}
	c := capture(t, parent)
	defer c.table.Release()
	return mapped(t, c.table)
}

// giveBack releases n pages from page at on.
func giveBack(m *memory, at, n int) error {
	return m.release([]balloon.Range{{GPA: uint64(at) * pageSize, Size: uint64(n) * pageSize}})
}

// A guest that gives the same pages back again and again takes no more of the
// process's mappings for it.
func TestReleaseAgainCostsNothing(t *testing.T) {
	bothWays(t, func(t *testing.T, untracked bool) {
		m := layered(t, 1024)
		m.untracked = untracked
		before := m.mappings
		for round := range 100 {
			for i := range 512 {
				m.ram[(256+i)*pageSize] = byte(round)
			}
			if err := giveBack(m, 256, 512); err != nil {
				t.Fatal(err)
			}
			if err := giveBack(m, 300, 10); err != nil {
				t.Fatal(err)
			}
			if got := m.mappings; got > before+2 {
				t.Fatalf("round %d: %d mappings, %d before", round, got, before)
			}
			if got := m.ram[256*pageSize : 768*pageSize]; !bytes.Equal(got, make([]byte, len(got))) {
				t.Fatalf("round %d: not zeros", round)
			}
			if round == 50 {
				capture(t, m).table.Release()
			}
		}
		if err := m.reset(); err != nil {
			t.Fatal(err)
		}
		if got := m.mappings; got != before {
			t.Errorf("%d mappings after a reset, %d before", got, before)
		}
	})
}

// Pages that a child shares with its template and has not written are not its
// own to give back.
func TestReleaseOfSharedPagesIsNothing(t *testing.T) {
	m := layered(t, 1024)
	before, was := m.mappings, bytes.Clone(m.ram)
	if err := giveBack(m, 0, 1024); err != nil {
		t.Fatal(err)
	}
	if m.mappings != before || len(m.released) != 0 {
		t.Errorf("%d mappings, %d before; released %v", m.mappings, before, m.released)
	}
	if !bytes.Equal(m.ram, was) {
		t.Error("other bytes")
	}
}

// A guest that scatters what it gives back gets so many holes and no more.
// What did not become one keeps its bytes, also in a child.
func TestReleaseOfScatteredPages(t *testing.T) {
	m := layered(t, 4*maxHoles)
	want := bytes.Clone(m.ram)
	failed := 0
	for at := 0; at < 4*maxHoles; at += 2 {
		m.ram[at*pageSize+8], want[at*pageSize+8] = 77, 77
		switch err := giveBack(m, at, 1); {
		case err == nil:
			clear(want[at*pageSize:][:pageSize])
		case errors.Is(err, ErrTooMany):
			failed++
		default:
			t.Fatal(err)
		}
	}
	if failed != maxHoles {
		t.Errorf("%d of %d refused, want %d", failed, 2*maxHoles, maxHoles)
	}
	// Joining holes is always possible.
	m.ram[pageSize+8] = 78
	if err := giveBack(m, 0, 4); err != nil {
		t.Errorf("a hole that joins two: %v", err)
	}
	clear(want[:4*pageSize])
	c := capture(t, m)
	defer c.table.Release()
	for name, ram := range map[string][]byte{"the machine": m.ram, "its child": mapped(t, c.table).ram} {
		if !bytes.Equal(ram, want) {
			t.Errorf("%s has other bytes", name)
		}
	}
}
