package localtree

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestPackedIsUnpacked(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new")
	t.Cleanup(func() { _ = errors.Join(Remove(from), Remove(to)) }) // one of their directories is closed
	for name, mode := range map[string]os.FileMode{"a": 0o640, "dir/b": 0o755, "closed/c": 0o600} {
		name = filepath.Join(from, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../a", filepath.Join(from, "dir/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(from, "closed"), 0o500); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Pack(&b, from); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(to, &b, Limits{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "dir/b", "dir/link", "closed/c", "closed"} {
		was, err := os.Lstat(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		is, err := os.Lstat(filepath.Join(to, name))
		if err != nil || is.Mode() != was.Mode() {
			t.Errorf("%s: %v, %v, want mode %v", name, is, err, was.Mode())
		}
	}
	if got, err := os.ReadFile(filepath.Join(to, "dir/link")); string(got) != filepath.Join(from, "a") {
		t.Errorf("through the link: %q, %v", got, err)
	}
}

func TestNothingLeavesTheDirectory(t *testing.T) {
	for name, headers := range map[string][]tar.Header{
		"parent":        {{Name: "../out", Typeflag: tar.TypeReg, Mode: 0o644}},
		"absolute":      {{Name: "/out", Typeflag: tar.TypeReg, Mode: 0o644}},
		"absolute link": {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}},
		"link out":      {{Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "../../x"}},
		"hard link":     {{Name: "l", Typeflag: tar.TypeLink, Linkname: "../secret"}},
		"device":        {{Name: "l", Typeflag: tar.TypeChar}},
		"itself":        {{Name: ".", Typeflag: tar.TypeReg}},
		// Each link stays inside by its letters, both together do not.
		"two links": {
			{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "b/.."},
			{Name: "b", Typeflag: tar.TypeSymlink, Linkname: "."},
			{Name: "a/out", Typeflag: tar.TypeReg, Mode: 0o644},
		},
	} {
		t.Run(name, func(t *testing.T) {
			outer := t.TempDir()
			if err := os.WriteFile(filepath.Join(outer, "secret"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, h := range headers {
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := Unpack(filepath.Join(outer, "in"), &b, Limits{}); err == nil {
				t.Error("was unpacked")
			}
			if left, err := os.ReadDir(outer); err != nil || len(left) != 2 {
				t.Errorf("beside it: %v, %v", left, err)
			}
		})
	}
}

func TestCutArchive(t *testing.T) {
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 100}); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(t.TempDir(), &b, Limits{}); err == nil {
		t.Error("half an archive was unpacked as if it were whole")
	}
}

func FuzzUnpack(f *testing.F) {
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte("y"), 0o644); err != nil {
		f.Fatal(err)
	}
	var b bytes.Buffer
	if err := Pack(&b, dir); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, archive []byte) {
		outer := t.TempDir()
		_ = Unpack(filepath.Join(outer, "in"), io.LimitReader(bytes.NewReader(archive), 1<<20), Limits{Bytes: 1 << 20, Entries: 100, Name: 100}) // as it may
		if left, err := os.ReadDir(outer); err != nil || len(left) > 1 {
			t.Errorf("beside it: %v, %v", left, err)
		}
	})
}

// TestLimits: what is over one of them is refused before it is written.
func TestLimits(t *testing.T) {
	all := Limits{Bytes: 10, Entries: 4, Name: 20}
	for name, c := range map[string]struct {
		headers []tar.Header
		fits    bool
	}{
		"fits":                 {[]tar.Header{{Name: "a", Size: 4}, {Name: "d/b", Size: 6}}, true},
		"bytes":                {[]tar.Header{{Name: "a", Size: 4}, {Name: "b", Size: 7}}, false},
		"one large file":       {[]tar.Header{{Name: "a", Size: 1 << 40}}, false},
		"entries":              {[]tar.Header{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}, {Name: "e"}}, false},
		"the same again":       {[]tar.Header{{Name: "a"}, {Name: "a"}, {Name: "a"}, {Name: "a"}, {Name: "a"}}, false},
		"directories of names": {[]tar.Header{{Name: "a/b/c/d/e"}}, false},
		"name":                 {[]tar.Header{{Name: "aaaaaaaaaaaaaaaaaaaaa"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, h := range c.headers {
				h.Typeflag, h.Mode = tar.TypeReg, 0o600
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
				w.Write(make([]byte, min(h.Size, 100)))
			}
			w.Flush()
			dir := t.TempDir()
			err := Unpack(dir, &b, all)
			if (err == nil) != c.fits || err != nil && !errors.Is(err, ErrLimit) {
				t.Errorf("unpacked: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "a/b")); err == nil {
				t.Error("directories were made before they were counted")
			}
		})
	}
}

// TestRemoveOfClosedDirectories: an archive may have directories that nobody may
// enter.
func TestRemoveOfClosedDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a/b/c", "a/b", "a", ""} {
		if err := os.Chmod(filepath.Join(dir, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := Remove(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
	if err := Remove(dir); err != nil {
		t.Errorf("again: %v", err)
	}
}
