package localtree

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// archive is a tar archive of entries without content.
func archive(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func directory(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir} }

func link(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
}

func hard(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}

func global(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "0123"}}
}

// TestNoLinkLeadsOut: none that is there in the end does, whoever follows it
// without care, and whatever became of what it goes through after it was made.
func TestNoLinkLeadsOut(t *testing.T) {
	for name, headers := range map[string][]tar.Header{
		"through a link that comes first": {link("b", "."), link("a", "b/../secret")},
		"through one that comes later":    {link("a", "b/../secret"), link("b", ".")},
		"by a hard link":                  {directory("d/e"), link("d/e/a", "../../secret"), hard("d/a", "d/e/a"), hard("a", "d/e/a")},
		"less deep than it looks":         {link("b", "."), link("b/a", "../secret")},
		"by what is never made":           {global("b/d/x"), link("b", "."), directory("b/d"), link("b/d/a", "../../secret")},
		"a directory that becomes a link": {directory("e"), directory("e/d"), directory("f"), link("f", "."), link("f/a", "../secret")},
	} {
		t.Run(name, func(t *testing.T) {
			outer := t.TempDir()
			if err := os.WriteFile(filepath.Join(outer, "secret"), []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			in := filepath.Join(outer, "in")
			if err := Unpack(in, archive(t, headers...), Limits{}); err == nil {
				t.Error("was unpacked")
			}
			err := filepath.WalkDir(in, func(path string, _ os.DirEntry, err error) error {
				if text, _ := os.ReadFile(path); len(text) > 0 {
					t.Errorf("%s is %q", path, text)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	good := archive(t, directory("d/e"), link("d/e/up", "../.././d//e"), link("self", "."), link("loop", "loop"), link("none", "no/such"), hard("d/e/hard", "d/e/up"))
	in := filepath.Join(t.TempDir(), "in")
	if err := Unpack(in, good, Limits{}); err != nil {
		t.Errorf("links that stay inside: %v", err)
	}
	if info, err := os.Stat(filepath.Join(in, "d/e/hard")); err != nil || !info.IsDir() {
		t.Errorf("a hard link to a link: %v, %v", info, err)
	}
}

// TestNoDirectoryIsDeeperThanNamesAreLong: what is nested deeper could not be
// removed by who has few descriptors.
func TestNoDirectoryIsDeeperThanNamesAreLong(t *testing.T) {
	deep := strings.Repeat("d/", 100)
	headers := []tar.Header{directory(deep), link("l0", deep)}
	for range 3 {
		headers = append(headers, directory("l0/"+deep))
	}
	if err := Unpack(t.TempDir(), archive(t, headers...), Limits{Name: 300}); err == nil {
		t.Error("was unpacked")
	}
}

// TestRecordsAreNotKept: an archive has a MiB of them for each entry.
func TestRecordsAreNotKept(t *testing.T) {
	records := tar.Header{PAXRecords: map[string]string{"FORKVM.x": strings.Repeat("x", 1<<20-1024), "FORKVM.y": "y"}}
	const entries = 128
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	records.Typeflag, records.Mode = tar.TypeDir, 0o755
	records.Name = "d\u00e4" // in a record, too
	if err := w.WriteHeader(&records); err != nil {
		t.Fatal(err)
	}
	one := b.Bytes()
	var readers []io.Reader
	for range entries {
		readers = append(readers, bytes.NewReader(one))
	}
	var most uint64
	readers = append(readers, atEnd(func() {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		most = m.HeapAlloc
	}))
	if err := Unpack(t.TempDir(), io.MultiReader(readers...), Limits{}); err != nil {
		t.Fatal(err)
	}
	if most == 0 || most > entries/2<<20 {
		t.Errorf("%d bytes are in use after %d entries", most, entries)
	}
}

// atEnd is called when all else has been read.
type atEnd func()

func (f atEnd) Read([]byte) (int, error) { f(); return 0, io.EOF }

// TestGlobalRecords are what archives of git begin with.
func TestGlobalRecords(t *testing.T) {
	in := t.TempDir()
	g := global("pax_global_header")
	if err := Unpack(in, archive(t, g, directory("d")), Limits{}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(in); err != nil || len(left) != 1 {
		t.Errorf("unpacked %v, %v", left, err)
	}
	if err := Unpack(in, archive(t, g, g, g), Limits{Entries: 2}); err == nil {
		t.Error("they do not count")
	}
}
