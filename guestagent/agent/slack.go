package agent

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// How late a timer of a thread may be, in nanoseconds (PR_SET_TIMERSLACK of
// prctl(2)).
const (
	commandSlack = 50_000     // what Linux gives every process
	agentSlack   = 10_000_000 // see relaxTimers
)

// relaxTimers lets the timers of this process be some milliseconds late, so
// that they wait for another interrupt. It is for the monitor thread of the Go
// runtime: whenever the agent wakes, that looks after it every 20 µs for a
// millisecond before it takes longer rests, and a machine of one CPU is
// interrupted for each look. What the runtime gains by being so quick, an agent
// that mostly waits does not need. Threads inherit it.
func relaxTimers() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("relax timers: %w", err)
	}
	for _, t := range threads {
		// A thread is found there by its number, though no list shows it.
		file := "/proc/" + t.Name() + "/timerslack_ns"
		if err := os.WriteFile(file, strconv.AppendInt(nil, agentSlack, 10), 0); err != nil {
			return fmt.Errorf("relax timers: %w", err)
		}
	}
	return nil
}

// withCommandSlack calls f, which starts a process, on a thread whose timers
// are as exact as a process expects of those that it inherits.
func withCommandSlack(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, commandSlack, 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	return f()
}
