// Package descriptors keeps the open files of a process to itself.
package descriptors

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Keep has programs that are started from now on get none of the descriptors that
// this process was given beside its standard streams; Go opens none that they
// would get. A program that outlives this one would hold them open, and whoever
// waits for the end of such a pipe, as those who run programs do, would wait for
// the end of that program. It may be called concurrently.
func Keep() error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("descriptors: %w", err)
	}
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > unix.Stderr {
			unix.CloseOnExec(fd) // it may be closed meanwhile
		}
	}
	return nil
}
