package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/forkvm/forkvm/test/lab/internal/image"
	"github.com/forkvm/forkvm/test/lab/internal/session"
)

// TestWhatAHostHasInPlace: on a host whose own KVM is used a program finds what
// it needs where the machine would have it, or it does not run.
func TestWhatAHostHasInPlace(t *testing.T) {
	full, empty := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	disk := func(dir string) job {
		return job{options: image.Options{Disks: []image.Mount{{Host: "/disk.ext4", Guest: dir}}}}
	}
	tree := func(dir string) job {
		return job{options: image.Options{Trees: []image.Mount{{Host: full, Guest: dir}}}}
	}
	file := func(path string) job { return job{files: []session.Copy{{Host: "/a", Guest: path}}} }
	for name, c := range map[string]struct {
		job job
		ok  bool
	}{
		"nothing":                     {job{}, true},
		"file":                        {file("/a"), true},
		"file elsewhere":              {file("/b"), false},
		"tree":                        {tree(full), true},
		"tree elsewhere":              {tree(empty), false},
		"disk whose folder is there":  {disk(full), true},
		"disk whose folder is empty":  {disk(empty), false},
		"disk whose folder is absent": {disk(filepath.Join(empty, "none")), false},
	} {
		if err := c.job.checkDirect(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
