package initrd

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// runBuildScript runs kernel/build.sh with that PATH, and returns its exit code and
// what it said.
func runBuildScript(t *testing.T, path string, args ...string) (int, string) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bash, append([]string{"kernel/build.sh"}, args...)...)
	cmd.Env = []string{"PATH=" + path, "HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func TestBuildScriptRefusesStrangeArguments(t *testing.T) {
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--frobnicate"}, {"a", "b"}, {foreign}} {
		if code, out := runBuildScript(t, os.Getenv("PATH"), args...); code != 2 {
			t.Errorf("%q: exit code %d: %s", args, code, out)
		}
	}
	if _, err := os.Stat(filepath.Join(foreign, "thesis")); err != nil {
		t.Error(err)
	}
}

func TestBuildScriptSaysWhatIsMissing(t *testing.T) {
	bin := t.TempDir()
	for _, tool := range []string{"dirname", "uname", "ls", "tar"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	code, out := runBuildScript(t, bin)
	if code != 3 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"gcc, ", "flex, ", "lz4, ", "apt-get install -y linux-source-6.12 build-essential"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %q", want, out)
		}
	}
	if strings.Contains(out, "tar, ") {
		t.Errorf("tar is there, and said to be missing: %q", out)
	}
}
