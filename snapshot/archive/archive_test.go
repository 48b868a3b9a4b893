package archive

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/forkvm/forkvm/snapshot"
)

const page = snapshot.PageSize

var ctx = context.Background()

func openStore(t testing.TB) (s *snapshot.Store, dir string) {
	t.Helper()
	dir = t.TempDir()
	s, err := snapshot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, dir
}

// table fills each page with its byte.
func table(t testing.TB, under *snapshot.Table, content []byte) *snapshot.Table {
	t.Helper()
	w, err := snapshot.NewLayerWriter(int64(len(content)) * page)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var top []snapshot.Extent
	for i, b := range content {
		at := int64(i) * page
		if b == 0 {
			continue
		}
		if err := w.WriteAt(bytes.Repeat([]byte{b}, page), at); err != nil {
			t.Fatal(err)
		}
		top = append(top, snapshot.Extent{Start: at, Length: page, Offset: at})
	}
	l, err := w.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	for i := range top {
		top[i].Layer = l
	}
	if under == nil {
		under = snapshot.NewTable(int64(len(content)) * page)
		defer under.Release()
	}
	made, err := under.Overlay(top)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.Release)
	return made
}

// sample is a snapshot of two layers with holes, of which one is longer than
// a piece.
func sample(t testing.TB, s *snapshot.Store) snapshot.Info {
	t.Helper()
	long := bytes.Repeat([]byte{1, 2, 3}, 120)
	long[5], long[300] = 0, 0
	base := table(t, nil, long)
	info, err := s.Create(ctx, snapshot.Draft{
		Label: "sample", Memory: table(t, base, append(make([]byte, 359), 9)),
		Sections: map[string][]byte{"vcpu": []byte("state")},
		Disks:    []snapshot.Disk{{Name: "root", Table: table(t, nil, []byte{0, 0, 7})}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func export(t testing.TB, s *snapshot.Store, id string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Export(ctx, s, id, &b, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unpack(t testing.TB, archive []byte) []byte {
	t.Helper()
	z, err := zstd.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	all, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func pack(t testing.TB, stream []byte, opts ...zstd.EOption) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(stream); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func memory(t testing.TB, s *snapshot.Store, id string) []byte {
	t.Helper()
	snap, err := s.Load(ctx, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Release()
	all := make([]byte, snap.Memory.Size())
	if err := snap.Memory.ReadAt(all, 0); err != nil {
		t.Fatal(err)
	}
	for _, d := range snap.Disks {
		disk := make([]byte, d.Table.Size())
		if err := d.Table.ReadAt(disk, 0); err != nil {
			t.Fatal(err)
		}
		all = append(all, disk...)
	}
	return append(all, snap.Sections["vcpu"]...)
}

// stored are the files below a store's directories.
func stored(t testing.TB, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestExportAndImport(t *testing.T) {
	from, _ := openStore(t)
	to, dir := openStore(t)
	made := sample(t, from)
	var b bytes.Buffer
	var done, total int64
	report := func(d, of int64) {
		if d < done || d > of {
			t.Errorf("%d of %d after %d", d, of, done)
		}
		done, total = d, of
	}
	if err := Export(ctx, from, made.ID, &b, report); err != nil {
		t.Fatal(err)
	}
	if want := int64(358+1+1) * page; done != want || total != want {
		t.Errorf("export: %d of %d, want %d", done, total, want)
	}
	if b.Len() > 20*page {
		t.Errorf("%d bytes: not compressed", b.Len())
	}
	archive := b.Bytes()
	done = 0
	got, err := Import(ctx, to, bytes.NewReader(archive), report)
	if err != nil {
		t.Fatal(err)
	}
	if done != total || got.ID != made.ID || got.Label != "sample" || got.Unique != got.Stored {
		t.Errorf("%d of %d, %+v", done, total, got)
	}
	if !bytes.Equal(memory(t, to, made.ID), memory(t, from, made.ID)) {
		t.Error("other bytes")
	}
	if again := export(t, to, made.ID); !bytes.Equal(unpack(t, again), unpack(t, archive)) {
		t.Error("exported again, it is another stream")
	}
	before := stored(t, dir)
	if _, err := Import(ctx, to, bytes.NewReader(archive), nil); !errors.Is(err, snapshot.ErrExists) {
		t.Errorf("imported twice: %v, want ErrExists", err)
	}
	if !slices.Equal(stored(t, dir), before) {
		t.Errorf("files %v, before %v", stored(t, dir), before)
	}
}

// Of an archive whose layers are there already nothing is written but the
// manifest, and everything is verified all the same.
func TestImportSharesLayers(t *testing.T) {
	from, _ := openStore(t)
	to, _ := openStore(t)
	base := table(t, nil, []byte{1, 2, 3})
	a, err := from.Create(ctx, snapshot.Draft{Memory: base})
	if err != nil {
		t.Fatal(err)
	}
	b, err := from.Create(ctx, snapshot.Draft{Memory: table(t, base, []byte{0, 9, 0})})
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range []string{a.ID, b.ID} {
		got, err := Import(ctx, to, bytes.NewReader(export(t, from, id)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := []int64{3, 1}[i]; got.Unique/page != want {
			t.Errorf("snapshot %d added %d pages, want %d", i, got.Unique/page, want)
		}
	}
	if err := to.Delete(ctx, a.ID); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(memory(t, to, b.ID), memory(t, from, b.ID)) {
		t.Error("other bytes")
	}
	// The store has the first layer still: an archive in which it is another.
	stream := unpack(t, export(t, from, a.ID))
	stream[bytes.LastIndexByte(stream, 2)] = 4
	if _, err := Import(ctx, to, bytes.NewReader(pack(t, stream)), nil); !errors.Is(err, snapshot.ErrCorrupt) {
		t.Errorf("%v, want ErrCorrupt", err)
	}
}

// wantRefused checks that an import fails as it should, without a trace.
func wantRefused(t testing.TB, what string, archive []byte, want error) {
	t.Helper()
	s, dir := openStore(t)
	_, err := Import(ctx, s, bytes.NewReader(archive), nil)
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
	if got := stored(t, dir); len(got) > 0 {
		t.Errorf("%s: left over: %v", what, got)
	}
}

func TestDamagedArchives(t *testing.T) {
	s, _ := openStore(t)
	archive := export(t, s, sample(t, s).ID)
	for i := range archive {
		damaged := slices.Clone(archive)
		damaged[i] ^= 1 << (i % 8)
		wantNothing(t, damaged)
		if i%16 == 0 {
			wantNothing(t, archive[:i])
		}
		if t.Failed() {
			t.Fatalf("byte %d of %d", i, len(archive))
		}
	}
	stream := unpack(t, archive)
	for i := 0; i < len(stream); i += 1 + len(stream)/50 {
		damaged := slices.Clone(stream)
		damaged[i] ^= 0x10
		wantNothing(t, pack(t, damaged))
		wantNothing(t, pack(t, stream[:i]))
		if t.Failed() {
			t.Fatalf("byte %d of the stream of %d", i, len(stream))
		}
	}
}

// wantNothing checks that an archive is refused, or that the change was of
// something that does not matter: zstd has a few such bits.
func wantNothing(t testing.TB, archive []byte) {
	t.Helper()
	wantNothingFrom(t, func(s *snapshot.Store) error {
		_, err := Import(ctx, s, bytes.NewReader(archive), nil)
		return err
	})
}

func wantNothingFrom(t testing.TB, do func(*snapshot.Store) error) {
	t.Helper()
	s, dir := openStoreIn(t)
	defer os.RemoveAll(dir)
	defer s.Close()
	err := do(s)
	if err == nil {
		if err := s.VerifyAll(ctx, nil); err != nil {
			t.Error(err)
		}
		return
	}
	if !errors.Is(err, snapshot.ErrCorrupt) && !errors.Is(err, snapshot.ErrVersion) {
		t.Errorf("untyped error %v", err)
	}
	if got := stored(t, dir); len(got) > 0 {
		t.Errorf("left over: %v", got)
	}
}

// openStoreIn makes a store that the caller removes, in memory if possible.
func openStoreIn(t testing.TB) (*snapshot.Store, string) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "forkvm-archive-")
	if err != nil {
		dir = t.TempDir()
	}
	s, err := snapshot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s, dir
}

func piece(off uint64, p []byte) []byte {
	head := binary.LittleEndian.AppendUint64(nil, off)
	return append(binary.LittleEndian.AppendUint32(head, uint32(len(p))), p...)
}

func TestHostileArchives(t *testing.T) {
	s, _ := openStore(t)
	info, err := s.Create(ctx, snapshot.Draft{Memory: table(t, nil, []byte{1, 2, 0, 3})})
	if err != nil {
		t.Fatal(err)
	}
	stream := unpack(t, export(t, s, info.ID))
	n := binary.LittleEndian.Uint32(stream[len(header):])
	start := stream[:len(header)+4+int(n)]
	one, two := bytes.Repeat([]byte{1}, page), bytes.Repeat([]byte{2}, page)
	three, zeros := bytes.Repeat([]byte{3}, page), make([]byte, page)
	end := piece(endOfLayer, nil)
	with := func(parts ...[]byte) []byte { return append(slices.Clone(start), slices.Concat(parts...)...) }

	// In other pieces it is still the same.
	to, _ := openStore(t)
	good := with(piece(0, one), piece(page, two), piece(3*page, three), end)
	if _, err := Import(ctx, to, bytes.NewReader(pack(t, good)), nil); err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string][]byte{
		"nothing":                  nil,
		"something else":           []byte(strings.Repeat("PK", 100)),
		"no layer":                 with(),
		"an empty layer":           with(end),
		"a page missing":           with(piece(0, one), piece(page, two), end),
		"a page too many":          with(piece(0, one), piece(page, two), piece(2*page, one), piece(3*page, three), end),
		"a page twice":             with(piece(0, one), piece(0, one), piece(page, two), piece(3*page, three), end),
		"pages in another order":   with(piece(page, two), piece(0, one), piece(3*page, three), end),
		"a page of zeros":          with(piece(0, one), piece(page, two), piece(2*page, zeros), piece(3*page, three), end),
		"zeros for a page":         with(piece(0, one), piece(page, zeros), piece(3*page, three), end),
		"a page past the end":      with(piece(0, one), piece(page, two), piece(4*page, three), end),
		"a piece past the end":     with(piece(0, one), piece(page, two), piece(3*page, append(slices.Clone(three), three...)), end),
		"an offset that overflows": with(piece(1<<63-page, one), end),
		"a negative offset":        with(piece(1<<63, one), end),
		"an offset between pages":  with(piece(1, one), end),
		"part of a page":           with(piece(0, one[1:]), end),
		"an empty piece":           with(piece(0, nil), end),
		"a huge piece":             with(binary.LittleEndian.AppendUint32(make([]byte, 8), 1<<31), end),
		"an end with bytes":        with(piece(0, one), piece(page, two), piece(3*page, three), piece(endOfLayer, one)),
		"no end":                   with(piece(0, one), piece(page, two), piece(3*page, three)),
		"more layers":              append(slices.Clone(good), good[len(start):]...),
		"a byte too many":          append(slices.Clone(good), 0),
		"a huge manifest":          append([]byte(header), 0xff, 0xff, 0xff, 0xff),
		"no manifest":              append([]byte(header), 0, 0, 0, 0),
	} {
		wantRefused(t, what, pack(t, bad), snapshot.ErrCorrupt)
	}
	wantRefused(t, "another version", pack(t, append([]byte("forkvm-archive 2\n"), good[len(header):]...)), snapshot.ErrVersion)
	wantRefused(t, "not compressed", good, snapshot.ErrCorrupt)
	large := pack(t, bytes.Repeat(good, 1000), zstd.WithWindowSize(128<<20))
	wantRefused(t, "a window of 128 MiB", large, snapshot.ErrCorrupt)
	wantRefused(t, "a window of 128 MiB", large, zstd.ErrWindowSizeExceeded)
	wantRefused(t, "a bomb", pack(t, append(slices.Clone(start), make([]byte, 16<<20)...)), snapshot.ErrCorrupt)
}

func TestImportStops(t *testing.T) {
	s, _ := openStore(t)
	archive := export(t, s, sample(t, s).ID)
	to, dir := openStore(t)
	broken := errors.New("the line is broken")
	if _, err := Import(ctx, to, io.MultiReader(bytes.NewReader(archive[:len(archive)-20]), failing{broken}), nil); !errors.Is(err, broken) || errors.Is(err, snapshot.ErrCorrupt) {
		t.Errorf("%v, want the error of the reader", err)
	}
	reason := errors.New("enough")
	limited, cancel := context.WithCancelCause(ctx)
	_, err := Import(limited, to, bytes.NewReader(archive), func(done, _ int64) {
		if done > 0 {
			cancel(reason)
		}
	})
	if !errors.Is(err, reason) {
		t.Errorf("%v, want the cause of the context's end", err)
	}
	if err := Export(limited, s, "", io.Discard, nil); !errors.Is(err, reason) && !errors.Is(err, snapshot.ErrBadID) {
		t.Errorf("export: %v", err)
	}
	if got := stored(t, dir); len(got) > 0 {
		t.Errorf("left over: %v", got)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestExportFails(t *testing.T) {
	s, dir := openStore(t)
	info := sample(t, s)
	full := errors.New("full")
	if err := Export(ctx, s, info.ID, failing{full}, nil); !errors.Is(err, full) {
		t.Errorf("%v, want the error of the writer", err)
	}
	if err := s.Delete(ctx, info.ID); err != nil {
		t.Fatal(err)
	}
	if got := stored(t, dir); len(got) > 0 {
		t.Errorf("left over: %v", got)
	}
	if err := Export(ctx, s, info.ID, io.Discard, nil); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("%v, want ErrNotFound", err)
	}
}

// FuzzImport takes bytes for an archive, for what is compressed in one, and
// for the layers of one whose manifest is right.
func FuzzImport(f *testing.F) {
	s, dir := openStoreIn(f)
	defer os.RemoveAll(dir)
	defer s.Close()
	info, err := s.Create(ctx, snapshot.Draft{
		Memory: table(f, nil, []byte{1, 0, 2}), Sections: map[string][]byte{"a": {1}},
		Disks: []snapshot.Disk{{Name: "root", Table: table(f, nil, []byte{3})}},
	})
	if err != nil {
		f.Fatal(err)
	}
	archive := export(f, s, info.ID)
	stream := unpack(f, archive)
	n := binary.LittleEndian.Uint32(stream[len(header):])
	start := stream[:len(header)+4+int(n)]
	f.Add(archive)
	f.Add(stream)
	f.Add(stream[len(start):])
	f.Add([]byte(header))
	f.Fuzz(func(t *testing.T, data []byte) {
		wantNothing(t, data)
		for _, stream := range [][]byte{data, append(slices.Clone(start), data...)} {
			wantNothingFrom(t, func(s *snapshot.Store) error {
				_, err := read(ctx, s, bytes.NewReader(stream), nil)
				return err
			})
		}
	})
}
