package vmm

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/agent"
)

// The test binary is also what runs inside the guests: under the name of
// guestHelper it is a program whose state the tests look at from outside, and
// as /init, where there is no smaller one, the agent.
func TestMain(m *testing.M) {
	agent.Main()
	if filepath.Base(os.Args[0]) == guestHelper {
		os.Exit(helperMain(os.Args[1:]))
	}
	code := m.Run()
	if dir, err := sharedDir(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// sharedDir is for the files of guests that several tests use.
var sharedDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "forkvm-test-") })

const (
	guestHelper  = "guest-helper"
	helperPath   = "/bin/" + guestHelper
	helperPort   = 4000 // vsock
	helperBuffer = 1 << 20
	holdPort     = 4001 // vsock, of the host
	holdFile     = "/tmp/held"
)

// helperState is what a helper says of itself.
type helperState struct {
	PID     int
	Now     time.Time     // on the wall clock
	Hash    string        // of a buffer of random bytes that is only in memory
	Counter uint64        // of a loop that is busy for a millisecond in two hundred
	Ticks   uint64        // of a loop that sleeps 100 ms between two
	Back    uint64        // how often the monotonic clock went back
	MaxGap  time.Duration // longest time between two ticks
}

func helperMain(args []string) int {
	if len(args) == 0 {
		args = []string{""}
	}
	var err error
	switch args[0] {
	case "serve":
		err = helperServe()
	case "hold":
		err = helperHold()
	case "clocks":
		err = helperClocks()
	case "blocks":
		err = helperBlocks(args[1], args[2:])
	case "log":
		err = helperLog(args[1])
	default:
		err = fmt.Errorf("unknown verb %q", args[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest-helper:", err)
		return 1
	}
	return 0
}

// helperServe counts, sleeps and keeps a buffer, and answers questions. It waits
// for nothing with its sleeps: they are what is tested. A guest whose timers a
// capture has lost never wakes from them, and one whose clock went back or
// leapt finds that between two of them.
func helperServe() error {
	buf := make([]byte, helperBuffer)
	rand.Read(buf)
	var counter, ticks, back, gap atomic.Uint64
	go func() {
		for {
			for end := time.Now().Add(time.Millisecond); time.Now().Before(end); {
				counter.Add(1)
			}
			time.Sleep(199 * time.Millisecond)
		}
	}()
	go func() {
		last := time.Now()
		for {
			time.Sleep(100 * time.Millisecond)
			now := time.Now()
			d := now.Sub(last)
			if d < 0 {
				back.Add(1)
			}
			gap.Store(max(gap.Load(), uint64(d)))
			last = now
			ticks.Add(1)
		}
	}()
	l, err := vsock.ListenContextID(unix.VMADDR_CID_ANY, helperPort, nil)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		question, err := bufio.NewReader(c).ReadString('\n')
		if err != nil { // cut by a fork, say
			c.Close()
			continue
		}
		if question == "scribble\n" {
			rand.Read(buf[:64<<10])
			rand.Read(buf[len(buf)-4096:])
		}
		sum := sha256.Sum256(buf)
		_ = json.NewEncoder(c).Encode(helperState{
			PID: os.Getpid(), Now: time.Now(), Hash: fmt.Sprintf("%x", sum[:8]), Counter: counter.Load(),
			Ticks: ticks.Load(), Back: back.Load(), MaxGap: time.Duration(gap.Load()),
		})
		c.Close()
	}
}

// helperHold echoes on a connection to the host until that breaks, and writes
// down how it did.
func helperHold() error {
	conn, err := vsock.Dial(vsock.Host, holdPort, nil)
	if err != nil {
		return os.WriteFile(holdFile, []byte(err.Error()), 0o600)
	}
	defer conn.Close()
	var buf [1]byte
	for err == nil {
		if _, err = conn.Read(buf[:]); err == nil {
			_, err = conn.Write(buf[:])
		}
	}
	return os.WriteFile(holdFile, []byte(err.Error()), 0o600)
}

// helperClocks has a thread on every CPU take turns to read the monotonic
// clock, and prints how often it read less than another had before.
func helperClocks() error {
	var last atomic.Int64
	var back, reads atomic.Uint64
	n := runtime.NumCPU()
	done := make(chan error, n)
	until := time.Now().Add(500 * time.Millisecond)
	for cpu := range n {
		go func() {
			runtime.LockOSThread()
			var set unix.CPUSet
			set.Set(cpu)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				done <- err
				return
			}
			for time.Now().Before(until) {
				for range 1000 {
					before := last.Load()
					var ts unix.Timespec
					if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
						done <- err
						return
					}
					if now := ts.Nano(); now < before {
						back.Add(1)
					} else {
						last.CompareAndSwap(before, now)
					}
					reads.Add(1)
				}
			}
			done <- nil
		}()
	}
	for range n {
		if err := <-done; err != nil {
			return err
		}
	}
	fmt.Printf("cpus %d reads %v back %d\n", n, reads.Load() > 0, back.Load())
	return nil
}
