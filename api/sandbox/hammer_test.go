package sandbox

import (
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/vmm"
)

var (
	hammerFor      = flag.Duration("hammer", 2*time.Second, "how long TestHammer goes on")
	hammerLinuxFor = flag.Duration("hammer-linux", 10*time.Second, "how long TestHammerOnLinux goes on")
)

// TestHammer does everything to a few sandboxes at once, and looks whether what
// always holds does.
func TestHammer(t *testing.T) {
	r := newRig(t, hammerLimits)
	ctx := t.Context()
	hammer(t, r.Team, *hammerFor)
	running, paused := atRest(t, r.Team)
	page := must[*api.SandboxPage](t)(r.List(ctx, api.SandboxQuery{}))
	alive, kept := r.w.left()
	snaps := must[*api.SnapshotPage](t)(r.Snapshots(ctx, api.SnapshotQuery{}))
	if alive != running || r.memory != int64(running)*64<<20 || kept != paused+len(snaps.Snapshots) {
		t.Errorf("%d run, %d machines, %d MiB reserved; %d sandboxes, %d snapshots, %d stored",
			running, alive, r.memory>>20, len(page.Sandboxes), len(snaps.Snapshots), kept)
	}
	r.clear(t, r.Team)
	if alive, kept := r.w.left(); alive+kept != 0 || r.memory != 0 {
		t.Errorf("%d machines and %d stored are left, %d bytes reserved", alive, kept, r.memory)
	}
}

// TestHammerOnLinux is TestHammer with real machines.
func TestHammerOnLinux(t *testing.T) {
	limits := hammerLimits
	limits.Memory = 5 * 256 << 20
	e := linuxEngine(t, Options{Limits: limits})
	team := e.Team("one")
	before := openFiles(t)
	hammer(t, team, *hammerLinuxFor)
	running, _ := atRest(t, team)
	if e.memory != int64(running)*256<<20 {
		t.Errorf("%d run, %d MiB are reserved", running, e.memory>>20)
	}
	e.clear(t, team)
	stored, err := e.machines.stored(t.Context(), e.label(""))
	if err != nil || len(stored) > 0 || e.memory != 0 {
		t.Errorf("left: %v stored, %d bytes reserved, %v", stored, e.memory, err)
	}
	if err := vmm.WaitFreed(t.Context()); err != nil {
		t.Error(err)
	}
	// Machines made ahead for the next one stay.
	if after := openFiles(t); after > before+spareFiles {
		t.Errorf("%d files were open, and now %d", before, after)
	}
}

// spareFiles is how many files what is made ahead for the next machines has open.
const spareFiles = 32

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

var hammerLimits = Limits{Memory: 12 * 64 << 20, SandboxesPerTeam: 20, SnapshotsPerTeam: 6, SnapshotsPerSandbox: 3, SnapshotsInFlight: 2}

