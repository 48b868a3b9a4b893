package sandbox

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
)

// TestSharingOnLinux: sandboxes of one template, each made by itself, share what
// they have of it, also with those that come from a snapshot of another and with
// what was paused; those of different templates share no memory.
func TestSharingOnLinux(t *testing.T) {
	store := linuxTemplates(t)
	root := filepath.Join(t.TempDir(), "root.tar")
	if err := os.WriteFile(root, emptyRoot("other/"), 0o600); err != nil {
		t.Fatal(err)
	}
	source := "FROM " + root + "\n"
	if _, err := store.Build(t.Context(), template.Spec{Name: "other", Source: []byte(source)}, template.BuildOptions{}); err != nil {
		t.Fatal(err)
	}
	e, err := Open(t.Context(), t.TempDir(), Options{Templates: store.Store})
	if err != nil {
		t.Fatal(err)
	}
	team := e.Team("one")
	defer e.Close(t.Context(), CloseDestroys)
	create := func(r api.CreateRequest) string {
		t.Helper()
		return must[*api.Sandbox](t)(team.Create(t.Context(), r)).ID
	}
	a := create(api.CreateRequest{Template: workTemplate})
	b := create(api.CreateRequest{Template: workTemplate})
	stranger := create(api.CreateRequest{Template: "other"})
	snap := must[*api.Snapshot](t)(team.CreateSnapshot(t.Context(), a, api.SnapshotRequest{}))
	restored := create(api.CreateRequest{FromSnapshot: snap.ID})

	common := func(x, y string) (p api.SharingPair) {
		t.Helper()
		s := must[*api.Sharing](t)(team.Sharing(t.Context(), api.SharingQuery{}))
		for _, p := range s.Pairs {
			if p.SandboxIDs == [2]string{x, y} || p.SandboxIDs == [2]string{y, x} {
				return p
			}
		}
		return p
	}
	for name, pair := range map[string][2]string{"of one template": {a, b}, "of a snapshot": {b, restored}} {
		if p := common(pair[0], pair[1]); p.MemoryBytes < 16<<20 || p.DiskBytes == 0 {
			t.Errorf("two %s have in common %+v", name, p)
		}
	}
	must[*api.Sandbox](t)(team.Pause(t.Context(), a))
	if p := common(a, b); p.MemoryBytes != 0 {
		t.Errorf("with one that is paused: %+v", p)
	}
	must[*api.Sandbox](t)(team.Resume(t.Context(), a))
	if p := common(a, b); p.MemoryBytes < 16<<20 {
		t.Errorf("with one that was paused: %+v", p)
	}
	for _, id := range []string{a, b, restored} {
		if p := common(stranger, id); p.MemoryBytes != 0 || p.DiskBytes > 1<<20 { // as their disks began alike
			t.Errorf("strangers have in common %+v", p)
		}
	}
}
