package vmm

import "testing"

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
