package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/agent/applet"
)

// A jail is an agent that has nothing of this machine: what is asked of it may
// be anything. It is the first process of a user, mount, process, network, name
// and IPC name space of its own.
//
//   - Its files are one tmpfs of bounded size; what this machine has mounted is
//     unmounted there before the first command, and with it every way to a file of
//     this machine but a few devices such as /dev/null.
//   - Its root is a user of this machine who owns nothing, or the one who runs the
//     test; it has no capability but those that concern its own files and
//     processes, and can make no further user name space to get others.
//   - Processes, their memory, files and time are bounded by limits that it
//     cannot raise.
//   - It ends when the test does, however that ends: it reads from a pipe of it.

// jailStage is the environment variable that makes the test binary a jail.
const jailStage = "FORKVM_TEST_JAIL"

// The descriptors that a jail is born with.
const (
	jailListener = 3
	jailLife     = 4 // at its end when the test has ended
)

const (
	jailDisk   = 64 << 20
	jailFiles  = 8192
	jailHidden = "/tmp" // what its root is mounted on, before it is the root
	jailUser   = 65534  // its root, where the one of this machine runs the test
)

// jailLimits are those of each process, and that of processes, which are those
// of all together. Each command is about eight of the latter, being threads.
var jailLimits = map[int]uint64{
	unix.RLIMIT_NPROC: 256, unix.RLIMIT_NOFILE: 1024, unix.RLIMIT_FSIZE: jailDisk,
	unix.RLIMIT_CPU: 300, unix.RLIMIT_CORE: 0, unix.RLIMIT_MEMLOCK: 0, unix.RLIMIT_MSGQUEUE: 0,
}

// jailMemory is RLIMIT_DATA of a program without the race detector, which takes
// more than there is.
const jailMemory = 512 << 20

// jailCapabilities are what its root may.
var jailCapabilities = []int{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL}

// jailMain makes this process a jail if it is to be one.
func jailMain() {
	switch os.Getenv(jailStage) {
	case "build":
		fmt.Fprintln(os.Stderr, buildJail())
		os.Exit(1)
	case "serve":
		serveJail()
		os.Exit(1)
	}
}

// buildJail makes the jail around this process and becomes its agent. It returns
// if that fails.
func buildJail() error {
	runtime.LockOSThread() // that which executes the agent
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"mount its files", mountJail},
		{"devices", mountJailDevices},
		{"protect the program", protectJailProgram},
		{"leave this machine's files", leaveForJail},
		{"lock", lockJail},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("jail: %s: %w", step.what, err)
		}
	}
	return unix.Exec("/init", []string{"jail"}, []string{jailStage + "=serve"})
}

// mountJail mounts what is to be the root, with the program and its commands.
func mountJail() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer program.Close()
	st, err := program.Stat()
	if err != nil {
		return err
	}
	size := fmt.Sprintf("size=%d,nr_inodes=%d,mode=0755", jailDisk+st.Size(), jailFiles)
	if err := unix.Mount("tmpfs", jailHidden, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, size); err != nil {
		return err
	}
	for _, dir := range []string{"dev/pts", "etc", "proc", "root", "run", "tmp", "old"} {
		if err := os.MkdirAll(filepath.Join(jailHidden, dir), 0o755); err != nil {
			return err
		}
	}
	init, err := os.OpenFile(jailHidden+"/init", os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	defer init.Close()
	if _, err := io.Copy(init, program); err != nil {
		return err
	}
	if err := applet.Install("/init", jailHidden+"/bin"); err != nil {
		return err
	}
	return os.WriteFile(jailHidden+"/etc/passwd", []byte("root:x:0:0::/root:/bin/sh\n"), 0o644)
}

