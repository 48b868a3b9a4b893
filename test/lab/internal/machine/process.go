package machine

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userHz is the unit of CPU times in /proc, fixed at 100 a second on x86 (proc_pid_stat(5)).
const userHz = 100

// A process is a QEMU process, a child of ours or not.
type process struct {
	pid   int
	pidfd int
}

// spawn starts QEMU in its own session, so that a terminal's Ctrl-C reaches only us. Unless it is
// detached the kernel kills it when the thread that started it ends, hence the locked goroutine,
// which also reaps it.
func spawn(c *Config, agentPort int) (*process, error) {
	log, err := os.Create(filepath.Join(c.Dir, qemuLogFile))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.QEMU, c.arguments(agentPort)...)
	cmd.Dir = c.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if !c.Detached {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait() // How it ended is in its log.
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return openProcess(cmd.Process.Pid)
}

func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	return &process{pid: pid, pidfd: fd}, nil
}

// ended waits for at most a duration for the process to end.
func (p *process) ended(wait time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	for deadline := time.Now().Add(wait); ; {
		n, err := unix.Poll(fds, int(max(0, time.Until(deadline)).Milliseconds()))
		if err != unix.EINTR {
			return n > 0
		}
	}
}

func (p *process) kill() {
	// The only error is that it is gone already.
	unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
}

func (p *process) close() { unix.Close(p.pidfd) }

// A procStat is what /proc says about a process.
type procStat struct {
	// cpu is the processor time it has used.
	cpu time.Duration
	// start is when it started, in ticks since boot: together with the process id it is unique.
	start uint64
}

// stat reads /proc/PID/stat, see proc_pid_stat(5). The second field is a name in parentheses that
// may hold anything, so the fields are counted from its end.
func stat(pid int) (procStat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const third = 3 // fields[0] is the third field of the page
	field := func(number int) uint64 {
		if number-third >= len(fields) {
			return 0
		}
		v, _ := strconv.ParseUint(string(fields[number-third]), 10, 64)
		return v
	}
	utime, stime, start := field(14), field(15), field(22)
	return procStat{cpu: time.Duration(utime+stime) * time.Second / userHz, start: start}, nil
}
