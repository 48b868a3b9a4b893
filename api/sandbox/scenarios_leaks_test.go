package sandbox

import (
	"context"
	"flag"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/vmm"
)

// scenarioFull has scenarios take as long as they ask for, rather than seconds.
var scenarioFull = flag.Bool("scenario.full", false, "run scenarios of many rounds, much data or long waits in full")

// holdings is what this process has of what a kernel gives.
func holdings(t testing.TB) map[string]int {
	t.Helper()
	runtime.GC()
	h := map[string]int{"goroutines": runtime.NumGoroutine()}
	for _, kind := range []string{"fd", "task"} {
		list, err := os.ReadDir("/proc/self/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		h[kind] = len(list)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	h["maps"] = strings.Count(string(maps), "\n")
	return h
}

// sameHoldings waits until there is no more than before of anything, but for
// what the Go runtime may take and keep: some threads, with a few mappings each.
func sameHoldings(t *testing.T, before map[string]int) {
	t.Helper()
	slack := map[string]int{"fd": 4, "goroutines": 4, "task": 16, "maps": 64}
	var after map[string]int
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		after = holdings(t)
		same := true
		for kind, n := range slack {
			same = same && after[kind] <= before[kind]+n
		}
		if same {
			t.Logf("before %v, after %v", before, after)
			return
		}
	}
	t.Errorf("before %v, after %v", before, after)
}

// liveAndDie is the life of a sandbox and of a child, with all that can be done to
// it if everything is.
func liveAndDie(t *testing.T, team *Team, template string, everything bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	b := must[*api.Sandbox](t)(team.Create(ctx, api.CreateRequest{Template: template}))
	if everything {
		must[*api.ProcessList](t)(team.Processes(ctx, b.Access()))
		s := must[*api.Snapshot](t)(team.CreateSnapshot(ctx, b.ID, api.SnapshotRequest{}))
		must[*api.Sandbox](t)(team.Pause(ctx, b.ID))
		must[*api.Sandbox](t)(team.Resume(ctx, b.ID))
		if err := team.DeleteSnapshot(ctx, s.ID); err != nil {
			t.Fatal(err)
		}
	}
	f := must[*api.ForkResult](t)(team.Fork(ctx, b.ID, api.ForkRequest{}))
	for _, id := range []string{b.ID, f.Children[0].Sandbox.ID} {
		if err := team.Destroy(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
}

// TestScenarioB19NothingIsLeftOfAThousandSandboxes makes and destroys a thousand
// sandboxes, and a child of each.
func TestScenarioB19NothingIsLeftOfAThousandSandboxes(t *testing.T) {
	r := newRig(t, Limits{})
	r.db.bolt.NoSync = true // how durable they are is another question
	for range 20 {
		liveAndDie(t, r.Team, "", true)
	}
	r.w.agents.Wait()
	before := holdings(t)
	for k := range 1000 {
		liveAndDie(t, r.Team, "", k%10 == 0)
	}
	r.w.agents.Wait()
	sameHoldings(t, before)
	r.holds(t)
}

// TestScenarioB19NothingIsLeftOfRealSandboxes does it with real machines: some, and
// a thousand in full.
func TestScenarioB19NothingIsLeftOfRealSandboxes(t *testing.T) {
	e := linuxEngine(t, Options{})
	team := e.Team("one")
	freed := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := vmm.WaitFreed(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // also for the machines that are made ahead
		liveAndDie(t, team, workTemplate, true)
	}
	freed()
	before := holdings(t)
	rounds, begin := 10, time.Now()
	if *scenarioFull {
		rounds = 1000
	}
	for k := range rounds {
		liveAndDie(t, team, workTemplate, k%10 == 0)
	}
	t.Logf("%d rounds in %v", rounds, time.Since(begin))
	freed()
	sameHoldings(t, before)
	if left, err := e.machines.stored(t.Context(), e.label("")); err != nil || len(left) > 0 {
		t.Errorf("stored, and of no record: %v, %v", left, err)
	}
	if left, err := os.ReadDir(e.dir + "/scratch"); err != nil || len(left) > 0 {
		t.Errorf("files are left over: %v, %v", left, err)
	}
}
