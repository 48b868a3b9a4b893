package inside

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

type mount struct {
	fstype, dir string
	flags       uintptr
	data        string
}

const quiet = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV

// early are what loading modules and finding disks needs; enterRoot takes them along.
var early = []mount{
	{"proc", "/proc", quiet, ""},
	{"sysfs", "/sys", quiet, ""},
	{"devtmpfs", "/dev", unix.MS_NOSUID, "mode=755"},
}

var late = []mount{
	{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"},
	{"tmpfs", "/dev/shm", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	{"cgroup2", "/sys/fs/cgroup", quiet, ""},
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		// In sysfs the folder is there, and none can be made.
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fstype, m.dir, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.fstype, m.dir, err)
		}
	}
	return nil
}

func mountKernelFilesystems() error { return mountAll(early) }

// newRoot is where the root disk is mounted before it becomes the root.
const newRoot = "/newroot"

// enterRoot makes the root disk the root file system and mounts the rest in it. Unlike the
// initramfs a disk takes no memory, and behaves as the disk of an ordinary machine.
func enterRoot(cfg *Config) error {
	if err := mountDisk(cfg.RootSerial, newRoot); err != nil {
		return err
	}
	for _, m := range early {
		dir := filepath.Join(newRoot, m.dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.dir, dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", m.dir, err)
		}
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := mountAll(late); err != nil {
		return err
	}
	for _, m := range cfg.Mounts {
		if err := mountDisk(m.Serial, m.Dir); err != nil {
			return err
		}
		if m.Made {
			// The folder is to look as it does on the host.
			os.Remove(filepath.Join(m.Dir, "lost+found"))
		}
	}
	return furnish()
}

func mountDisk(serial, dir string) error {
	device, err := diskBySerial(serial)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(device, dir, "ext4", unix.MS_NOATIME, ""); err != nil {
		return fmt.Errorf("mount disk %q at %s: %w", serial, dir, err)
	}
	return nil
}

func diskBySerial(serial string) (string, error) {
	files, err := filepath.Glob("/sys/block/vd*/serial")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && strings.TrimSpace(string(b)) == serial {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(f))), nil
		}
	}
	return "", fmt.Errorf("no disk with serial number %q", serial)
}

// files are what programs expect of any Linux machine.
var files = map[string]string{
	"/etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"/etc/group":         "root:x:0:\ntty:x:5:\nkvm:x:106:\nnogroup:x:65534:\n",
	"/etc/hosts":         "127.0.0.1 localhost lab\n::1 localhost\n",
	"/etc/nsswitch.conf": "hosts: files dns\n",
	"/etc/resolv.conf":   "nameserver 10.0.2.3\n", // QEMU's user network
}

func furnish() error {
	for dir, mode := range map[string]os.FileMode{
		"/etc": 0o755, "/root": 0o700, "/bin": 0o755, "/sbin": 0o755, "/lib": 0o755, "/lib64": 0o755,
		"/usr/bin": 0o755, "/usr/sbin": 0o755, "/usr/lib": 0o755, "/var/tmp": 0o1777, "/tmp": 0o1777,
	} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return err
		}
	}
	// MkdirAll takes the umask into account and leaves out the sticky bit.
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		if err := unix.Chmod(dir, 0o1777); err != nil {
			return err
		}
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	for link, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "fd/0", "/dev/stdout": "fd/1", "/dev/stderr": "fd/2",
	} {
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
