package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFindDisks(t *testing.T) {
	class := t.TempDir()
	for device, serial := range map[string]string{
		"vda": "base", "vdb": "data\n", "vdc": "a-name-of-20-letters", "loop0": "",
	} {
		if err := os.Mkdir(filepath.Join(class, device), 0o755); err != nil {
			t.Fatal(err)
		}
		if serial == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(class, device, "serial"), []byte(serial), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for names, want := range map[string]string{
		"base": "/dev/vda", "data,base": "/dev/vdb /dev/vda", "a-name-of-20-letters": "/dev/vdc",
	} {
		if got, err := findDisks(class, strings.Split(names, ",")); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v", names, got, err)
		}
	}
	for _, name := range []string{"", "dat", "loop0", "vda", "../vda"} {
		if got, err := findDisks(class, []string{"base", name}); !errors.Is(err, errNoDisk) || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	if _, err := findDisks(filepath.Join(class, "none"), nil); err == nil || errors.Is(err, errNoDisk) {
		t.Errorf("without a directory: %v", err)
	}
}

func TestFileSystemOn(t *testing.T) {
	disk := func(at int, magic []byte) []byte {
		b := make([]byte, 8192)
		copy(b[at:], magic)
		return b
	}
	erofs := binary.LittleEndian.AppendUint32(nil, erofsMagic)
	ext4 := binary.LittleEndian.AppendUint16(nil, ext4Magic)
	for want, b := range map[string][]byte{
		"erofs": disk(1024, erofs), "ext4": disk(1024+56, ext4), "squashfs": disk(0, []byte("hsqs")),
	} {
		if got, err := fileSystemOn(bytes.NewReader(b)); err != nil || got != want {
			t.Errorf("%s: %q, %v", want, got, err)
		}
	}
	for name, b := range map[string][]byte{
		"empty": nil, "zeros": make([]byte, 4096), "short": erofs, "elsewhere": disk(2048, erofs),
	} {
		if got, err := fileSystemOn(bytes.NewReader(b)); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestAwaitUevent waits for what does not come: until the deadline, and not at
// all past it.
func TestAwaitUevent(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	for _, d := range []time.Duration{-time.Second, 20 * time.Millisecond} {
		begin := time.Now()
		if awaitUevent(fds[0], begin.Add(d)) {
			t.Errorf("%v: an event", d)
		}
		if waited := time.Since(begin); waited < d || waited > d+10*time.Second {
			t.Errorf("%v: waited %v", d, waited)
		}
	}
	if _, err := unix.Write(fds[1], []byte("add@/devices/virtio0/block/vda")); err != nil {
		t.Fatal(err)
	}
	if !awaitUevent(fds[0], time.Now().Add(time.Minute)) {
		t.Error("the event is not noticed")
	}
}

func TestEmpty(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "file")
	keep := filepath.Join(dir, "init")
	for _, name := range []string{keep, outside, filepath.Join(dir, "file"), filepath.Join(dir, "a/b/file"), filepath.Join(dir, "a/init")} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"link": filepath.Dir(outside), "a/loop": ".."} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := empty(dir, keep); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "init" {
		t.Errorf("what is left: %v, %v", entries, err)
	}
	if !exists(outside) {
		t.Error("a link was followed")
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestMakeMountPoint(t *testing.T) {
	dir := t.TempDir()
	outside := t.TempDir()
	for name, make := range map[string]func(string) error{
		"new":      func(string) error { return nil },
		"there":    func(p string) error { return os.Mkdir(p, 0o700) },
		"file":     func(p string) error { return os.WriteFile(p, nil, 0o644) },
		"link":     func(p string) error { return os.Symlink(outside, p) },
		"dangling": func(p string) error { return os.Symlink("/no/such", p) },
	} {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		if err := makeMountPoint(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Lstat(path); err != nil || !info.IsDir() {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if err := makeMountPoint(filepath.Join(dir, "none", "below")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("below nothing: %v", err)
	}
}

// TestPlaces: whatever a guest's root is, its commands are found, and after what
// it has of its own.
func TestPlaces(t *testing.T) {
	for _, p := range []place{inInitramfs, inRoot} {
		dirs := strings.Split(p.path(), ":")
		if i := slices.Index(dirs, p.commands); i != len(dirs)-1 {
			t.Errorf("%s is entry %d of %q", p.commands, i, dirs)
		}
	}
}
