package vmm

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkvm/forkvm/kvm/probe/probetest"
	"github.com/forkvm/forkvm/snapshot"
)

// killedWriter in the environment makes TestScenarioB11KilledInTheMiddleOfWrites
// the process that is killed: the directory of the store.
const killedWriter = "FORKVM_TEST_KILLED_WRITER"

// TestScenarioB11KilledInTheMiddleOfWrites kills a process whose guest writes
// records to its disk, in the middle of snapshots as well. Whatever the store
// has then starts, has every record that was on disk when it was taken, and a
// whole file system.
func TestScenarioB11KilledInTheMiddleOfWrites(t *testing.T) {
	if dir := os.Getenv(killedWriter); dir != "" {
		writeUntilKilled(t, dir)
		return
	}
	probetest.NeedLinux(t)
	dir := filepath.Join(t.TempDir(), "store")
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), killedWriter+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	had := map[string]int64{} // records on disk before each snapshot
	lines := bufio.NewScanner(out)
	for len(had) < 3 && lines.Scan() {
		var id string
		var n int64
		if _, err := fmt.Sscanf(lines.Text(), "saved %s %d", &id, &n); err == nil {
			had[id] = n
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(out)
	_ = cmd.Wait()
	if len(had) < 3 {
		t.Fatalf("the writer ended by itself: %s", rest)
	}
	store, err := snapshot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	infos, err := store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(infos) < len(had) {
		t.Errorf("%d snapshots, %d had been made", len(infos), len(had))
	}
	for _, info := range infos {
		vm, err := Restore(t.Context(), store, info.ID, StartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		checkLog(t, vm, had[info.ID])
		e2fsck(t, vm, 0)
		closeVM(t, vm)
	}
}

// writeUntilKilled takes snapshots of a guest that writes records, and says of
// each how many were on disk before.
func writeUntilKilled(t *testing.T, dir string) {
	store, err := snapshot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	vm := mounted(t)
	said := startLog(t, vm)
	for {
		before := said.next()
		info, err := vm.Snapshot(t.Context(), store, SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("saved", info.ID, before)
	}
}

// logged follows what a guest says of its log.
type logged struct {
	lines chan int64
	last  int64
}

// startLog has a guest append records to a file, see helperLog.
func startLog(t *testing.T, vm *VM) *logged {
	t.Helper()
	cmd := vm.CommandContext(t.Context(), helperPath, "log", "/mnt/log")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l := &logged{lines: make(chan int64, 1<<16)}
	go func() {
		defer close(l.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			var n int64
			if _, err := fmt.Sscan(strings.TrimSpace(s.Text()), &n); err == nil {
				l.lines <- n + 1
			}
		}
	}()
	return l
}

// next waits for one record more, and returns how many are on disk.
func (l *logged) next() int64 {
	l.last = <-l.lines
	for {
		select {
		case n, ok := <-l.lines:
			if !ok {
				return l.last
			}
			l.last = n
		default:
			return l.last
		}
	}
}
