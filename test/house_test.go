// Package test holds what is true of the whole module.
package test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const module = "github.com/forkvm/forkvm"

// imports are the packages outside the standard library that pkg depends on,
// itself included.
func imports(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", pkg).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.Fields(string(out))
}

// TestWhoeverEmbedsForkvmTakesNothingElse holds the closure of vmm to the
// standard library, x/sys and this module.
func TestWhoeverEmbedsForkvmTakesNothingElse(t *testing.T) {
	for _, p := range imports(t, module+"/vmm") {
		if !strings.HasPrefix(p, module+"/") && !strings.HasPrefix(p, "golang.org/x/sys/") {
			t.Errorf("vmm depends on %s", p)
		}
	}
}

// TestProgramsTakeNothingOfTests looks for modules that only tests need.
func TestProgramsTakeNothingOfTests(t *testing.T) {
	for _, p := range imports(t, "../...") {
		if strings.HasPrefix(p, "github.com/getkin/kin-openapi/") {
			t.Errorf("something other than a test depends on %s", p)
		}
	}
}

// TestFoldersImportWhatTheyMay checks the direction of dependencies.
func TestFoldersImportWhatTheyMay(t *testing.T) {
	for pkg, never := range map[string][]string{
		"kvm":               {"devices", "snapshot", "vmm", "guestagent", "initrd", "api", "cmd"},
		"devices/...":       {"kvm", "vmm", "snapshot", "guestagent", "initrd", "api", "cmd"},
		"snapshot/...":      {"kvm", "devices", "vmm", "guestagent", "initrd", "api", "cmd"},
		"vmm":               {"initrd", "api", "cmd", "guestagent/agent"},
		"guestagent/client": {"guestagent/agent", "vmm", "kvm", "devices", "initrd"},
		"guestagent/agent":  {"vmm", "kvm", "devices", "initrd", "api", "cmd"},
		"initrd/...":        {"vmm", "api", "cmd", "kvm", "devices"},
		"api/...":           {"cmd"},
	} {
		for _, p := range imports(t, module+"/"+pkg) {
			for _, n := range never {
				if p == module+"/"+n || strings.HasPrefix(p, module+"/"+n+"/") {
					t.Errorf("%s depends on %s", pkg, p)
				}
			}
		}
	}
}

// TestUnsafeStaysInItsFiles looks for package unsafe outside *_unsafe.go.
func TestUnsafeStaysInItsFiles(t *testing.T) {
	uses := regexp.MustCompile(`(?m)^\s*(import )?"unsafe"|\bunsafe\.[A-Z]|^//go:linkname`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		if strings.HasSuffix(path, "_unsafe.go") || strings.HasSuffix(path, "_unsafe_test.go") || strings.HasSuffix(path, "house_test.go") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err == nil && uses.Match(src) {
			t.Errorf("%s uses unsafe", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
