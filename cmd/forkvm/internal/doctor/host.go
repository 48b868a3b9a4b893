package doctor

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// host checks what a process on this machine is given.
func host() []Check {
	return []Check{platform(), linux(), preemption(), descriptors(), mappings()}
}

func platform() Check {
	c := Check{Group: "host", Name: "platform"}
	got := runtime.GOOS + "/" + runtime.GOARCH
	if got != "linux/amd64" {
		return c.fail(got, "use an x86-64 Linux machine")
	}
	return c.pass(got)
}

func linux() Check {
	c := Check{Group: "host", Name: "linux"}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return c.skip(err.Error())
	}
	release := unix.ByteSliceToString(u.Release[:])
	major, minor, ok := parseRelease(release)
	if !ok {
		return c.warn(release+": not a Linux version", "")
	}
	// 5.17 is the oldest with KVM_CAP_XSAVE2.
	if major < 5 || major == 5 && minor < 17 {
		return c.fail(release, "use Linux 5.17 or later; 6.7 or later forks faster")
	}
	return c.pass(release)
}

// parseRelease reads the first two numbers of a uname release.
func parseRelease(s string) (major, minor int, ok bool) {
	n, _ := fmt.Sscanf(s, "%d.%d", &major, &minor)
	return major, minor, n == 2
}

// preemption checks the signal that forkvm stops vCPUs with, and Go its
// goroutines.
func preemption() Check {
	c := Check{Group: "host", Name: "sigurg"}
	if signal.Ignored(syscall.SIGURG) {
		return c.fail("SIGURG is ignored, so vCPUs cannot be stopped",
			"start forkvm from a parent that does not ignore SIGURG")
	}
	return c.pass("SIGURG is delivered")
}

// descriptors checks the limit that many machines in one process meet first:
// each has one for KVM, one for itself and one for each vCPU, and layers have
// one each.
func descriptors() Check {
	c := Check{Group: "host", Name: "open files"}
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return c.skip(err.Error())
	}
	const perMachine, wanted = 4, 1024
	detail := fmt.Sprintf("%d, about %d machines", l.Cur, l.Cur/perMachine)
	if l.Cur < wanted {
		return c.warn(detail, fmt.Sprintf("ulimit -n %d", wanted))
	}
	return c.pass(detail)
}

// mappings checks the limit on memory mappings of one process.
func mappings() Check {
	c := Check{Group: "host", Name: "max_map_count"}
	n, err := readNumber("/proc/sys/vm/max_map_count")
	if err != nil {
		return c.skip(err.Error())
	}
	const wanted = 65530 // Linux's default
	detail := fmt.Sprintf("%d memory mappings", n)
	if n < wanted {
		return c.warn(detail, fmt.Sprintf("sysctl -w vm.max_map_count=%d", wanted))
	}
	return c.pass(detail)
}

func readNumber(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}
