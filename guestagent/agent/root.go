package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/agent/applet"
)

// place is where a guest has the agent's program and its commands, which are
// links to the program.
type place struct{ program, commands string }

// A guest whose root is its initramfs has the commands where programs are
// looked for. With a root of its own it has programs of its own there, which
// are not to be mistaken for the agent's: those are found after them.
var (
	inInitramfs = place{initPath, "/bin"}
	inRoot      = place{"/run/forkvm/init", "/run/forkvm/bin"}
)

// install makes the commands.
func (p place) install() error { return applet.Install(p.program, p.commands) }

// path is the PATH of commands that bring none.
func (p place) path() string {
	if p == inInitramfs {
		return defaultPath
	}
	return defaultPath + ":" + p.commands
}

// What the initramfs has while a root is made.
const (
	baseMount = "/forkvm/base" // the disk that is only read
	dataMount = "/forkvm/data" // the file system for what is written
	rootMount = "/forkvm/root" // both
)

// rootOptions are those of the overlay, see overlayfs.rst of the kernel's
// documentation.
//
//   - redirect_dir=on: a directory of the base can be renamed. Without it
//     rename(2) fails with EXDEV, which few programs expect within a directory.
//   - index=on: names of one file stay names of one file when one of them is
//     written to, and what was written over one base is not laid over another,
//     which is known by its UUID.
//   - metacopy=off: a file that is copied up is all there, and depends on the
//     base no more. A chmod of a large file takes longer.
//   - xino=on: all files have one device number, and keep their inode number when
//     they are written to, as within any other file system.
const rootOptions = "lowerdir=" + baseMount + ",upperdir=" + dataMount + "/upper,workdir=" + dataMount + "/work," +
	"redirect_dir=on,index=on,metacopy=off,xino=on"

// dataOptions are those of the disk for what is written. What is deleted is
// given back to the host. After an error nothing more is written.
const dataOptions = "discard,errors=remount-ro"

// enterRoot makes the root file system of the disks that forkvm.root of the
// kernel's command line names, "base" or "base,data", and makes it "/".
func enterRoot(names string) error {
	base, data, _ := strings.Cut(names, ",")
	if err := mountRoot(base, data); err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	if err := moveMounts(); err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	if err := switchRoot(); err != nil {
		return fmt.Errorf("root file system: switch to it: %w", err)
	}
	return nil
}

// mountRoot mounts the base and over it what is written: on the disk data, or if
// that is empty in memory.
func mountRoot(base, data string) error {
	names := []string{base}
	if data != "" {
		names = append(names, data)
	}
	devices, err := awaitDisks(names)
	if err != nil {
		return err
	}
	for _, dir := range []string{baseMount, dataMount, rootMount} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mountDisk(base, devices[0], baseMount, unix.MS_RDONLY, ""); err != nil {
		return err
	}
	if data != "" {
		err = mountDisk(data, devices[1], dataMount, 0, dataOptions)
	} else {
		err = (&mount{"tmpfs", dataMount, 0, "mode=0755,size=50%", false}).mount()
	}
	if err != nil {
		return err
	}
	return mountOverlay()
}

// mountDisk mounts the file system that is on a disk. Times of access are not
// kept: to read must not be to write, to a disk that forks share.
func mountDisk(name, device, dir string, flags uintptr, options string) error {
	f, err := os.Open(device)
	if err != nil {
		return fmt.Errorf("disk %s: %w", name, err)
	}
	defer f.Close()
	fstype, err := fileSystemOn(f)
	if err != nil {
		return fmt.Errorf("disk %s: %w", name, err)
	}
	if flags&unix.MS_RDONLY == 0 && fstype != "ext4" {
		return fmt.Errorf("disk %s: a file system to write to is ext4, not %s", name, fstype)
	}
	if err := mountAs(fstype, device, dir, flags|unix.MS_NOATIME, options); err != nil {
		return fmt.Errorf("disk %s: %w", name, err)
	}
	return nil
}

func mountAs(fstype, source, dir string, flags uintptr, options string) error {
	err := unix.Mount(source, dir, fstype, flags, options)
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("mount as %s, which this kernel does not know: %w", fstype, err)
	}
	if err != nil {
		return fmt.Errorf("mount as %s: %w", fstype, err)
	}
	return nil
}

func mountOverlay() error {
	for _, dir := range []string{dataMount + "/upper", dataMount + "/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	err := mountAs("overlay", "overlay", rootMount, unix.MS_NOATIME, rootOptions)
	if errors.Is(err, unix.ESTALE) {
		return fmt.Errorf("what is written was written over another base: %w", err)
	}
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(rootMount, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: rootMount, Err: err}
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return errors.New("mount as overlay: nothing can be written: the disk for it is full or damaged")
	}
	return nil
}

// moveMounts moves what is mounted, with what is mounted below, into the new
// root, and the agent's program.
func moveMounts() error {
	if err := bindProgram(initPath, inRoot.program); err != nil {
		return err
	}
	for _, m := range mounts {
		if filepath.Dir(m.dir) != "/" {
			continue // moves along
		}
		to := rootMount + m.dir
		if err := makeMountPoint(to); err != nil {
			return err
		}
		if err := unix.Mount(m.dir, to, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move mount %s: %w", m.dir, err)
		}
	}
	return nil
}

// bindProgram gives a file of the initramfs a name in another file system,
// which takes no memory.
func bindProgram(file, name string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := unix.Mount(file, name, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: name, Err: err}
	}
	return nil
}

// makeMountPoint makes a directory, and of what is none. A link would lead out
// of the new root, which is not "/" yet.
func makeMountPoint(dir string) error {
	info, err := os.Lstat(dir)
	if err == nil && info.IsDir() {
		return nil
	}
	if err == nil {
		err = os.Remove(dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Mkdir(dir, 0o755)
}

// switchRoot makes the new root "/". An initramfs cannot be unmounted, nor left
// by pivot_root(2) (ramfs-rootfs-initramfs.rst of the kernel's documentation): it
// is emptied, so that its memory is free, but for this program's file, and the
// new root mounted over it.
func switchRoot() error {
	for _, dir := range []string{baseMount, dataMount} {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil { // the overlay has its own
			return &os.PathError{Op: "unmount", Path: dir, Err: err}
		}
	}
	if err := os.Chdir(rootMount); err != nil {
		return err
	}
	if err := empty("/", initPath); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move mount: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return os.Chdir("/")
}

// empty removes what is in a directory, but for one file and what is mounted.
func empty(dir, keep string) error {
	var here unix.Stat_t
	if err := unix.Lstat(dir, &here); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		if path == keep || st.Dev != here.Dev {
			continue
		}
		if e.IsDir() {
			if err := empty(path, keep); err != nil {
				return err
			}
		}
		err := os.Remove(path)
		// What holds a mount point stays.
		if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return nil
}
