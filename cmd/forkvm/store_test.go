package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/forkvm/forkvm/snapshot"
)

// makeStore fills the store of a script with a snapshot for each label, of
// memory that the first ones share: store LABEL... The ids are $id0, $id1 and
// so on.
func makeStore(ts *testscript.TestScript, neg bool, labels []string) {
	if neg || len(labels) == 0 {
		ts.Fatalf("usage: store LABEL...")
	}
	store, err := snapshot.Open(ts.Getenv("FORKVM_STORE"))
	ts.Check(err)
	defer store.Close()
	parent := ""
	shared := layerOf(ts, 64)
	defer shared.Release()
	for n, label := range labels {
		own := layerOf(ts, 16)
		info, err := store.Create(context.Background(), snapshot.Draft{
			Label: label, Parent: parent, Config: json.RawMessage(`{"vcpus":1}`),
			Needs:    snapshot.Needs{Vendor: "Acme", VCPUs: 1, Capabilities: []string{"KVM_CAP_IRQCHIP"}},
			Kernel:   snapshot.Kernel{Version: "6.0-test"},
			Sections: map[string][]byte{"vcpu/0": []byte("state")}, Memory: tableOf(ts, shared, own),
		})
		own.Release()
		ts.Check(err)
		parent = info.ID
		ts.Setenv(fmt.Sprintf("id%d", n), info.ID)
	}
}

const testMemory = 2 << 20

var filled byte

// layerOf is a layer whose first pages are unlike those of any other.
func layerOf(ts *testscript.TestScript, pages int) *snapshot.Layer {
	w, err := snapshot.NewLayerWriter(testMemory)
	ts.Check(err)
	defer w.Close()
	filled++
	ts.Check(w.WriteAt(bytes.Repeat([]byte{filled}, pages*snapshot.PageSize), 0))
	l, err := w.Seal()
	ts.Check(err)
	return l
}

// tableOf has one layer in its first half and another in its second.
func tableOf(ts *testscript.TestScript, first, second *snapshot.Layer) *snapshot.Table {
	zeros := snapshot.NewTable(testMemory)
	defer zeros.Release()
	const half = testMemory / 2
	t, err := zeros.Overlay([]snapshot.Extent{
		{Start: 0, Length: half, Layer: first}, {Start: half, Length: half, Layer: second},
	})
	ts.Check(err)
	return t
}

// flipByte inverts the first byte that is not zero in each file: flip FILE...
func flipByte(ts *testscript.TestScript, neg bool, patterns []string) {
	flipped := 0
	for _, pattern := range patterns {
		names, err := filepath.Glob(ts.MkAbs(pattern))
		ts.Check(err)
		for _, name := range names {
			data, err := os.ReadFile(name)
			ts.Check(err)
			at := bytes.IndexFunc(data, func(r rune) bool { return r != 0 })
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			ts.Check(err)
			_, err = f.WriteAt([]byte{^data[at]}, int64(at))
			ts.Check(errors.Join(err, f.Close()))
			flipped++
		}
	}
	if neg || flipped == 0 {
		ts.Fatalf("%d bytes flipped", flipped)
	}
}

// idOf is an id that begins with some letters.
func idOf(begin string) string { return begin + strings.Repeat("a", 26-len(begin)) }

func infoOf(id, label string) snapshot.Info {
	return snapshot.Info{Manifest: snapshot.Manifest{ID: id, Label: label}}
}

func TestPickStored(t *testing.T) {
	all := []snapshot.Info{
		infoOf(idOf("bcd"), "base"), infoOf(idOf("bce"), "twice"), infoOf(idOf("k"), "twice"),
		infoOf(idOf("m"), "bc"), infoOf(idOf("n"), idOf("m")), infoOf(idOf("q"), ""),
		{Manifest: snapshot.Manifest{ID: idOf("z")}, Err: snapshot.ErrCorrupt},
	}
	for _, test := range []struct {
		name, want string
		err        string
	}{
		{name: idOf("bcd"), want: idOf("bcd")},
		{name: "bcd", want: idOf("bcd")},
		{name: "base", want: idOf("bcd")},
		{name: "z", want: idOf("z")},
		{name: "bc", want: idOf("m")},      // a label comes before the beginning of an id
		{name: idOf("m"), want: idOf("m")}, // and an id before a label
		{name: "b", err: `"b" names more than one snapshot`},
		{name: "twice", err: `"twice" names more than one snapshot`},
		{name: "x", err: `no such snapshot: "x"`},
		{name: "BASE", err: "no such snapshot"},
		{name: "../bcd", err: "no such snapshot"},
		{name: idOf("bcd") + "a", err: "no such snapshot"},
		{name: "", err: "empty name"},
	} {
		id, err := pick(storeKind, storeRecords(all), test.name)
		if id != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%q: %q, %v; want %q, %s", test.name, id, err, test.want, test.err)
		}
	}
}

