package snapshot

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
)

// A change is something done to a store that is to happen as a whole or not
// at all, wherever it is cut short. prepare makes the store before it; do
// works on a store opened elsewhere, knowing only the ids.
type change struct {
	prepare func(t testing.TB, s *Store, dir string) (ids []string)
	do      func(t testing.TB, s *Store, ids []string) error
	// before and after are how many snapshots there are; what each holds is
	// compared with stateOf.
	before, after int
}

// The memories in use: every snapshot of these tests is one of them.
var (
	oldMemory   = pages{1, 2, 0, 3, 0, 0, 0, 0}
	childMemory = pages{1, 9, 0, 3, 0, 8, 0, 7}
	otherMemory = pages{5, 5, 5}
	oldDisk     = pages{0, 6}
)

// state is what a test compares of a snapshot.
type state struct{ label, section, memory, disks string }

func stateOf(t testing.TB, s *Store, id string) state {
	t.Helper()
	snap, err := s.Load(ctx, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Release()
	st := state{label: snap.Label, section: string(snap.Sections["vcpu"]), memory: content(t, snap.Memory)}
	for _, d := range snap.Disks {
		st.disks += d.Name + content(t, d.Table)
	}
	return st
}

func content(t testing.TB, table *Table) string {
	t.Helper()
	all := make([]byte, table.Size())
	if err := table.ReadAt(all, 0); err != nil {
		t.Fatal(err)
	}
	short := make(pages, len(all)/page)
	for i := range short {
		short[i] = all[i*page]
	}
	return fmt.Sprint(short)
}

var (
	oldState   = state{"old", "OLD", fmt.Sprint(oldMemory), "data" + fmt.Sprint(oldDisk)}
	renamed    = state{"new", "OLD", fmt.Sprint(oldMemory), oldState.disks}
	childState = state{"child", "CHILD", fmt.Sprint(childMemory), "root" + fmt.Sprint(otherMemory)}
)

func makeOld(t testing.TB, s *Store, _ string) []string {
	return []string{mustCreate(t, s, Draft{
		Label: "old", Sections: map[string][]byte{"vcpu": []byte("OLD")},
		Memory: tableOf(t, oldMemory), Disks: []Disk{{"data", tableOf(t, oldDisk)}},
	}).ID}
}

// makeChild stores a fork of the first snapshot, with a disk.
func makeChild(t testing.TB, s *Store, ids []string) error {
	parent, err := s.Load(ctx, ids[0], nil)
	if err != nil {
		return err
	}
	defer parent.Release()
	_, err = s.Create(ctx, Draft{
		Label: "child", Parent: ids[0], Sections: map[string][]byte{"vcpu": []byte("CHILD")},
		Memory: overlay(t, parent.Memory, pages{0, 9, 0, 0, 0, 8, 0, 7}),
		Disks:  []Disk{{"root", tableOf(t, otherMemory)}},
	})
	return err
}

func makeBoth(t testing.TB, s *Store, dir string) []string {
	ids := makeOld(t, s, dir)
	if err := makeChild(t, s, ids); err != nil {
		t.Fatal(err)
	}
	return ids
}

var changes = map[string]change{
	"create": {makeOld, makeChild, 1, 2},
	"import": {
		func(t testing.TB, s *Store, dir string) []string {
			makeBoth(t, openStore(t, dir+"-elsewhere"), dir)
			return append(makeOld(t, s, dir), dir+"-elsewhere")
		},
		func(t testing.TB, s *Store, ids []string) error { return importChild(t, s, ids[1]) },
		1, 2,
	},
	"delete": {
		makeBoth,
		func(t testing.TB, s *Store, ids []string) error { return s.Delete(ctx, ids[0]) },
		2, 1,
	},
	"relabel": {
		makeBoth,
		func(t testing.TB, s *Store, ids []string) error { return s.Relabel(ctx, ids[0], "new") },
		2, 2,
	},
	"gc": {
		func(t testing.TB, s *Store, dir string) []string {
			ids := makeBoth(t, s, dir)
			for i := range 3 {
				info := mustCreate(t, s, Draft{Memory: tableOf(t, pages{byte(i + 100)})})
				if err := s.unlist(ctx, info.ID); err != nil {
					t.Fatal(err)
				}
			}
			return ids
		},
		func(t testing.TB, s *Store, _ []string) error { _, err := s.GC(ctx); return err },
		2, 2,
	},
}

// importChild copies the child from another store.
func importChild(t testing.TB, s *Store, dir string) error {
	from := openStore(t, dir)
	all := listed(t, from)
	out, err := from.Outgoing(ctx, all[len(all)-1])
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := s.Incoming(ctx, out.Manifest)
	if err != nil {
		return err
	}
	defer in.Close()
	for _, l := range out.Layers {
		type piece struct {
			off int64
			p   []byte
		}
		var all []piece
		err := l.Runs(ctx, func(off int64, p []byte) error {
			all = append(all, piece{off, slices.Clone(p)})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		err = in.WriteLayer(ctx, func() (int64, []byte, error) {
			if len(all) == 0 {
				return 0, nil, io.EOF
			}
			next := all[0]
			all = all[1:]
			return next.off, next.p, nil
		})
		if err != nil {
			return err
		}
	}
	_, err = in.Commit(ctx)
	return err
}

// wantWhole checks that a store has all of a change or nothing of it, and
// tells which. ids[0] is the old snapshot.
func wantWhole(t testing.TB, name string, s *Store, ids []string) (happened bool) {
	t.Helper()
	all := listed(t, s)
	for _, id := range all {
		got, want := stateOf(t, s, id), childState
		if id == ids[0] {
			want = oldState
			if name == "relabel" && got == renamed {
				happened, want = true, renamed
			}
		}
		if got != want {
			t.Errorf("%s: snapshot %+v, want %+v", name, got, want)
		}
	}
	if err := s.VerifyAll(ctx, nil); err != nil {
		t.Error(err)
	}
	c := changes[name]
	switch {
	case len(all) != c.before && len(all) != c.after:
		t.Errorf("%s: %d snapshots, want %d or %d", name, len(all), c.before, c.after)
	case c.before != c.after:
		happened = len(all) == c.after
	}
	if old := slices.Contains(all, ids[0]); !old && !(name == "delete" && happened) {
		t.Errorf("%s: the old snapshot is gone", name)
	}
	return happened
}

var errCut = errors.New("cut short")
