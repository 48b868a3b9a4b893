package vmm

import (
	"os"
	"runtime"
	"sync"
)

// A goroutine that makes a system call keeps what Go calls a P, the permission
// to run Go code, until the runtime's monitor takes it away. The monitor looks
// every 20 µs while it finds something to do and only every 10 ms after a
// while; and GOMAXPROCS, how many Ps there are, is the number of processors. So
// as few guests as there are processors can keep everything else waiting for
// 10 ms, each time they enter KVM_RUN: their own devices, the next child of a
// fork, all of the program. Nothing tells the runtime beforehand that a call
// will take long. More Ps than processors do not run more at once; they are
// there when some are not given back.
//
// raiseProcs does so once, and returns how many there were: as many goroutines
// run at once.
var raiseProcs = sync.OnceValue(func() int {
	procs := runtime.GOMAXPROCS(0)
	// Whoever sets the variable knows what they want.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(procs + extraProcs(procs))
	}
	return procs
})

// extraProcs is how many guests may enter at once before anything waits.
func extraProcs(procs int) int { return min(max(16, 4*procs), 64) }
