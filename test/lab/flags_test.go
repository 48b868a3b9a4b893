package main

import (
	"slices"
	"testing"
)

func TestPairs(t *testing.T) {
	for in, want := range map[string][2]string{
		"/a":     {"/a", "/a"},
		"/a:/b":  {"/a", "/b"},
		"/a/:/b": {"/a", "/b"},
	} {
		first, second, err := splitPair(in)
		if err != nil || first != want[0] || second != want[1] {
			t.Errorf("%q: %q, %q, %v; want %q", in, first, second, err, want)
		}
	}
	for _, in := range []string{"", ":", ":/b", "/a:/b:/c"} {
		if _, _, err := splitPair(in); err == nil {
			t.Errorf("%q is taken", in)
		}
	}
}

func TestForwards(t *testing.T) {
	for in, want := range map[string]forward{"80": {80, 80}, "8080:80": {8080, 80}, "65535:1": {65535, 1}} {
		if f, err := parseForward(in); err != nil || f != want {
			t.Errorf("%q: %v, %v; want %v", in, f, err, want)
		}
	}
	for _, in := range []string{"", "x", "0:1", "1:0", "65536:1", "1:2:3", "-1:1"} {
		if f, err := parseForward(in); err == nil {
			t.Errorf("%q is taken for %v", in, f)
		}
	}
}

func TestOutputsOfTests(t *testing.T) {
	got := testOutputs([]string{
		"-test.timeout=1m", "-test.coverprofile=c.out", "-test.testlogfile=/w/log", "--test.trace=t",
		"-test.outputdir=/o", "-test.run=cpuprofile", "-coverprofile=no", "coverprofile",
	}, "/p")
	if want := []string{"/o/c.out", "/w/log", "/o/t"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPassedEnv(t *testing.T) {
	got := passedEnv([]string{
		"FORKVM_A=1", "PATH=x", "GODEBUG=y", "FORKVM_LAB=force", "FORKVM_LAB_BOOTS=9", "FORKVM_REQUIRE_LAB=1", "HOME=/h",
	})
	if want := []string{"FORKVM_A=1", "GODEBUG=y"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
