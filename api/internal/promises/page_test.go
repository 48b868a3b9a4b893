package promises

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../../.."

func TestPageIsCurrent(t *testing.T) {
	have, err := os.ReadFile(filepath.Join(root, "docs/semantics.md"))
	if err != nil || string(have) != Page() {
		t.Errorf("docs/semantics.md is not what go generate ./api/internal/promises makes it: %v", err)
	}
}

// TestProofsExist: every test that is named is there.
func TestProofsExist(t *testing.T) {
	for _, p := range Elsewhere {
		files, err := filepath.Glob(filepath.Join(root, p.Package, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(b)
		}
		for _, name := range p.Tests {
			if !strings.Contains(all.String(), "func "+name+"(") {
				t.Errorf("%s: %s has no %s", p.ID, p.Package, name)
			}
		}
	}
}

// TestNamesAreUnique: no two promises have one test's name.
func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range All() {
		if name := p.ID + "_" + p.Name; seen[name] || p.Text == "" || p.Test == nil {
			t.Errorf("%s", name)
		} else {
			seen[name] = true
		}
	}
}
