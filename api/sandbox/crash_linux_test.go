package sandbox

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
)

var crashes = flag.Int("crashes", 3, "how often TestD15_CrashOfTheServer kills")

// crashDir in the environment makes the test binary a server to be killed: it
// has the directory of an engine and, in crashTemplates, that of its templates.
const (
	crashDir       = "FORKVM_TEST_CRASH_DIR"
	crashTemplates = "FORKVM_TEST_CRASH_TEMPLATES"
)

// crashServer does this and that until it is killed, and says what was done.
// Before it changes something, and before it knows whether it has, it says try.
func crashServer() error {
	store, err := template.Open(os.Getenv(crashTemplates), template.Options{})
	if err != nil {
		return err
	}
	e, err := Open(context.Background(), os.Getenv(crashDir), Options{Templates: store})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	say := func(what, id string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(what, id) // a write of its own, so that it is whole
	}
	var wg sync.WaitGroup
	for k := range 3 {
		wg.Go(func() {
			for {
				if err := liveUntilKilled(e.Team("one"), say); err != nil {
					say("error", fmt.Sprint(k, " ", err))
					return
				}
			}
		})
	}
	wg.Wait()
	return nil
}

func liveUntilKilled(t *Team, say func(what, id string)) error {
	ctx := context.Background()
	b, err := t.Create(ctx, api.CreateRequest{Template: workTemplate})
	if err != nil {
		return err
	}
	say("running", b.ID)
	for range 3 {
		s, err := t.CreateSnapshot(ctx, b.ID, api.SnapshotRequest{})
		if err != nil {
			return err
		}
		say("snapshot", s.ID)
		say("try", b.ID)
		if _, err := t.Pause(ctx, b.ID); err != nil {
			return err
		}
		say("paused", b.ID)
		if rand.IntN(3) == 0 {
			return nil // it stays paused
		}
		say("try", b.ID)
		if _, err := t.Resume(ctx, b.ID); err != nil {
			return err
		}
		say("running", b.ID)
		say("try", s.ID)
		if err := t.DeleteSnapshot(ctx, s.ID); err != nil {
			return err
		}
		say("gone", s.ID)
	}
	say("try", b.ID)
	if err := t.Destroy(ctx, b.ID); err != nil {
		return err
	}
	say("gone", b.ID)
	return nil
}

// TestD15_CrashOfTheServer kills a server at random moments. Each time what was
// paused and what was a snapshot is there again, what ran has failed, what was
// gone is gone, and nothing is left over.
func TestD15_CrashOfTheServer(t *testing.T) {
	store := linuxTemplates(t)
	dir := t.TempDir()
	for round := range *crashes {
		last := runAndKill(t, dir, store.dir, time.Duration(200+rand.IntN(3000))*time.Millisecond)
		e, err := Open(t.Context(), dir, Options{Templates: store.Store})
		if err != nil {
			t.Fatal(err)
		}
		checkRecovered(t, e, last)
		if err := e.Close(t.Context(), CloseDestroys); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
}

// runAndKill returns the last that the server said of each id.
func runAndKill(t *testing.T, dir, templates string, after time.Duration) map[string]string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDir+"="+dir, crashTemplates+"="+templates)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := map[string]string{}
	var kill *time.Timer
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if kill == nil { // from when it is at work
			kill = time.AfterFunc(after, func() { cmd.Process.Kill() })
		}
		what, id, _ := strings.Cut(lines.Text(), " ")
		if what == "error" {
			t.Errorf("the server: %s", id)
		}
		last[id] = what
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("the server ended by itself: %v", err)
	}
	return last
}

func checkRecovered(t *testing.T, e *Engine, last map[string]string) {
	t.Helper()
	team := e.Team("one")
	said := map[string]int{}
	var paused string
	for id, what := range last {
		said[what]++
		var state api.State
		var err error
		if strings.HasPrefix(id, api.SnapshotPrefix) {
			_, err = team.Snapshot(t.Context(), id)
		} else {
			var b *api.Sandbox
			if b, err = team.Get(t.Context(), id); err == nil {
				state = b.State
			}
		}
		switch {
		case what == "snapshot" && err != nil, what == "gone" && err == nil,
			what == "paused" && state != api.Paused, what == "running" && state != api.Failed:
			t.Errorf("%s was %s, and is %q, %v", id, what, state, err)
		}
		if what == "paused" {
			paused = id
		}
	}
	t.Logf("%v", said)
	if paused != "" { // and can be used
		if _, err := team.Resume(t.Context(), paused); err != nil {
			t.Error(err)
		}
	}
	e.clear(t, team)
	if left, err := e.machines.stored(t.Context(), e.label("")); err != nil || len(left) > 0 {
		t.Errorf("stored, and of no record: %v, %v", left, err)
	}
	if left, err := os.ReadDir(filepath.Join(e.dir, "scratch")); err != nil || len(left) > 0 {
		t.Errorf("files are left over: %v, %v", left, err)
	}
}

// clear destroys and deletes all that a team has.
func (e *Engine) clear(t *testing.T, team *Team) {
	t.Helper()
	for {
		boxes, err := team.List(t.Context(), api.SandboxQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range boxes.Sandboxes {
			if err := team.Destroy(t.Context(), b.ID); err != nil {
				t.Error(err)
			}
		}
		snaps, err := team.Snapshots(t.Context(), api.SnapshotQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range snaps.Snapshots {
			if err := team.DeleteSnapshot(t.Context(), s.ID); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() || len(boxes.Sandboxes)+len(snaps.Snapshots) == 0 {
			return
		}
	}
}
