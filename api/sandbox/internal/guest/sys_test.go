package guest

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// needTools turns a test that the machine cannot run into a failure where it
// must be able to.
func needTools(t testing.TB, ok bool, what string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("FORKVM_REQUIRE_TOOLS") == "1":
		t.Fatalf("needs %s", what)
	default:
		t.Skipf("needs %s", what)
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	needTools(t, os.Geteuid() == 0, "root")
}

func mkfifo(name string) error { return unix.Mkfifo(name, 0o600) }

// smallDisk returns a directory with room for so many bytes.
func smallDisk(t testing.TB, size string) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("none", dir, "tmpfs", 0, "size="+size)
	needTools(t, err == nil, "a file system to mount")
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