// hammer does this and that from 32 goroutines. Whatever is said to be gone is.
func hammer(t *testing.T, team *Team, d time.Duration) {
	t.Helper()
	var mu sync.Mutex
	gone, did := map[string]bool{}, 0
	var wg sync.WaitGroup
	deadline := time.Now().Add(d)
	for k := range 32 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(k), 1))
			for time.Now().Before(deadline) && !t.Failed() {
				id := hammerOnce(t, team, rnd)
				mu.Lock()
				did++
				if id != "" {
					gone[id] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for id := range gone {
		_, err := team.Get(t.Context(), id)
		_, err2 := team.Snapshot(t.Context(), id)
		if !errors.Is(err, api.NotFound) || !errors.Is(err2, api.NotFound) {
			t.Errorf("%s was deleted, and is there: %v, %v", id, err, err2)
		}
	}
	t.Logf("%d calls, %d of them destroyed or deleted something", did, len(gone))
}

// atRest counts the sandboxes that run and those that are paused when nobody
// does anything, and checks that they are nothing else.
func atRest(t *testing.T, team *Team) (running, paused int) {
	t.Helper()
	page := must[*api.SandboxPage](t)(team.List(t.Context(), api.SandboxQuery{}))
	for _, s := range page.Sandboxes {
		switch s.State {
		case api.Running:
			running++
		case api.Paused:
			paused++
		default:
			t.Errorf("%s is %s, %s", s.ID, s.State, s.Reason)
		}
	}
	team.mu.Lock()
	defer team.mu.Unlock()
	if len(team.inFlight)+len(team.reserved) != 0 {
		t.Errorf("snapshots still count as being taken: %v %v", team.inFlight, team.reserved)
	}
	return running, paused
}

// hammerOnce does one thing, and returns the id of what is gone now.
func hammerOnce(t *testing.T, r *Team, rnd *rand.Rand) (gone string) {
	ctx := t.Context()
	page, err := r.List(ctx, api.SandboxQuery{})
	if err != nil {
		t.Error(err)
		return ""
	}
	r.mu.Lock()
	if r.memory > r.limits.Memory || len(r.boxes) > r.limits.SandboxesPerTeam || len(r.snaps) > r.limits.SnapshotsPerTeam {
		t.Errorf("%d MiB, %d sandboxes, %d snapshots: past a limit", r.memory>>20, len(r.boxes), len(r.snaps))
	}
	r.mu.Unlock()
	if len(page.Sandboxes) == 0 || rnd.IntN(6) == 0 {
		_, err = r.Create(ctx, api.CreateRequest{})
		check(t, "create", err)
		return ""
	}
	id := page.Sandboxes[rnd.IntN(len(page.Sandboxes))].ID
	switch rnd.IntN(10) {
	case 0:
		_, err = r.Pause(ctx, id)
	case 1:
		_, err = r.Resume(ctx, id)
	case 2:
		_, err = r.Fork(ctx, id, api.ForkRequest{Count: 1 + rnd.IntN(2)})
	case 3:
		_, err = r.CreateSnapshot(ctx, id, api.SnapshotRequest{})
	case 4:
		if err = r.Destroy(ctx, id); err == nil {
			gone = id
		}
	case 5:
		var snaps *api.SnapshotPage
		if snaps, err = r.Snapshots(ctx, api.SnapshotQuery{}); err == nil && len(snaps.Snapshots) > 0 {
			s := snaps.Snapshots[rnd.IntN(len(snaps.Snapshots))].ID
			if err = r.DeleteSnapshot(ctx, s); err == nil {
				gone = s
			}
		}
	case 6:
		var snaps *api.SnapshotPage
		if snaps, err = r.Snapshots(ctx, api.SnapshotQuery{}); err == nil && len(snaps.Snapshots) > 0 {
			_, err = r.Create(ctx, api.CreateRequest{FromSnapshot: snaps.Snapshots[rnd.IntN(len(snaps.Snapshots))].ID})
		}
	case 7:
		_, err = r.Update(ctx, id, api.Patch{Metadata: map[string]string{"k": "v"}})
	case 8:
		var s *api.Sandbox
		if s, err = r.Get(ctx, id); err == nil {
			_, err = r.Processes(ctx, s.Access())
		}
	case 9:
		if _, err = r.Sharing(ctx, api.SharingQuery{}); err == nil {
			_, err = r.Stats(ctx, id)
		}
	}
	check(t, "hammer", err)
	return gone
}

// check fails for what nobody may ever be answered.
func check(t *testing.T, what string, err error) {
	if err == nil {
		return
	}
	for _, fine := range []api.Code{
		api.NotFound, api.Gone, api.Conflict, api.OutOfCapacity, api.TooManySandboxes, api.TooManySnapshots, api.TooManySnapshotsInFlight,
		api.Unauthorized, // the token may be that of before a resume
	} {
		if errors.Is(err, fine) {
			return
		}
	}
	t.Errorf("%s: %v", what, err)
}
