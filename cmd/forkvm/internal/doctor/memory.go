package doctor

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// memory checks how memory can be shared, captured and had.
func memory() []Check {
	return []Check{pagemapScan(), sealing(), userfault(), available()}
}

// pagemapScan checks for the ioctl that lists written pages. Linux answers
// EFAULT to a call without an argument if it knows the call.
func pagemapScan() Check {
	c := Check{Group: "memory", Name: "pagemap_scan"}
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return c.fail(err.Error(), "mount /proc: written pages cannot be found without it")
	}
	defer f.Close()
	const pagemapScan = 0xc0606610 // _IOWR('f', 16, struct pm_scan_arg), linux/fs.h
	if err := unix.IoctlSetInt(int(f.Fd()), pagemapScan, 0); !errors.Is(err, unix.EFAULT) {
		return c.warn(fmt.Sprintf("not there (%v): a fork looks at every page of the guest", err), "use Linux 6.7 or later")
	}
	return c.pass("written pages are found without looking at each")
}

// sealing checks that a layer of memory can be made immutable.
func sealing() Check {
	c := Check{Group: "memory", Name: "memfd sealing"}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	fix := "allow memfd_create and F_ADD_SEALS: a container's seccomp profile may forbid them"
	fd, err := unix.MemfdCreate("forkvm-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return c.fail(fmt.Sprintf("memfd_create: %v", err), fix)
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return c.fail(fmt.Sprintf("F_ADD_SEALS: %v", err), fix)
	}
	if _, err := unix.Write(fd, []byte{1}); !errors.Is(err, unix.EPERM) {
		return c.fail(fmt.Sprintf("a sealed memfd could be written (%v)", err), "use a genuine Linux kernel")
	}
	return c.pass("layers of memory can be made immutable")
}

// userfault checks for write-protect tracking, with which memory can be
// copied while the guest runs.
func userfault() Check {
	c := Check{Group: "memory", Name: "userfaultfd"}
	features, err := userfaultFeatures()
	switch {
	case errors.Is(err, unix.EPERM):
		return c.warn("not allowed; guests boot and fork without it", "sysctl -w vm.unprivileged_userfaultfd=1, or give access to /dev/userfaultfd")
	case err != nil:
		return c.warn(fmt.Sprintf("not there (%v); guests boot and fork without it", err), "use a kernel with CONFIG_USERFAULTFD")
	case features&uffdFeatureWPAsync == 0:
		return c.warn("has no WP_ASYNC; guests boot and fork without it", "use Linux 6.7 or later")
	}
	return c.pass("with WP_ASYNC")
}

// available checks for room for a few guests of the default size.
func available() Check {
	c := Check{Group: "memory", Name: "available"}
	kib, err := memAvailable()
	if err != nil {
		return c.skip(err.Error())
	}
	// A container may have less than its host. "max" is no number, and a
	// limit that cannot be read is no limit to speak of.
	if limit, err := readNumber("/sys/fs/cgroup/memory.max"); err == nil {
		if used, err := readNumber("/sys/fs/cgroup/memory.current"); err == nil {
			kib = min(kib, max(0, limit-used)>>10)
		}
	}
	detail := fmt.Sprintf("%d MiB", kib>>10)
	if kib < 512<<10 {
		return c.warn(detail, "free memory: a guest has 256 MiB unless told otherwise")
	}
	return c.pass(detail)
}

// memAvailable is MemAvailable of /proc/meminfo, in KiB.
func memAvailable() (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var kib int64
		if v, ok := strings.CutPrefix(s.Text(), "MemAvailable:"); ok {
			_, err := fmt.Sscan(v, &kib)
			return kib, err
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}
