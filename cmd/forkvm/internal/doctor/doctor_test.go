package doctor

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
)

func TestRunIsComplete(t *testing.T) {
	for _, device := range []string{"", filepath.Join(t.TempDir(), "none")} {
		names := map[string]bool{}
		for _, c := range Run(t.Context(), Options{KVM: device}) {
			if names[c.Name] {
				t.Errorf("%q is checked twice", c.Name)
			}
			names[c.Name] = true
			asks := c.Status == Warn || c.Status == Fail
			if asks && c.Fix == "" || !asks && c.Fix != "" || c.Detail == "" || c.Group == "" {
				t.Errorf("incomplete: %+v", c)
			}
		}
	}
}

func TestWorst(t *testing.T) {
	for _, test := range []struct {
		want Status
		in   []Status
	}{
		{Pass, nil},
		{Pass, []Status{Skip, Pass}},
		{Warn, []Status{Pass, Warn, Skip}},
		{Fail, []Status{Fail, Warn, Pass}},
	} {
		var checks []Check
		for _, s := range test.in {
			checks = append(checks, Check{Status: s})
		}
		if got := Worst(checks); got != test.want {
			t.Errorf("Worst(%v) = %v, want %v", test.in, got, test.want)
		}
	}
}

func TestParseRelease(t *testing.T) {
	for in, want := range map[string][2]int{
		"6.12.94+deb13-cloud-amd64": {6, 12},
		"5.17.0-rc3":                {5, 17},
		"7.0":                       {7, 0},
	} {
		major, minor, ok := parseRelease(in)
		if !ok || [2]int{major, minor} != want {
			t.Errorf("parseRelease(%q) = %d, %d, %v", in, major, minor, ok)
		}
	}
	for _, in := range []string{"", "linux", "6", "6.x"} {
		if _, _, ok := parseRelease(in); ok {
			t.Errorf("parseRelease(%q) took it", in)
		}
	}
}

// The device is whatever a user says, so what is no KVM must be told apart.
func TestWrongDevices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		file:                  "kvm device",
		filepath.Dir(file):    "kvm device",
		"/dev/null":           "kvm api",
		"/dev/none/such":      "kvm device",
		file + "/not/a/path/": "kvm device",
	} {
		checks, hardware := kvmChecks(path)
		if hardware {
			t.Errorf("%s: taken for hardware", path)
		}
		if !failed(checks, want) {
			t.Errorf("%s: %q did not fail: %+v", path, want, checks)
		}
	}
}

func failed(checks []Check, name string) bool {
	for _, c := range checks {
		if c.Name == name && c.Status == Fail {
			return true
		}
	}
	return false
}

func TestIgnoredSIGURG(t *testing.T) {
	signal.Ignore(syscall.SIGURG)
	c := preemption()
	wanted := make(chan os.Signal, 1)
	signal.Notify(wanted, syscall.SIGURG) // alone ends the ignoring
	signal.Stop(wanted)
	if c.Status != Fail {
		t.Errorf("with SIGURG ignored: %+v", c)
	}
	if c := preemption(); c.Status != Pass {
		t.Errorf("with SIGURG as usual: %+v", c)
	}
}

func TestFlavorDecides(t *testing.T) {
	checks, hardware := kvmChecks("/dev/kvm")
	for _, c := range checks {
		if c.Name == "kvm flavor" && hardware != (c.Status == Pass) {
			t.Errorf("hardware %v, but %+v", hardware, c)
		}
	}
}
