package vmm

import "testing"

// TestMemoryUsage: a fresh child has written little, and shares what its parent
// has.
func TestMemoryUsage(t *testing.T) {
	parent := minimal.fork(t)
	children, err := parent.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	child := children[0]
	defer child.Close()
	u, err := child.MemoryUsage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if u.Size != child.cfg.Memory || u.Own <= 0 || u.Own > u.Size/4 || u.Shared < u.Own {
		t.Errorf("a fresh child of %d bytes: %+v", child.cfg.Memory, u)
	}
}

// TestStartEach: each child has the options that were meant for it, and what
// fails fails for itself.
func TestStartEach(t *testing.T) {
	parent := minimal.fork(t)
	image, err := parent.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	children, errs := image.StartEach(t.Context(), []StartOptions{{Hostname: "one"}, {Hostname: "not a host name\x00"}, {Hostname: "three"}})
	for k, want := range []string{"one", "", "three"} {
		if want == "" {
			if children[k] != nil || errs[k] == nil {
				t.Errorf("child %d: %v, %v; want an error", k, children[k], errs[k])
			}
			continue
		}
		if errs[k] != nil {
			t.Errorf("child %d: %v", k, errs[k])
			continue
		}
		defer children[k].Close()
		if got, err := children[k].Command("hostname").Output(); err != nil || string(got) != want+"\n" {
			t.Errorf("child %d is called %q, %v; want %s", k, got, err, want)
		}
	}
}
