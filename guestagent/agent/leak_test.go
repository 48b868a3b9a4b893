package agent_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
)

// TestNothingLeaks does everything many times, with client and agent in this
// process, and counts descriptors and goroutines before and after.
func TestNothingLeaks(t *testing.T) {
	c := serve(t, agent.Options{})
	dir := t.TempDir()
	round := func() {
		ctx, cancel := contextWithCancel(t)
		defer cancel()
		cmd := c.CommandContext(ctx, "cat")
		cmd.Stdin = strings.NewReader("x")
		_, err := cmd.Output()
		tty := c.CommandContext(ctx, "true")
		tty.TTY = &client.WinSize{}
		late := c.CommandContext(ctx, "sleep", "1000")
		late.Timeout = time.Millisecond
		bg := c.CommandContext(ctx, "echo", "x")
		bg.Detach = true
		f := c.FS().WithContext(ctx)
		_, openErr := f.Open("/none")
		file, err2 := f.Create(filepath.Join(dir, "f"))
		if err2 == nil {
			err2 = file.Close()
		}
		events, err3 := f.Watch(ctx, dir)
		err = errors.Join(err, tty.Run(), bg.Run(), err2, err3, f.TarOut(ctx, dir, io.Discard))
		if lateErr := late.Run(); !errors.Is(lateErr, client.ErrTimeout) || openErr == nil || err != nil {
			t.Fatal(lateErr, openErr, err)
		}
		gone := c.CommandContext(ctx, "sleep", "1000")
		if err := gone.Start(); err != nil {
			t.Fatal(err)
		}
		cancel()
		_ = gone.Wait()
		for range events {
		}
	}
	round()
	settle := func() (fds, goroutines int) {
		awaitIdle(t, c)
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries), runtime.NumGoroutine()
	}
	fds, goroutines := settle()
	const rounds = 20
	for range rounds {
		round()
	}
	// The agent keeps some goroutines for what comes, so many as were ever busy
	// at the same time.
	const most = agent.MaxIdle
	if most >= rounds {
		t.Fatal("too few rounds: one goroutine of each would not show")
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		f, g := settle()
		if f <= fds && g <= goroutines+most {
			return
		}
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<16)
			t.Fatalf("descriptors %d, then %d; goroutines %d, then %d:\n%s", fds, f, goroutines, g, buf[:runtime.Stack(buf, true)])
		}
	}
}

// awaitIdle waits until no command runs.
func awaitIdle(t *testing.T, c *client.Client) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		ps, err := c.Processes(within(t, 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		running := 0
		for _, p := range ps {
			if !p.Exited {
				running++
			}
		}
		if running == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("running: %+v", ps)
		}
	}
}
