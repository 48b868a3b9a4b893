package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/agent/applet"
	"github.com/forkvm/forkvm/guestagent/proto"
)

// initPath is where the initramfs of a guest has the program.
const initPath = "/init"

// Main is the first thing a program calls that boots guests with itself as
// their /init. There it never returns: as PID 1 it is the agent, and under the
// name of one of the guest's commands it is that command. Anywhere else it
// returns at once and touches nothing.
func Main() {
	if isInit() {
		boot()
	}
	if isSpare() {
		os.Exit(runSpare())
	}
	if run := isApplet(); run != nil {
		os.Exit(run())
	}
}

// isInit reports whether this is the first process of a guest. A container's
// first process may be called /init as well, but has /proc mounted.
func isInit() bool {
	if os.Getpid() != 1 || os.Args[0] != initPath {
		return false
	}
	_, err := os.Lstat("/proc/self")
	return errors.Is(err, os.ErrNotExist)
}

// isApplet returns the command as which this process was started, if it was
// started as one of those that link to this program.
func isApplet() func() int {
	run := applet.Find(filepath.Base(os.Args[0]))
	if run == nil {
		return nil
	}
	if !isInitProgram() {
		return nil
	}
	return func() int {
		restoreSlack()
		return run(os.Args)
	}
}

// isInitProgram reports whether this process runs the program of the guest's
// first process.
func isInitProgram() bool {
	exe, err := os.Readlink("/proc/self/exe")
	return err == nil && (exe == inInitramfs.program || exe == inRoot.program)
}

// boot is the life of PID 1. It does not return.
func boot() {
	defer stopOnPanic()
	var b proto.Boot
	b.Start = sinceBoot()
	// Few threads: a fork pays for each page that they touch.
	runtime.GOMAXPROCS(min(runtime.NumCPU(), 2))
	at, warnings, err := prepareSystem(&b)
	if err != nil {
		fail(err)
	}
	l, err := listenVsock(proto.AgentPort)
	if err != nil {
		fatal(fmt.Errorf("agent: listen: %w", err))
	}
	b.Listening = sinceBoot()
	for _, w := range warnings {
		console(w)
	}
	s := newServer(Options{
		Machine: ThisMachine, ReapAll: true, KeepOnReset: true,
		CgroupDir: commandCgroups, Path: at.path(), Boot: b, Warnings: warnings,
	})
	s.onPanic = stopOnPanic
	go s.obeySignals()
	go tell(proto.TypeReady, s.info())
	s.useSpares(at.program)
	fatal(s.serve(context.Background(), l))
}

// sinceBoot returns the time since the kernel started.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}

// tell tells the host that the agent takes connections, or why it never will. A
// host that does not listen does not want to know.
func tell(t proto.Type, v any) {
	defer stopOnPanic()
	c, err := dialVsock(proto.ReadyPort)
	if err != nil {
		console("no one to tell of the boot: " + err.Error())
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(handshakeTime))
	if err := proto.NewWriter(c).WriteValue(t, v); err != nil {
		console("cannot tell of the boot: " + err.Error())
		return
	}
	(&conn{Conn: c}).linger()
}

// fail ends the boot of a guest that would not be what it is to be.
func fail(err error) {
	e := &proto.Error{Code: proto.CodeBoot, Message: err.Error()}
	if errno, ok := unwrapErrno(err); ok {
		e.Errno = int(errno)
	}
	tell(proto.TypeError, e)
	fatal(err)
}

// obeySignals does what init is asked by signals. None may kill it: the kernel
// would panic.
func (s *server) obeySignals() {
	defer stopOnPanic()
	ch := make(chan os.Signal, 8)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPWR, syscall.SIGPIPE)
	for sig := range ch {
		switch sig {
		case syscall.SIGINT: // ctrl-alt-del
			_ = ThisMachine.Stop(true)
		case syscall.SIGTERM, syscall.SIGPWR, syscall.SIGUSR2:
			_ = ThisMachine.Stop(false)
		}
	}
}

// console prints one line. Serial consoles are slow: it is for what matters.
func console(line string) { fmt.Fprintln(os.Stderr, "forkvm:", line) }

// fatal says why the guest cannot go on, and powers it off.
func fatal(err error) {
	console(err.Error())
	_ = ThisMachine.Stop(false)
	os.Exit(1)
}

// stopOnPanic is deferred by PID 1's goroutines: a panic of PID 1 would become
// one of the kernel, which tells less.
func stopOnPanic() {
	if r := recover(); r != nil {
		fatal(fmt.Errorf("agent: panic: %v\n%s", r, debug.Stack()))
	}
}