func TestAmbiguousNamesItsCandidates(t *testing.T) {
	all := []snapshot.Info{infoOf(idOf("ba"), "one"), infoOf(idOf("bb"), "two")}
	all = append(all, snapshot.Info{Manifest: snapshot.Manifest{ID: idOf("bc")}, Err: snapshot.ErrCorrupt})
	_, err := pick(storeKind, storeRecords(all), "b")
	for _, want := range []string{idOf("ba") + "  one (", idOf("bb") + "  two (", idOf("bc") + "  unreadable"} {
		if err == nil || !strings.Contains(err.Error(), "\n  "+want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
	for i := range 100 {
		all = append(all, infoOf(idOf(fmt.Sprintf("b%c%c", 'a'+i/10, 'a'+i%10)), ""))
	}
	if _, err := pick(storeKind, storeRecords(all), "b"); strings.Count(err.Error(), "\n") > 12 || !strings.Contains(err.Error(), "and 93 more") {
		t.Errorf("not cut short: %v", err)
	}
}

func sample() snapshot.Info {
	info := infoOf(idOf("b"), "base")
	info.Parent = idOf("c")
	info.Created = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	info.Kernel.Version = "6.0-test"
	info.Logical, info.Stored, info.Unique = 256<<20, 40<<20, 512<<10
	return info
}

// TestSummaryFields are a promise to scripts.
func TestSummaryFields(t *testing.T) {
	for _, test := range []struct {
		info snapshot.Info
		want string
	}{
		{sample(), `{"id":"` + idOf("b") + `","label":"base","parent":"` + idOf("c") + `","created":"2026-11-30T12:00:00Z",` +
			`"kernel":{"version":"6.0-test"},"logical":268435456,"stored":41943040,"unique":524288}`},
		{snapshot.Info{Manifest: snapshot.Manifest{ID: idOf("b")}, Err: errors.New("torn")}, `{"id":"` + idOf("b") + `","error":"torn"}`},
	} {
		got, err := json.Marshal(summarize(test.info))
		if err != nil || string(got) != test.want {
			t.Errorf("got  %s, %v\nwant %s", got, err, test.want)
		}
	}
}

func TestPrintList(t *testing.T) {
	now := sample()
	now.Created = time.Now().Add(-3 * time.Minute)
	broken := snapshot.Info{Manifest: snapshot.Manifest{ID: idOf("d")}, Err: errors.New("why it cannot be read, in many words")}
	var out strings.Builder
	if err := printList(&out, []snapshot.Info{now, broken}); err != nil {
		t.Fatal(err)
	}
	want := `ID            LABEL  CREATED        PARENT        LOGICAL  STORED  UNIQUE
baaaaaaaaaaa  base   3 minutes ago  caaaaaaaaaaa  256 MiB  40 MiB  512 KiB
daaaaaaaaaaa  why it cannot be read, in many words
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestSaveValue(t *testing.T) {
	for in, want := range map[string]saveValue{
		unlabelled: {true, ""}, "false": {}, "base": {true, "base"}, "not true": {true, "not true"}, "": {true, ""},
	} {
		s := saveValue{true, "earlier"}
		if err := s.Set(in); err != nil || s != want {
			t.Errorf("%q: %+v, %v; want %+v", in, s, err, want)
		}
	}
}

// TestLabelsAreThoseOfSnapshots holds the early check to what a store takes.
func TestLabelsAreThoseOfSnapshots(t *testing.T) {
	store, err := snapshot.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, label := range []string{
		"", "base", "größer 2", strings.Repeat("x", 200), strings.Repeat("x", 201), "a\nb", "a\tb", "\xff", "\u202e", "é" + strings.Repeat("x", 199),
	} {
		early := checkLabel(label)
		// There is no such snapshot, but a bad label is found before that.
		late := store.Relabel(t.Context(), idOf("b"), label)
		if (early != nil) != errors.Is(late, snapshot.ErrInvalid) {
			t.Errorf("%q: %v here, %v there", label, early, late)
		}
	}
}

// TestImportEndsWithTheContext although nothing comes out of the file.
func TestImportEndsWithTheContext(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	store, err := snapshot.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() {
		_, err := importFrom(ctx, store, r)
		done <- err
	}()
	cancel(interrupted{syscall.SIGTERM})
	if err := await(t, done, "end of the import"); exitCode(err) != 143 {
		t.Errorf("%v: exit code %d, want 143", err, exitCode(err))
	}
}
