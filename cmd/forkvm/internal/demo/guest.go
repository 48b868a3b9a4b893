package demo

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// GuestCommand is the hidden command of forkvm that runs [Guest].
const GuestCommand = "demo-guest"

// arguments are those with which forkvm runs Guest.
func arguments(args ...string) []string { return append([]string{"forkvm", GuestCommand}, args...) }

// Where the two halves meet in the guest.
const (
	socket   = "@forkvm-demo" // abstract: it needs no file system
	notePath = "/tmp/forkvm-demo"

	tick     = 10 * time.Millisecond
	tickSize = 8       // bytes that the counter remembers of each tick
	maxTicks = 1 << 20 // almost three hours, 8 MiB
)

// sighting is what a look at a machine from inside finds.
type sighting struct {
	PID     int    `json:"pid"`     // of the counter
	History []byte `json:"history"` // of the counter: tickSize bytes for each tick
	Note    string `json:"note"`    // in the file
	Unique  string `json:"unique"`  // made up on the spot
}

func (s *sighting) count() int { return len(s.History) / tickSize }

// Guest is what the demo runs inside a machine: "start" leaves a counter
// running, "counter" is that counter, "look" tells what can be seen, when the
// counter is past a number, and "look write" leaves its mark in the file.
func Guest(args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return errors.New("demo: this runs in a guest of 'forkvm demo'")
	}
	switch args[0] {
	case "start":
		return startCounter()
	case "counter":
		return runCounter()
	case "look":
		return look(args[1:], stdout)
	}
	return fmt.Errorf("demo: no %q", args[0])
}

// startCounter leaves a process behind that already listens: whoever looks
// after this command has ended finds it.
func startCounter() error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socket})
	if err != nil {
		return err
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = arguments("counter")
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// counter counts in memory and nowhere else. Of each tick it remembers what
// no other machine's tick has in common with it, so that the histories of two
// machines are the same exactly as far as they were one machine.
type counter struct {
	mu      sync.Mutex
	history []byte        // guarded by mu
	ticked  chan struct{} // guarded by mu; closed at the next tick
}

func newCounter() *counter { return &counter{ticked: make(chan struct{})} }

// runCounter counts, and answers on the listener it was given as descriptor
// 3, until the machine ends.
func runCounter() error {
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return fmt.Errorf("demo: counter: %w", err)
	}
	c := newCounter()
	go c.run()
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go c.answer(conn)
	}
}

func (c *counter) run() {
	start := time.Now()
	for range time.Tick(tick) {
		c.mu.Lock()
		if len(c.history) < maxTicks*tickSize {
			c.history = append(c.history, moment(start)...)
		}
		close(c.ticked)
		c.ticked = make(chan struct{})
		c.mu.Unlock()
	}
}

// moment condenses two readings of the clock, whose nanoseconds no two
// machines share, and random bytes, which two may until they are reseeded.
func moment(start time.Time) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(time.Since(start)))
	b = append(b, randomBytes()...)
	b = binary.LittleEndian.AppendUint64(b, uint64(time.Since(start)))
	sum := sha256.Sum256(b)
	return sum[:tickSize]
}

// answer reads a number and, once the counter is past it, tells what it has.
func (c *counter) answer(conn net.Conn) {
	defer conn.Close()
	var n int
	if _, err := fmt.Fscanln(conn, &n); err != nil {
		return
	}
	// Whoever asked may be gone.
	_ = json.NewEncoder(conn).Encode(sighting{PID: os.Getpid(), History: c.past(n)})
}

// past returns the history when it has more than n ticks.
func (c *counter) past(n int) []byte {
	for {
		c.mu.Lock()
		history, ticked := c.history, c.ticked
		c.mu.Unlock()
		if len(history)/tickSize > n {
			return history
		}
		<-ticked
	}
}

func look(args []string, stdout io.Writer) error {
	var (
		after int
		write bool
	)
	for _, a := range args {
		if a == "write" {
			write = true
		} else if _, err := fmt.Sscan(a, &after); err != nil {
			return fmt.Errorf("demo: look: %q: %w", a, err)
		}
	}
	s, err := askCounter(after)
	if err != nil {
		return err
	}
	note, err := os.ReadFile(notePath)
	if err != nil {
		return err
	}
	s.Note, s.Unique = string(note), hex.EncodeToString(randomBytes())
	if write {
		if err := os.WriteFile(notePath, []byte(s.Unique), 0o644); err != nil {
			return err
		}
	}
	return json.NewEncoder(stdout).Encode(&s)
}

// askCounter returns what the counter tells once it has more than n ticks.
func askCounter(n int) (s sighting, err error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return s, err
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, n); err != nil {
		return s, err
	}
	return s, json.NewDecoder(conn).Decode(&s)
}

func randomBytes() []byte {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return b
}
