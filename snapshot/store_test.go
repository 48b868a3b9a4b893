package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var ctx = context.Background()

func TestWhatIsStoredComesBack(t *testing.T) {
	dir := t.TempDir()
	memory, disk := pages{1, 0, 2, 3, 0, 0, 4, 0}, pages{0, 9, 9, 0}
	draft := Draft{
		Label:  "a snapshot — один",
		Parent: newID(),
		Config: json.RawMessage(`{"memory":32768,"kernel":"<vmlinux>"}`),
		Needs: Needs{
			Vendor: "GenuineIntel", Family: 6, Model: 143, Stepping: 8, XSAVESize: 11008, TSCkHz: 2_100_000, VCPUs: 2,
			Features:     []FeatureWords{{Leaf: 7, EBX: 1 << 16}, {Leaf: 7, Index: 1, EAX: 1 << 4}},
			Capabilities: []string{"KVM_CAP_XSAVE2"},
		},
		Kernel:   Kernel{Version: "Linux 6.18", Sum: "00ff"},
		Sections: map[string][]byte{"vcpu/0": {0, 1, 255}, "vcpu/1": {}, "irqchip": bytes.Repeat([]byte{7}, 5000)},
		Memory:   tableOf(t, memory),
		Disks:    []Disk{{"root", tableOf(t, disk)}, {"data", tableOf(t, pages{0, 0})}},
	}
	made := mustCreate(t, openStore(t, dir), draft)

	snap := mustLoad(t, openStore(t, dir), made.ID)
	wantPages(t, snap.Memory, memory)
	if len(snap.Disks) != 2 || snap.Disks[0].Name != "root" || snap.Disks[1].Name != "data" {
		t.Fatalf("disks %v", snap.Disks)
	}
	wantPages(t, snap.Disks[0].Table, disk)
	wantPages(t, snap.Disks[1].Table, pages{0, 0})
	if !maps.EqualFunc(snap.Sections, draft.Sections, bytes.Equal) {
		t.Errorf("sections %v", snap.Sections)
	}
	draft.Needs.Memory = 8 * page
	want, got := made.Manifest, snap.Manifest
	var config any
	if err := json.Unmarshal(got.Config, &config); err != nil || config.(map[string]any)["kernel"] != "<vmlinux>" {
		t.Errorf("configuration %s, %v", got.Config, err)
	}
	want.Config, got.Config = nil, nil
	a, _ := json.Marshal(want)
	b, _ := json.Marshal(got)
	if !bytes.Equal(a, b) || got.Label != draft.Label || got.Parent != draft.Parent || got.Needs.Memory != 8*page {
		t.Errorf("manifest %s, want %s", b, a)
	}
	if d := time.Since(got.Created); d < 0 || d > time.Hour {
		t.Errorf("created %v ago", d)
	}
	if made.Logical != 14*page || made.Stored < 6*page || made.Stored > 6*page+20_000 || made.Unique != made.Stored {
		t.Errorf("logical %d, stored %d, unique %d", made.Logical, made.Stored, made.Unique)
	}
}

