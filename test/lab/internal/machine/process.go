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

	"github.com/forkvm/forkvm/internal/descriptors"
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
// which also reaps it. Until then, though it may have ended, it can be found by its process id.
func spawn(c *Config, agentPort int) (p *process, start uint64, err error) {
	log, err := os.Create(filepath.Join(c.Dir, qemuLogFile))
	if err != nil {
		return nil, 0, err
	}
	defer log.Close()
	cmd := exec.Command(c.QEMU, c.arguments(agentPort)...)
	cmd.Dir = c.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if !c.Detached {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := descriptors.Keep(); err != nil {
		return nil, 0, err
	}
	found := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started := false
		if err = cmd.Start(); err == nil {
			started = true
			if p, start, err = findProcess(cmd.Process.Pid); err != nil {
				cmd.Process.Kill() // or nobody would
			}
		}
		close(found)
		if started {
			cmd.Wait() // How it ended is in its log.
		}
	}()
	<-found
	return p, start, err
}

// findProcess finds a process that nobody reaps meanwhile, and when it started.
func findProcess(pid int) (p *process, start uint64, err error) {
	if p, err = openProcess(pid); err != nil {
		return nil, 0, err
	}
	st, err := stat(pid)
	if err != nil {
		p.close()
		return nil, 0, err
	}
	return p, st.start, nil
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
