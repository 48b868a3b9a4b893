// Package tooltest has other people's programs look at what the packages around
// it write.
package tooltest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Run runs a program, which must succeed, and returns all that it prints. The
// test is skipped if the program is not installed, or fails then if
// FORKVM_REQUIRE_TOOLS=1; pkg is the package that has it.
func Run(t testing.TB, pkg, name string, args ...string) string {
	t.Helper()
	bin, err := exec.LookPath(name)
	if err != nil {
		bin, err = exec.LookPath("/usr/sbin/" + name) // not in the path of every user
	}
	if err != nil {
		skip(t, pkg+" is not installed")
	}
	out, err := exec.CommandContext(t.Context(), bin, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func skip(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("FORKVM_REQUIRE_TOOLS") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}
