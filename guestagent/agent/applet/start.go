package applet

import (
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// start starts a command on behalf of one of ours.
func start(cmd *exec.Cmd) error { return withTimerSlack(cmd.Start) }

// withTimerSlack calls f, which starts a program, on a thread with TimerSlack,
// for programs inherit it.
func withTimerSlack(f func() error) error {
	if TimerSlack == 0 {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, TimerSlack, 0, 0, 0); err != nil {
		return err
	}
	return f()
}
