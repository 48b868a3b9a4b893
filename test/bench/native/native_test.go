package native

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/forkvm/forkvm/kvm/kvmtest"
	"github.com/forkvm/forkvm/test/bench/floor/bare"
	"github.com/forkvm/forkvm/test/bench/result"
)

// TestMain is the floor's server where a test asks for one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "floor" {
		if err := bare.Serve(os.Stdin, os.Stdout); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// measure runs a group once and returns what was measured.
func measure(t *testing.T, group string) []result.Line {
	t.Helper()
	kvmtest.OpenOrSkip(t)
	var progress bytes.Buffer
	r := result.NewRecorder()
	o := Options{Groups: []string{group}, Rounds: 1, Most: 100, Floor: []string{os.Args[0], "floor"}, Progress: &progress}
	if err := Run(t.Context(), o, r); err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	lines := r.Lines(result.Host{KVM: "some", Where: result.Native})
	for _, l := range lines {
		t.Logf("%+v", l)
		if l.Samples < 1 || l.Unit == result.Microseconds && l.P50 <= 0 {
			t.Errorf("nothing measured: %+v", l)
		}
	}
	return lines
}

// expect fails unless there is a line of each metric for each scenario.
func expect(t *testing.T, lines []result.Line, scenarios, metrics []string) {
	t.Helper()
	for _, s := range scenarios {
		for _, m := range metrics {
			if !slices.ContainsFunc(lines, func(l result.Line) bool { return l.Scenario == s && l.Metric == m }) {
				t.Errorf("no %s of %s", m, s)
			}
		}
	}
}

func TestForks(t *testing.T) {
	expect(t, measure(t, "fork"), []string{floorPooled, floorCold, forkPooled, forkCold},
		[]string{result.Pause, result.StateReady, result.FirstInstruction})
}

func TestDepth(t *testing.T) {
	lines := measure(t, "depth")
	depth := 0
	for _, l := range lines {
		depth = max(depth, l.Depth)
	}
	if depth != 16 {
		t.Errorf("generations down to %d", depth)
	}
}

func TestReset(t *testing.T) {
	expect(t, measure(t, "reset"), []string{floorReset, reset}, []string{result.StateReady, result.FirstInstruction})
}

func TestBoots(t *testing.T) {
	expect(t, measure(t, "boot"), []string{coldBoot}, []string{result.StateReady, result.FirstInstruction})
}

func TestChildren(t *testing.T) {
	expect(t, measure(t, "children"), []string{floorPooled, forkPooled}, []string{result.TimePerChild, result.BytesPerChild})
}

// TestPause leaves out what takes gigabytes of memory, as the others do.
func TestPause(t *testing.T) {
	expect(t, measure(t, "pause"), []string{floorPooled, forkPooled}, []string{result.Pause})
}

func TestRewriting(t *testing.T) {
	expect(t, measure(t, "rewriting"), []string{forkRewriting}, []string{result.Pause})
}

func TestDisk(t *testing.T) {
	lines := measure(t, "disk")
	expect(t, lines, []string{restoreDisk}, []string{result.StateReady, result.FirstInstruction})
	expect(t, lines, []string{snapshotDisk}, []string{result.Write})
}
