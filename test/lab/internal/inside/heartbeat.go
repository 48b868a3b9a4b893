package inside

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// heartbeatPort is the second serial port, which the host keeps in a file.
const heartbeatPort = "/dev/ttyS1"

// interval between two heartbeats.
var interval = unix.Timespec{Sec: 1}

// startHeartbeat starts the heartbeat as a process of its own, so that it stands for the kernel and
// nothing else: whatever keeps this process busy does not keep that one from running.
func startHeartbeat() error {
	cmd := exec.Command("/proc/self/exe", heartbeatArg)
	cmd.Stderr = os.Stderr
	// One thread of Go code is enough, and the collector would never have anything to do.
	cmd.Env = []string{"GOMAXPROCS=1", "GOGC=off"}
	return cmd.Start()
}

// beat writes a byte an interval, ahead of every ordinary process, until writing fails.
func beat() error {
	runtime.LockOSThread()
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 50}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return fmt.Errorf("real-time priority: %w", err)
	}
	port, err := unix.Open(heartbeatPort, unix.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", heartbeatPort, err)
	}
	for {
		if _, err := unix.Write(port, []byte{'.'}); err != nil {
			return fmt.Errorf("write %s: %w", heartbeatPort, err)
		}
		// Sleeping in the kernel and on this thread, which alone has the priority.
		if err := unix.Nanosleep(&interval, nil); err != nil && err != unix.EINTR {
			return fmt.Errorf("sleep: %w", err)
		}
	}
}
