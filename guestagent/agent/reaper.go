package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// reaper starts children and collects how they ended. It is the only caller
// of wait4 in this process: as PID 1 it must collect orphans with a wildcard,
// and a second waiter would race with that for the status of a child.
type reaper struct {
	all bool // collect every child of the process, not only started ones

	mu      sync.Mutex // held from fork until the child is registered
	waiting map[int]chan syscall.WaitStatus
}

func newReaper(all bool) *reaper {
	return &reaper{all: all, waiting: make(map[int]chan syscall.WaitStatus)}
}

// start starts a process as syscall.ForkExec does, with timers that may be late
// by slack, see withSlack. The channel gets the status once the process ended.
func (r *reaper) start(argv0 string, argv []string, attr *syscall.ProcAttr, slack uintptr) (pid int, _ <-chan syscall.WaitStatus, err error) {
	pidfd := -1
	if !r.all {
		attr.Sys.PidFD = &pidfd
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	err = withSlack(slack, func() error {
		pid, err = syscall.ForkExec(argv0, argv, attr)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	exited := make(chan syscall.WaitStatus, 1)
	r.waiting[pid] = exited
	if !r.all {
		go r.await(pid, pidfd)
	}
	return pid, exited, nil
}

// signal sends sig to the process group that pid leads. It fails with
// os.ErrProcessDone once pid was collected, whose number may then be another's.
func (r *reaper) signal(pid int, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.waiting[pid]; !ok {
		return os.ErrProcessDone
	}
	return syscall.Kill(-pid, sig)
}

// whileRunning calls f unless pid was collected, and keeps it from being
// collected meanwhile: its number stays its own.
func (r *reaper) whileRunning(pid int, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.waiting[pid]; ok {
		f()
	}
}

// run collects every child that ends until ctx is done.
func (r *reaper) run(ctx context.Context) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGCHLD)
	defer signal.Stop(ch)
	for {
		for r.collect(-1) {
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return
		}
	}
}

// await collects pid when its pidfd says that it ended. It needs no thread
// meanwhile: the runtime polls a pidfd like any other descriptor.
func (r *reaper) await(pid, pidfd int) {
	_ = syscall.SetNonblock(pidfd, true)
	f := os.NewFile(uintptr(pidfd), fmt.Sprintf("pidfd:%d", pid))
	defer f.Close()
	rc, err := f.SyscallConn()
	if err == nil {
		err = rc.Read(func(uintptr) bool { return r.collect(pid) })
	}
	if err != nil {
		panic(fmt.Sprintf("agent: poll pidfd: %v", err)) // a pidfd is always pollable
	}
}

// collect takes the status of one ended child, pid or any (-1), and hands it
// to whoever waits for it. It reports whether there was one.
func (r *reaper) collect(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ws syscall.WaitStatus
	var got int
	var err error
	for {
		got, err = syscall.Wait4(pid, &ws, syscall.WNOHANG, nil)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil || got <= 0 {
		return false
	}
	if ch, ok := r.waiting[got]; ok {
		delete(r.waiting, got)
		ch <- ws
	}
	return true
}
