package agent_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/agent/applet"
)

// asCommand is a variable that makes this program, under the name of one of the
// guest's commands, that command.
const asCommand = "FORKVM_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	agent.Main() // on a host it must return at once, whatever it is called
	if os.Args[0] == agent.SpareName {
		os.Exit(agent.RunSpare())
	}
	if run := applet.Find(filepath.Base(os.Args[0])); run != nil && os.Getenv(asCommand) != "" {
		os.Exit(run(os.Args))
	}
	os.Exit(m.Run())
}

// TestMainOnHost starts this program under names that mean something in a
// guest, and checks that they mean nothing here.
func TestMainOnHost(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/init", "sh", "/bin/echo", "poweroff"} {
		cmd := exec.Command(self)
		cmd.Args = []string{name, "-test.run=^TestNoSuchTest$"}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "no tests to run") {
			t.Errorf("as %s: %q, %v", name, out, err)
		}
	}
}

// TestReapAll checks the reaper of PID 1 in a process that, like PID 1, gets
// the orphans: it collects them, and mixes up no status of a command.
func TestReapAll(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	c := serve(t, agent.Options{ReapAll: true})
	ctx := within(t, 60*time.Second)
	var wg sync.WaitGroup
	orphans := make([]string, 50)
	for i := range orphans {
		wg.Go(func() {
			out, err := c.CommandContext(ctx, "sh", "-c", fmt.Sprintf("sleep 0.2 >/dev/null 2>&1 & echo $!; exit %d", i)).Output()
			if want := "exit status " + strconv.Itoa(i); i > 0 && (err == nil || err.Error() != want) || i == 0 && err != nil {
				t.Errorf("command %d: %v", i, err)
			}
			orphans[i] = strings.TrimSpace(string(out))
		})
	}
	wg.Wait()
	deadline := time.Now().Add(10 * time.Second)
	for _, pid := range orphans {
		for exists("/proc/" + pid) {
			if time.Now().After(deadline) {
				t.Fatalf("orphan %s was not collected", pid)
			}
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
