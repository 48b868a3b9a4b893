package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	blockClass = "/sys/block"
	diskDriver = "/sys/bus/virtio/drivers/virtio_blk"
)

// diskTimeout is how long a disk may take to appear once its driver is there.
const diskTimeout = 5 * time.Second

// awaitDisks returns the devices of the disks of these names, in their order.
// Drivers may look at their devices in the background: it waits for them.
func awaitDisks(names []string) ([]string, error) {
	if _, err := os.Stat(diskDriver); err != nil {
		return nil, fmt.Errorf("this kernel has no driver of disks: %w", err)
	}
	devices, err := findDisks(blockClass, names)
	if !errors.Is(err, errNoDisk) {
		return devices, err
	}
	// From here on nothing can appear unnoticed.
	events, listenErr := listenUevents()
	if listenErr != nil {
		return nil, fmt.Errorf("%w, and none is waited for: %w", err, listenErr)
	}
	defer unix.Close(events)
	for deadline := time.Now().Add(diskTimeout); ; {
		devices, err = findDisks(blockClass, names)
		if !errors.Is(err, errNoDisk) || !awaitUevent(events, deadline) {
			return devices, err
		}
	}
}

var errNoDisk = errors.New("there is no such disk")

// findDisks returns the devices of the disks that class, a directory as
// /sys/block, has by these names, which are their serial numbers.
func findDisks(class string, names []string) ([]string, error) {
	entries, err := os.ReadDir(class)
	if err != nil {
		return nil, err
	}
	byName := map[string]string{}
	for _, e := range entries {
		serial, err := os.ReadFile(filepath.Join(class, e.Name(), "serial"))
		if err != nil {
			continue // such as a loop device, which has none, or one that is gone
		}
		byName[strings.TrimRight(string(serial), "\n\x00")] = "/dev/" + e.Name()
	}
	devices := make([]string, len(names))
	for i, name := range names {
		if devices[i] = byName[name]; devices[i] == "" {
			return nil, fmt.Errorf("disk %q: %w", name, errNoDisk)
		}
	}
	return devices, nil
}

// listenUevents returns a socket that gets the kernel's events of devices
// (netlink(7), NETLINK_KOBJECT_UEVENT).
func listenUevents() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return -1, fmt.Errorf("listen for devices: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listen for devices: %w", err)
	}
	return fd, nil
}

// awaitUevent waits for an event. It reports whether the wait is not over.
func awaitUevent(fd int, deadline time.Time) bool {
	left := time.Until(deadline)
	if left <= 0 {
		return false
	}
	wait := unix.NsecToTimeval(max(left, time.Millisecond).Nanoseconds()) // 0 is for ever
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return false
	}
	var event [4096]byte
	_, _, err := unix.Recvfrom(fd, event[:], 0)
	// Events that were lost were more than one.
	return err == nil || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS)
}

// The numbers by which file systems are known: fs/erofs/erofs_fs.h, Documentation/
// filesystems/ext4/super.rst and fs/squashfs/squashfs_fs.h of Linux.
const (
	superblock = 1024 // where EROFS and ext4 have it, in bytes
	erofsMagic = 0xe0f5e1e2
	ext4Magic  = 0xef53
	squashfs   = "hsqs"
)

// fileSystemOn says which file system a disk holds.
func fileSystemOn(disk io.ReaderAt) (string, error) {
	b := make([]byte, superblock+64)
	if _, err := disk.ReadAt(b, 0); err != nil && err != io.EOF {
		return "", fmt.Errorf("read: %w", err)
	}
	switch {
	case binary.LittleEndian.Uint32(b[superblock:]) == erofsMagic:
		return "erofs", nil
	case binary.LittleEndian.Uint16(b[superblock+56:]) == ext4Magic:
		return "ext4", nil
	case string(b[:len(squashfs)]) == squashfs:
		return "squashfs", nil
	}
	return "", fmt.Errorf("no EROFS, ext4 or squashfs: %w", fs.ErrInvalid)
}
