package agent

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSlackOfCommands checks that what PID 1 starts does not inherit PID 1's lazy
// timers, but those that are asked for.
func TestSlackOfCommands(t *testing.T) {
	if err := relaxTimers(); err != nil {
		t.Fatal(err)
	}
	if own, err := os.ReadFile("/proc/self/timerslack_ns"); err != nil || string(own) != "10000000\n" {
		t.Errorf("this process: %q, %v", own, err)
	}
	pid1, other := &server{opts: Options{ReapAll: true}}, &server{}
	for _, tc := range []struct {
		name  string
		slack uintptr
		want  string
	}{
		{"a program", pid1.slack(false), "50000"},
		{"a command of its own", pid1.slack(true), "10000000"},
		{"a program of an ordinary process", other.slack(false), "10000000"}, // as that process
	} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		r := newReaper(false)
		_, exited, err := r.start("/bin/cat", []string{"cat", "/proc/self/timerslack_ns"}, &syscall.ProcAttr{
			Files: []uintptr{0, out.Fd(), 2}, Sys: &syscall.SysProcAttr{},
		}, tc.slack)
		if err != nil {
			t.Fatal(err)
		}
		ws := <-exited
		if got, err := os.ReadFile(out.Name()); ws != 0 || err != nil || strings.TrimSpace(string(got)) != tc.want {
			t.Errorf("%s: %q, %v, status %v, want %s", tc.name, got, err, ws, tc.want)
		}
	}
}
