package descriptors

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKeep has a pipe that this process was given, as it looks.
func TestKeep(t *testing.T) {
	var given [2]int
	if err := unix.Pipe2(given[:], 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(given[0])
	defer unix.Close(given[1])
	pipe, err := os.Readlink(fmt.Sprint("/proc/self/fd/", given[1]))
	if err != nil {
		t.Fatal(err)
	}
	has := func() bool {
		t.Helper()
		out, err := exec.Command("ls", "-l", "/proc/self/fd").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.Contains(string(out), pipe)
	}
	if !has() {
		t.Fatal("a program does not get the pipe anyway")
	}
	if err := Keep(); err != nil {
		t.Fatal(err)
	}
	if has() {
		t.Error("a program gets the pipe")
	}
}
