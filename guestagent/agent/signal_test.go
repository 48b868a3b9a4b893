package agent_test

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
)

// TestSignalReachesJobs checks that a signal reaches all of a command's session,
// also what has a process group of its own.
func TestSignalReachesJobs(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) { signalReachesJobs(t, sig) })
	}
}

func signalReachesJobs(t *testing.T, sig syscall.Signal) {
	c := serve(t, agent.Options{})
	pids := filepath.Join(t.TempDir(), "pids")
	id := spawn(t, c, nil, "set -m; sleep 1000 & echo $! >"+pids+"; echo ready; wait")
	ready := &firstWrite{seen: make(chan struct{})}
	ended := make(chan error, 1)
	ctx := within(t, 20*time.Second)
	go func() { ended <- c.Attach(ctx, id, client.Attachment{Stdout: ready}) }()
	<-ready.seen
	if err := c.SignalProcess(ctx, id, sig); err != nil {
		t.Fatal(err)
	}
	var exit *client.ExitError
	if err := <-ended; !errors.As(err, &exit) || exit.Signal != sig {
		t.Errorf("Attach: %v", err)
	}
	b, err := c.FS().ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	awaitGone(t, strings.TrimSpace(string(b)))
}
