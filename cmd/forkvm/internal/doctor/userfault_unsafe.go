package doctor

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/userfaultfd.h.
const (
	uffdAPIVersion     = 0xaa
	uffdFeatureWPAsync = 1 << 15
	uffdioAPI          = 0xc018aa3f // _IOWR(0xaa, 0x3f, struct uffdio_api)
	uffdIOCNew         = 0xaa00     // _IO(0xaa, 0), of /dev/userfaultfd
)

// userfaultFeatures asks for the features of a userfaultfd that also serves
// faults in the kernel, which those of a guest are.
func userfaultFeatures() (uint64, error) {
	fd, err := openUserfault()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	api := struct{ api, features, ioctls uint64 }{api: uffdAPIVersion}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uffdioAPI, uintptr(unsafe.Pointer(&api))); errno != 0 {
		return 0, errno
	}
	return api.features, nil
}

func openUserfault() (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno == 0 {
		return int(fd), nil
	}
	if !errors.Is(errno, unix.EPERM) {
		return -1, errno
	}
	// Since Linux 6.1 a device's permissions may grant it instead.
	dev, err := unix.Open("/dev/userfaultfd", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, unix.EPERM
	}
	defer unix.Close(dev)
	fd, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(dev), uffdIOCNew, unix.O_CLOEXEC|unix.O_NONBLOCK)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}
