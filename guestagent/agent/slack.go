package agent

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/agent/applet"
)

// How late a timer of a thread may be, in nanoseconds (PR_SET_TIMERSLACK of
// prctl(2)).
const (
	commandSlack = 50_000     // what Linux gives every process
	lazySlack    = 10_000_000 // what this program's processes get, see relaxTimers
)

// relaxTimers lets the timers of this process be some milliseconds late, so
// that they wait for another interrupt. It is for the monitor thread of the Go
// runtime: whenever the agent wakes, that looks after it every 20 µs for a
// millisecond before it takes longer rests, and a machine of one CPU is
// interrupted for each look. What the runtime gains by being so quick, neither
// an agent needs that mostly waits nor a command that is over soon. Threads and
// processes inherit it.
func relaxTimers() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("relax timers: %w", err)
	}
	for _, t := range threads {
		// A thread is found there by its number, though no list shows it.
		file := "/proc/" + t.Name() + "/timerslack_ns"
		if err := os.WriteFile(file, strconv.AppendInt(nil, lazySlack, 10), 0); err != nil {
			return fmt.Errorf("relax timers: %w", err)
		}
	}
	return nil
}

// withSlack calls f, which starts a process, on a thread with slack for the
// process to inherit, and gives the thread its own back. 0 leaves it as it is.
func withSlack(slack uintptr, f func() error) error {
	if slack == 0 {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0)
	}
	if err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	// Or the next process that leaves it alone would inherit this one's.
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(own), 0, 0, 0)
	return f()
}

// restoreSlack makes the commands of package applet start programs with timers
// as exact as usual, if those of this process are not.
func restoreSlack() {
	if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err == nil && slack == lazySlack {
		applet.TimerSlack = commandSlack
	}
}