func TestStoredFilesAreReadOnlyAndSparse(t *testing.T) {
	dir := t.TempDir()
	content := make(pages, 2048)
	content[5], content[2000] = 1, 2
	mustCreate(t, openStore(t, dir), Draft{Memory: tableOf(t, content)})
	names := layerFiles(t, dir)
	if len(names) != 1 {
		t.Fatalf("layers %v", names)
	}
	var st unix.Stat_t
	if err := unix.Stat(names[0], &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode&0o777 != 0o400 || st.Size != 2048*page || st.Blocks*512 > 64*page {
		t.Errorf("mode %o, size %d, %d bytes on disk", st.Mode, st.Size, st.Blocks*512)
	}
	if info, err := os.Stat(filepath.Join(dir, snapshotsDir)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// The layers of a fork's memory are those of its snapshot, and more.
func TestSnapshotOfAForkStoresWhatDiffers(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	base := pages{1, 2, 3, 4, 5, 6, 7, 8}
	parent := mustCreate(t, s, Draft{Memory: tableOf(t, base)})

	for name, memory := range map[string]*Table{
		"in the process that made it": nil,
		"restored by this store":      mustLoad(t, s, parent.ID).Memory,
		"restored by another":         mustLoad(t, openStore(t, dir), parent.ID).Memory,
	} {
		if memory == nil {
			memory = tableOf(t, base)
			if _, err := s.Create(ctx, Draft{Memory: memory}); err != nil {
				t.Fatal(err)
			}
		}
		// M22: the file that is mapped is not the one that is written.
		before := inodes(t, dir)
		child := mustCreate(t, s, Draft{Parent: parent.ID, Memory: overlay(t, memory, pages{0, 9, 0, 0, 0, 0, 0, 0})})
		if grown := child.Unique; grown > 2*page {
			t.Errorf("%s: the snapshot of a fork with one page added %d bytes", name, grown)
		}
		for name, ino := range before {
			if now := inodes(t, dir)[name]; now != ino {
				t.Errorf("%s was written anew", name)
			}
		}
		wantPages(t, mustLoad(t, openStore(t, dir), child.ID).Memory, pages{1, 9, 3, 4, 5, 6, 7, 8})
		if err := s.Delete(ctx, child.ID); err != nil {
			t.Fatal(err)
		}
	}
}

func inodes(t *testing.T, dir string) map[string][2]int64 {
	t.Helper()
	all := map[string][2]int64{}
	for _, name := range layerFiles(t, dir) {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err != nil {
			t.Fatal(err)
		}
		all[name] = [2]int64{int64(st.Ino), st.Mtim.Nano()}
	}
	return all
}

// Of a layer that is mostly hidden only the rest is stored, and the next
// snapshot refers to that rest instead of storing another one.
func TestHiddenPartsAreNotStored(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	base := tableOf(t, pages{1, 2, 3, 4, 5, 6, 7, 8})
	first := overlay(t, base, pages{9, 9, 9, 9, 9, 0, 0, 0})
	a := mustCreate(t, s, Draft{Memory: first})
	if n := a.Stored / page; n != 5+3 {
		t.Errorf("%d pages stored, want 8", n)
	}
	wantPages(t, mustLoad(t, openStore(t, dir), a.ID).Memory, pages{9, 9, 9, 9, 9, 6, 7, 8})

	second := overlay(t, first, pages{0, 0, 0, 0, 0, 0, 0, 7})
	b := mustCreate(t, s, Draft{Memory: second})
	if n := b.Unique / page; n != 1 {
		t.Errorf("%d pages added, want 1", n)
	}
	wantPages(t, mustLoad(t, openStore(t, dir), b.ID).Memory, pages{9, 9, 9, 9, 9, 6, 7, 7})

	// Half or more of it is wanted: all of it is stored.
	c := mustCreate(t, s, Draft{Memory: overlay(t, base, pages{0, 3, 3, 0, 0, 0, 0, 0})})
	if n := c.Unique / page; n != 8+2 {
		t.Errorf("%d pages added, want 10", n)
	}
	wantPages(t, mustLoad(t, openStore(t, dir), c.ID).Memory, pages{1, 3, 3, 4, 5, 6, 7, 8})
}

// A layer whose file was deleted is still there for those who hold it, and is
// written again when one of them is stored.
func TestDeletedLayerIsStoredAgain(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	a := mustCreate(t, s, Draft{Memory: tableOf(t, pages{1, 2})})
	snap := mustLoad(t, s, a.ID)
	if err := s.Delete(ctx, a.ID); err != nil {
		t.Fatal(err)
	}
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("left over: %v", got)
	}
	b := mustCreate(t, s, Draft{Memory: snap.Memory})
	wantPages(t, mustLoad(t, openStore(t, dir), b.ID).Memory, pages{1, 2})
}

// B22, B15: whoever runs from a snapshot goes on when it, and its parent, are
// gone: with pages that were read before and pages that were not.
func TestB22DeleteDisturbsNobody(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	content := make(pages, 3000)
	for i := range content {
		content[i] = byte(i%255 + 1)
	}
	parent := mustCreate(t, s, Draft{Memory: tableOf(t, content)})
	snap := mustLoad(t, s, parent.ID)
	l := snap.Memory.Extents()[0].Layer
	mapped, err := unix.Mmap(l.FD(), 0, int(l.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	child := mustCreate(t, s, Draft{Parent: parent.ID, Memory: overlay(t, snap.Memory, append(pages{77}, make(pages, 2999)...))})
	lonely := mustCreate(t, s, Draft{Memory: tableOf(t, pages{1})})

	other := openStore(t, dir) // another process deletes
	for _, id := range []string{parent.ID, lonely.ID} {
		if err := other.Delete(ctx, id); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(ctx, id, nil); !errors.Is(err, ErrNotFound) {
			t.Errorf("deleted, and load says %v", err)
		}
	}
	if !bytes.Equal(mapped, content.bytes()) {
		t.Error("the mapping changed")
	}
	grown := slices.Clone(content)
	grown[0] = 77
	wantPages(t, mustLoad(t, openStore(t, dir), child.ID).Memory, grown)
	noLeftovers(t, s, dir)
	if err := other.Delete(ctx, child.ID); err != nil {
		t.Fatal(err)
	}
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("left over: %v", got)
	}
	wantPages(t, snap.Memory, content)
}

func TestDeletedFilesAreLetGoOf(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	a := mustCreate(t, s, Draft{Memory: tableOf(t, pages{1})})
	b := mustCreate(t, s, Draft{Memory: tableOf(t, pages{2})})
	snap, err := s.Load(ctx, a.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := snap.Memory.Extents()[0].Layer
	snap.Release()
	if _, err := l.ReadAt(make([]byte, 1), 0); err != nil {
		t.Fatalf("a verified layer is not kept open: %v", err)
	}
	if err := openStore(t, dir).Delete(ctx, a.ID); err != nil {
		t.Fatal(err)
	}
	mustLoad(t, s, b.ID) // notices
	if _, err := l.ReadAt(make([]byte, 1), 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file of a deleted layer is still open: %v", err)
	}
}

func TestRelabel(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	a := mustCreate(t, s, Draft{Label: "one", Memory: tableOf(t, pages{1}), Sections: map[string][]byte{"x": {1}}})
	if err := s.Relabel(ctx, a.ID, "two"); err != nil {
		t.Fatal(err)
	}
	snap := mustLoad(t, openStore(t, dir), a.ID)
	if snap.Label != "two" || !bytes.Equal(snap.Sections["x"], []byte{1}) || !snap.Created.Equal(a.Created) {
		t.Errorf("%+v", snap)
	}
	for label, want := range map[string]error{
		strings.Repeat("x", 201): ErrInvalid, "\x1b[2J": ErrInvalid, "a\nb": ErrInvalid, "\xff": ErrInvalid, "a\u202eb": ErrInvalid,
		strings.Repeat("x", 200): nil, "": nil,
	} {
		if err := s.Relabel(ctx, a.ID, label); !errors.Is(err, want) {
			t.Errorf("label %q: %v, want %v", label, err, want)
		}
	}
	if err := s.Relabel(ctx, newID(), "x"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v, want ErrNotFound", err)
	}
	noLeftovers(t, s, dir)
}

func TestBadIDsNameNoFiles(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "store"))
	if err := os.WriteFile(filepath.Join(dir, "x.json"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := newID()
	for _, bad := range []string{"", ".", "../../x", "../" + id, id[1:], id + "a", strings.ToUpper(id), id[1:] + "/", id[1:] + "\x00", id[1:] + "1", strings.Repeat("a", 1000)} {
		for name, err := range map[string]error{
			"Load":    func() error { _, err := s.Load(ctx, bad, nil); return err }(),
			"Stat":    func() error { _, err := s.Stat(ctx, bad); return err }(),
			"Relabel": s.Relabel(ctx, bad, "x"),
			"Delete":  s.Delete(ctx, bad),
			"Verify":  s.Verify(ctx, bad, nil),
		} {
			if !errors.Is(err, ErrBadID) {
				t.Errorf("%s(%q): %v, want ErrBadID", name, bad, err)
			}
		}
	}
	for name, err := range map[string]error{
		"Load":    func() error { _, err := s.Load(ctx, id, nil); return err }(),
		"Stat":    func() error { _, err := s.Stat(ctx, id); return err }(),
		"Relabel": s.Relabel(ctx, id, "x"),
		"Delete":  s.Delete(ctx, id),
		"Verify":  s.Verify(ctx, id, nil),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s of an id that is not there: %v, want ErrNotFound", name, err)
		}
	}
}

func TestDraftsOutsideTheLimitsAreRefused(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	table := tableOf(t, pages{1})
	many := map[string][]byte{}
	for i := range maxSections + 1 {
		many[strings.Repeat("a", i%90+1)+string(rune('a'+i/90))] = nil
	}
	for name, d := range map[string]Draft{
		"no memory":     {},
		"label":         {Memory: table, Label: strings.Repeat("x", 201)},
		"parent":        {Memory: table, Parent: "../x"},
		"configuration": {Memory: table, Config: json.RawMessage("{")},
		"huge config":   {Memory: table, Config: json.RawMessage(`"` + strings.Repeat("x", maxConfig) + `"`)},
		"section name":  {Memory: table, Sections: map[string][]byte{"A": nil}},
		"section size":  {Memory: table, Sections: map[string][]byte{"a": make([]byte, maxSection+1)}},
		"sections":      {Memory: table, Sections: many},
		"disk name":     {Memory: table, Disks: []Disk{{"", table}}},
		"disk twice":    {Memory: table, Disks: []Disk{{"a", table}, {"a", table}}},
		"no disk":       {Memory: table, Disks: []Disk{{"a", nil}}},
		"disks":         {Memory: table, Disks: make([]Disk, maxDisks+1)},
		"vendor":        {Memory: table, Needs: Needs{Vendor: "\x00"}},
		"needs":         {Memory: table, Needs: Needs{Family: -1}},
		"size":          {Memory: NewTable(page + 1)},
	} {
		if _, err := s.Create(ctx, d); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("left over: %v", got)
	}
}

func TestStatAndSizes(t *testing.T) {
	s := openStore(t, t.TempDir())
	base := tableOf(t, pages{1, 2, 3, 4})
	a := mustCreate(t, s, Draft{Memory: base, Sections: map[string][]byte{"b": {1}, "a": {1, 2}}, Disks: []Disk{{"root", base}}})
	b := mustCreate(t, s, Draft{Memory: overlay(t, base, pages{0, 0, 0, 9})})
	info, err := s.Stat(ctx, a.ID)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Layers) != 1 || len(info.Disks) != 1 || len(info.Sections) != 2 || info.Sections[0].Name != "a" || info.Sections[0].Size != 2 {
		t.Errorf("%+v", info)
	}
	sizes := func() (got [][3]int64) {
		infos, err := s.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range infos {
			got = append(got, [3]int64{i.Logical / page, i.Stored / page, i.Unique / page})
		}
		return got
	}
	if got := sizes(); !slices.Equal(got, [][3]int64{{8, 4, 0}, {4, 5, 1}}) {
		t.Errorf("logical, stored and unique pages %v", got)
	}
	if err := s.Delete(ctx, a.ID); err != nil {
		t.Fatal(err)
	}
	if got := sizes(); !slices.Equal(got, [][3]int64{{4, 5, 5}}) {
		t.Errorf("%s alone: logical, stored and unique pages %v", b.ID, got)
	}
}

func TestProgressEndsAtItsTotal(t *testing.T) {
	s := openStore(t, t.TempDir())
	content := make(pages, 3*blockSize/page)
	for i := range content {
		content[i] = byte(i%3 + 1)
	}
	var at, of int64
	report := func(done, total int64) {
		if done < at || done > total {
			t.Errorf("%d of %d after %d", done, total, at)
		}
		at, of = done, total
	}
	want := int64(len(content)) * page
	a := mustCreate(t, s, Draft{Memory: tableOf(t, content), Progress: report})
	if at != want || of != want {
		t.Errorf("create: %d of %d, want %d", at, of, want)
	}
	at = 0
	if err := s.Verify(ctx, a.ID, report); err != nil || at != want || of != want {
		t.Errorf("verify: %d of %d, want %d; %v", at, of, want, err)
	}
	at = 0
	if err := s.VerifyAll(ctx, report); err != nil || at != want || of != want {
		t.Errorf("verify all: %d of %d, want %d; %v", at, of, want, err)
	}
	for _, what := range []string{"load", "load what is verified"} {
		at = 0
		snap, err := s.Load(ctx, a.ID, report)
		if err != nil || at != want || of != want {
			t.Fatalf("%s: %d of %d, want %d; %v", what, at, of, want, err)
		}
		snap.Release()
	}
}

func TestCancelledCreateLeavesNoTrace(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	a := mustCreate(t, s, Draft{Memory: tableOf(t, pages{1, 2, 3})})
	before := files(t, dir)
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(ctx)
	calls := 0
	_, err := s.Create(ctx, Draft{
		Memory: overlay(t, mustLoad(t, s, a.ID).Memory, pages{0, 7, 0}),
		Disks:  []Disk{{"a", tableOf(t, pages{8})}},
		Progress: func(done, total int64) {
			if calls++; calls == 2 {
				cancel(reason)
			}
		},
	})
	if !errors.Is(err, reason) {
		t.Errorf("%v, want the cause of the context's end", err)
	}
	if got := files(t, dir); !slices.Equal(got, before) {
		t.Errorf("files %v, before %v", got, before)
	}
	for name, err := range map[string]error{
		"Load": func() error { _, err := openStore(t, dir).Load(ctx, a.ID, nil); return err }(),
		"GC":   func() error { _, err := s.GC(ctx); return err }(),
		"List": func() error { _, err := s.List(ctx); return err }(),
	} {
		if !errors.Is(err, reason) {
			t.Errorf("%s: %v, want the cause of the context's end", name, err)
		}
	}
}

// A layer's file that cannot be the layer is no reason not to write it.
func TestTruncatedLayerIsWrittenAnew(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	mustCreate(t, s, Draft{Memory: tableOf(t, pages{1, 2})})
	if err := os.Truncate(layerFiles(t, dir)[0], page); err != nil {
		t.Fatal(err)
	}
	b := mustCreate(t, s, Draft{Memory: tableOf(t, pages{1, 2})})
	wantPages(t, mustLoad(t, openStore(t, dir), b.ID).Memory, pages{1, 2})
}

func TestCacheIsBounded(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	var ids []string
	for i := range maxCached + 5 {
		ids = append(ids, mustCreate(t, s, Draft{Memory: tableOf(t, pages{byte(i + 1)})}).ID)
	}
	var first *Layer
	for i, id := range ids {
		snap, err := s.Load(ctx, id, nil)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = snap.Memory.Extents()[0].Layer
		}
		snap.Release()
	}
	if n, _ := s.cache.oldest(); n != maxCached {
		t.Errorf("%d layers are open, want %d", n, maxCached)
	}
	if _, err := first.ReadAt(make([]byte, 1), 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the layer that was not used for longest: %v, want ErrClosed", err)
	}
	// It is in use elsewhere: the table holds it.
	snap := mustLoad(t, s, ids[len(ids)-1])
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	wantPages(t, snap.Memory, pages{byte(len(ids))})
	if _, err := s.Load(ctx, ids[0], nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("load from a closed store: %v", err)
	}
}

func TestVerifiedOnce(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	a := mustCreate(t, s, Draft{Memory: tableOf(t, pages{1})})
	first := mustLoad(t, s, a.ID)
	second := mustLoad(t, s, a.ID)
	if first.Memory.Extents()[0].Layer != second.Memory.Extents()[0].Layer {
		t.Error("the second load made another layer")
	}
}

func TestDefaultDir(t *testing.T) {
	t.Setenv("HOME", "/home/someone")
	for state, want := range map[string]string{
		"":         "/home/someone/.local/state/forkvm/snapshots",
		"relative": "/home/someone/.local/state/forkvm/snapshots",
		"/state":   "/state/forkvm/snapshots",
	} {
		t.Setenv("XDG_STATE_HOME", state)
		if got, err := DefaultDir(); err != nil || got != want {
			t.Errorf("%q: %s, %v, want %s", state, got, err, want)
		}
	}
}

func TestOpenMakesWhatIsMissing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b", "c")
	openStore(t, dir)
	openStore(t, dir)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{file, filepath.Join(file, "x")} {
		if _, err := Open(bad); err == nil {
			t.Errorf("%s was opened", bad)
		}
	}
}
