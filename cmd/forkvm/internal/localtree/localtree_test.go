package localtree

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestPackedIsUnpacked(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new")
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
	if err := Unpack(to, &b); err != nil {
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
			if err := Unpack(filepath.Join(outer, "in"), &b); err == nil {
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
	if err := Unpack(t.TempDir(), &b); err == nil {
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
		_ = Unpack(filepath.Join(outer, "in"), io.LimitReader(bytes.NewReader(archive), 1<<20)) // as it may
		if left, err := os.ReadDir(outer); err != nil || len(left) > 1 {
			t.Errorf("beside it: %v, %v", left, err)
		}
	})
}
