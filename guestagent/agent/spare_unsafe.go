package agent

import (
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// argsMemory is where the kernel put the command line of this process, which is
// where it shows it from. The strings of os.Args are that memory, each followed
// by a zero.
func argsMemory() []byte {
	n := 0
	for _, a := range os.Args {
		n += len(a) + 1
	}
	return unsafe.Slice(unsafe.StringData(os.Args[0]), n-1)
}

// showCommand has lists of processes show another command line, as far as
// memory, which is argsMemory's, has room for it. What os.Args said is lost.
func showCommand(memory []byte, args []string) {
	clear(memory)
	copy(memory, strings.Join(args, "\x00"))
}

// setName names this process, which has the name of its first thread. This may
// be another one: Go moves goroutines as it likes.
func setName(name string) {
	b := append([]byte(name), 0)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() == unix.Getpid() {
		_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&b[0])), 0, 0, 0)
		return
	}
	_ = os.WriteFile("/proc/self/comm", b[:len(name)], 0) // of the first, whoever writes it
}
