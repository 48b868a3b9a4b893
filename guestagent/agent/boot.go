package agent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/proto"
)

const (
	// moduleList names the kernel modules to load, one absolute path a line,
	// in the order to load them.
	moduleList     = "/etc/forkvm/modules"
	cgroupMount    = "/sys/fs/cgroup"
	commandCgroups = cgroupMount + "/forkvm"
)

// mount is one file system of a guest.
type mount struct {
	fstype, dir string
	flags       uintptr
	data        string
	optional    bool // a kernel may lack it
}

var mounts = [...]mount{
	{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "", false},
	{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "", false},
	{"devtmpfs", "/dev", unix.MS_NOSUID, "mode=0755", false},
	{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "ptmxmode=0666,mode=0620,gid=5", false},
	{"tmpfs", "/dev/shm", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777", false},
	{"tmpfs", "/tmp", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777", false},
	{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755", false},
	{"cgroup2", cgroupMount, unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "nsdelegate", true},
}

// prepareSystem makes of a bare kernel a system in which commands can run. It
// returns where these are, and what went wrong: a guest that lacks something is
// better than none. One without the root file system that it is to have is not.
func prepareSystem(b *proto.Boot) (at place, warnings []string, err error) {
	warn := func(err error) {
		if err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	unix.Umask(0o022)
	for _, m := range mounts {
		warn(m.mount())
	}
	warn(openConsole())
	warn(linkDevices())
	b.Mounted = sinceBoot()
	for _, err := range loadModules(moduleList) {
		warn(err)
	}
	b.Modules = sinceBoot()
	cmdline, err := kernelCmdline()
	warn(err)
	at = inInitramfs
	if names := bootParameter(cmdline, "forkvm.root"); names != "" {
		if err := enterRoot(names); err != nil {
			return at, warnings, err
		}
		at = inRoot
		b.Root = sinceBoot()
	}
	warn(at.install())
	warn(loopbackUp())
	if name := bootParameter(cmdline, "forkvm.hostname"); name != "" {
		warn(ThisMachine.SetHostname(name))
	}
	warn(raiseFileLimit())
	warn(relaxTimers())
	_ = os.Setenv("PATH", at.path())
	return at, warnings, nil
}

func (m *mount) mount() error {
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		if m.optional {
			return nil // such as a mount point in sysfs that this kernel does not have
		}
		return err
	}
	err := unix.Mount(m.fstype, m.dir, m.fstype, m.flags, m.data)
	switch {
	case err == nil || errors.Is(err, unix.EBUSY): // the kernel may have mounted it itself
		return nil
	case m.optional && errors.Is(err, unix.ENODEV):
		return nil
	}
	return fmt.Errorf("mount %s on %s: %w", m.fstype, m.dir, err)
}

// openConsole gives PID 1 its console, if the kernel could not: an initramfs
// may lack the node, which devtmpfs has.
func openConsole() error {
	var st unix.Stat_t
	null := unix.Mkdev(1, 3) // what the Go runtime opens in place of a closed descriptor
	if unix.Fstat(2, &st) == nil && st.Rdev != null {
		return nil
	}
	fd, err := unix.Open("/dev/console", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("open console: %w", err)
	}
	for i := range 3 {
		if err := unix.Dup2(fd, i); err != nil {
			return fmt.Errorf("open console: %w", err)
		}
	}
	return unix.Close(fd)
}

// linkDevices makes the links in /dev that devtmpfs does not.
func linkDevices() error {
	var errs []error
	for _, l := range [...][2]string{
		{"/proc/self/fd", "/dev/fd"}, {"fd/0", "/dev/stdin"}, {"fd/1", "/dev/stdout"}, {"fd/2", "/dev/stderr"},
	} {
		if err := os.Symlink(l[0], l[1]); err != nil && !errors.Is(err, os.ErrExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// loadModules loads the kernel modules that the file list names.
func loadModules(list string) []error {
	f, err := os.Open(list)
	if errors.Is(err, os.ErrNotExist) {
		return nil // everything is built in
	}
	if err != nil {
		return []error{err}
	}
	defer f.Close()
	var errs []error
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		path := strings.TrimSpace(sc.Text())
		if path == "" || strings.HasPrefix(path, "#") {
			continue
		}
		if err := loadModule(path); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("load module %s: %w", path, err))
		}
	}
	if err := sc.Err(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// loadModule loads one module. Its bytes are the kernel's to read, and to
// decompress if need be (Linux 5.17, CONFIG_MODULE_DECOMPRESS). Package initrd
// packs plain ones; decompressors in this process would cost each command that
// it runs, being the same program, the time to set them up.
func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if filepath.Ext(path) != ".ko" {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	return unix.FinitModule(int(f.Fd()), "", flags)
}

// loopbackUp brings up lo, which gets its addresses by itself then.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil // a kernel without networking
	}
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}

// kernelCmdline returns the kernel's command line.
func kernelCmdline() (string, error) {
	f, err := os.Open("/proc/cmdline")
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 64<<10))
	return string(b), err
}

// bootParameter returns the last value of key on a kernel command line.
func bootParameter(cmdline, key string) string {
	value := ""
	for f := range strings.FieldsSeq(cmdline) {
		if f == "--" {
			break // the rest is init's own
		}
		if v, ok := strings.CutPrefix(f, key+"="); ok {
			value = strings.Trim(v, `"`)
		}
	}
	return value
}

// raiseFileLimit makes room for the descriptors of many commands at once, for
// this process and those it starts.
func raiseFileLimit() error {
	lim := unix.Rlimit{Cur: 65536, Max: 65536}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return fmt.Errorf("raise limit of open files: %w", err)
	}
	return nil
}
