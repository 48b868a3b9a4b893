package agent

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestCommandsKeepExactTimers checks that what PID 1 starts does not inherit
// PID 1's lazy timers.
func TestCommandsKeepExactTimers(t *testing.T) {
	if err := relaxTimers(); err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("/proc/self/timerslack_ns")
	if err != nil || string(own) != "10000000\n" {
		t.Errorf("this process: %q, %v", own, err)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	r := newReaper(true)
	pid, exited, err := r.start("/bin/cat", []string{"cat", "/proc/self/timerslack_ns"}, &syscall.ProcAttr{
		Files: []uintptr{0, out.Fd(), 2}, Sys: &syscall.SysProcAttr{},
	})
	if err != nil {
		t.Fatal(err)
	}
	for !r.collect(pid) {
	}
	got, err := os.ReadFile(out.Name())
	if ws := <-exited; ws != 0 || err != nil || strings.TrimSpace(string(got)) != "50000" {
		t.Errorf("command: %q, %v, status %v", got, err, ws)
	}
}
