package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMissingProgram(t *testing.T) {
	_, err := tool("qemu-system-pdp11", "qemu-system-misc")
	missing, ok := errors.AsType[*MissingError](err)
	if !ok || missing.Package != "qemu-system-misc" || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("%v", err)
	}
}

// The image of the kernels is made anew when a kernel comes, and only then.
func TestKernelsImage(t *testing.T) {
	mke2fs, err := tool(mke2fsProgram, mke2fsPackage)
	if err != nil {
		if os.Getenv("FORKVM_REQUIRE_TOOLS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	kernels, dir := t.TempDir(), t.TempDir()
	made := func() string {
		path, err := kernelsImage(context.Background(), mke2fs, kernels, dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	none := made()
	if err := os.Mkdir(filepath.Join(kernels, "one"), 0o755); err != nil {
		t.Fatal(err)
	}
	one := made()
	if one == none {
		t.Error("a new kernel is not seen")
	}
	if again := made(); again != one {
		t.Error("the same kernels make another image")
	}
	if images, _ := filepath.Glob(filepath.Join(dir, "*")); len(images) != 1 {
		t.Errorf("images left: %q", images)
	}
}

func TestIsDefault(t *testing.T) {
	if !(Options{}).IsDefault() || (Options{MemoryMiB: 1}).IsDefault() || (Options{Trees: []Mount{{}}}).IsDefault() {
		t.Error("what needs a machine of its own is mistaken")
	}
}
