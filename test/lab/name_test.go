package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestNameOfALab: labs are folders of the cache, and no other folders are.
func TestNameOfALab(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("FORKVM_CACHE", cache)
	for name, want := range map[string]string{"": "lab", "lab": "lab", "lab-python": "lab-python"} {
		t.Setenv(nameVariable, name)
		l, err := openLab()
		if err != nil || l.dir != filepath.Join(cache, want) {
			t.Errorf("%q: %v, %v", name, l, err)
		}
	}
	for _, name := range []string{"kernels", "lab-", "lab/../kernels", "../lab", "lab-A"} {
		t.Setenv(nameVariable, name)
		if l, err := openLab(); err == nil {
			t.Errorf("%q: %v", name, l)
		}
	}
	if made, err := os.ReadDir(cache); err != nil || len(made) != 2 {
		t.Errorf("folders: %v, %v", made, err)
	}
}