// mountJailDevices mounts what commands need of /dev and /proc. The latter comes
// before this machine's goes, which is what the kernel allows it for.
func mountJailDevices() error {
	for _, name := range []string{"null", "zero", "full", "random", "urandom"} {
		to := filepath.Join(jailHidden, "dev", name)
		if err := os.WriteFile(to, nil, 0o666); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+name, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := unix.Mount("devpts", jailHidden+"/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666"); err != nil {
		return fmt.Errorf("pts: %w", err)
	}
	if err := os.Symlink("pts/ptmx", jailHidden+"/dev/ptmx"); err != nil {
		return err
	}
	if err := unix.Mount("proc", jailHidden+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	return nil
}

// protectJailProgram has the commands outlive a command that removes all files.
func protectJailProgram() error {
	for _, name := range []string{"/init", "/bin"} {
		at := jailHidden + name
		if err := unix.Mount(at, at, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		flags := unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
		if err := unix.Mount("", at, "", uintptr(flags), ""); err != nil {
			return err
		}
	}
	return nil
}

func leaveForJail() error {
	if err := unix.PivotRoot(jailHidden, jailHidden+"/old"); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/old", unix.MNT_DETACH); err != nil {
		return err
	}
	return os.Remove("/old")
}

// lockJail takes from this thread, and so from what it executes, what could be
// used to get out.
func lockJail() error {
	if err := unix.Sethostname([]byte("jail")); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		return err
	}
	for what, most := range jailLimits {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("limit %d: %w", what, err)
		}
	}
	if !raceDetector {
		if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: jailMemory, Max: jailMemory}); err != nil {
			return err
		}
	}
	keep := map[int]bool{}
	for _, c := range jailCapabilities {
		keep[c] = true
	}
	for c := range 64 { // what the kernel does not know is refused with EINVAL
		if keep[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("capability %d: %w", c, err)
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// serveJail is the life of the first process of a jail.
func serveJail() {
	for _, fd := range []int{jailListener, jailLife} {
		unix.CloseOnExec(fd)
	}
	// A signal that nobody has asked for would end it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		_, _ = os.NewFile(jailLife, "life").Read(make([]byte, 1))
		os.Exit(0)
	}()
	l, err := net.FileListener(os.NewFile(jailListener, "listener"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "jail:", err)
		return
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, "jail:", err)
		return
	}
	for fd := range 3 { // by which the test is told that all went well
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			fmt.Fprintln(os.Stderr, "jail:", err)
			return
		}
	}
	_ = agent.Serve(context.Background(), l, agent.Options{
		ReapAll: true, Dir: "/", Path: "/bin", MaxProcs: 24, MaxConns: 64, KeepOutput: 64 << 10,
	})
}

// jail is the test's side.
type jail struct {
	socket string
	first  *os.Process
	life   *os.File // which it ends with
	ended  chan struct{}
}

// startJail starts one whose socket is in dir.
func startJail(dir string) (_ *jail, err error) {
	j := &jail{socket: filepath.Join(dir, "agent"), ended: make(chan struct{})}
	l, err := net.Listen("unix", j.socket)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	listener, err := l.(*net.UnixListener).File()
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	said, says, err := os.Pipe()
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer said.Close()
	cmd := jailCommand()
	cmd.ExtraFiles = []*os.File{jailListener - 3: listener, jailLife - 3: theirs}
	cmd.Stderr = says
	err = cmd.Start()
	says.Close()
	if err != nil {
		ours.Close()
		return nil, err
	}
	j.first, j.life = cmd.Process, ours
	go func() {
		_ = cmd.Wait()
		close(j.ended)
	}()
	_ = said.SetReadDeadline(time.Now().Add(30 * time.Second))
	why, err := io.ReadAll(io.LimitReader(said, 4096))
	if err == nil && len(why) > 0 {
		err = errors.New(string(why))
	}
	if err != nil {
		j.close()
		return nil, err
	}
	return j, nil
}

func jailCommand() *exec.Cmd {
	user, group := os.Getuid(), os.Getgid()
	if user == 0 {
		user, group = jailUser, jailUser
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"jail"}
	cmd.Env = []string{jailStage + "=build"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
			syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: user, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: group, Size: 1}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
		Setsid:      true,
	}
	return cmd
}

func (j *jail) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", j.socket)
}

// close ends the jail with all of its processes: its first is their kernel's
// reason to be.
func (j *jail) close() {
	j.life.Close()
	_ = j.first.Kill()
	<-j.ended
}
