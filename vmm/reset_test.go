package vmm

import (
	"bytes"
	"errors"
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkvm/forkvm/devices/virtio/balloon"
	"github.com/forkvm/forkvm/snapshot"
)

func TestResetGoesBackToTheFork(t *testing.T) {
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 100)
	if err := vm.Reset(t.Context()); !errors.Is(err, ErrNotForked) {
		t.Errorf("reset of a machine that was booted: %v", err)
	}
	pause(t, vm)
	at := counter(t, vm)
	children, err := vm.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	child := children[0]
	defer closeVM(t, child)
	for range 20 {
		awaitCounter(t, child, at+1000)
		pause(t, child)
		image, err := child.Capture(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		later := counter(t, child)
		if err := child.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		pause(t, child)
		// At most what it counted since, which is far less than a second's.
		if now := counter(t, child); now < at || now >= later && now > at+1e8 {
			t.Fatalf("counter %d after a reset to %d from %d", now, at, later)
		}
		if child.Timings().StateReady <= 0 {
			t.Error("no timings of the reset")
		}
		if err := child.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		image.Close()
	}
	if err := vm.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitCounter(t, vm, at)
}

func TestResetOfMemory(t *testing.T) { bothWays(t, testResetOfMemory) }

func testResetOfMemory(t *testing.T, untracked bool) {
	const pages = 4096
	parent := newMemory(t, pages*pageSize)
	rng := rand.New(rand.NewSource(7))
	scribble := func(m *memory) {
		for range 300 {
			m.ram[rng.Intn(pages/2)*pageSize+rng.Intn(pageSize)] = byte(rng.Int())
		}
	}
	scribble(parent)
	born := capture(t, parent)
	defer born.table.Release()
	want := bytes.Clone(parent.ram)
	m := mapped(t, born.table)
	m.untracked = untracked
	for round := range 10 {
		scribble(m)
		m.ram[(pages-1-round)*pageSize] = 1 // where no layer is
		for range round % 3 {
			capture(t, m).table.Release()
			scribble(m)
		}
		if round%2 == 1 {
			if err := m.release([]balloon.Range{{GPA: 100 * pageSize, Size: 500 * pageSize}}); err != nil {
				t.Fatal(err)
			}
			scribble(m)
		}
		if err := m.reset(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(m.ram, want) {
			t.Fatalf("round %d: other bytes after a reset", round)
		}
		// And a capture after it is of these bytes.
		m.ram[0]++
		c := capture(t, m)
		child := mapped(t, c.table)
		c.table.Release()
		if !bytes.Equal(child.ram, m.ram) {
			t.Fatalf("round %d: a capture after a reset has other bytes", round)
		}
		m.ram[0]--
	}
}

// TestCaptureAgainstAWriter races a writer against captures that copy while it
// runs: the child must have what the memory held when it was frozen. The same
// with the copies made while it stands still.
func TestCaptureAgainstAWriter(t *testing.T) {
	const pages = 16384
	for name, runs := range map[string]bool{"while it runs": true, "at a standstill": false} {
		t.Run(name, func(t *testing.T) {
			m := newMemory(t, pages*pageSize)
			rng := rand.New(rand.NewSource(8))
			before := rng.Perm(pages)
			for round := range 4 {
				for _, p := range before[:precopyFrom*2+rng.Intn(1000)] {
					m.ram[p*pageSize+round]++
				}
				var stop atomic.Bool
				var writer sync.WaitGroup
				started := make(chan struct{})
				writer.Go(func() {
					rng := rand.New(rand.NewSource(int64(round)))
					for n := 0; !stop.Load(); n++ {
						m.ram[rng.Intn(pages)*pageSize+rng.Intn(pageSize)]++
						if n%5000 == 50 {
							at := uint64(rng.Intn(pages - 64))
							if err := m.release([]balloon.Range{{GPA: at * pageSize, Size: 64 * pageSize}}); err != nil {
								t.Error(err)
							}
						}
						if n == 100 {
							close(started)
						}
					}
				})
				<-started
				c := captureWhile(t, m, runs, func() { stop.Store(true); writer.Wait() })
				child := mapped(t, c.table)
				c.table.Release()
				if !bytes.Equal(child.ram, m.ram) {
					t.Fatalf("round %d: the child has other bytes", round)
				}
				child.close()
			}
			c := capture(t, m)
			c.table.Release()
			if m.tracker != nil && c.dirty != 0 {
				t.Errorf("%d pages to capture when nothing was written", c.dirty)
			}
		})
	}
}

// TestCaptureKeepsWhatIsWrittenAfterIt writes between the freeze and the end of
// a capture, as a machine does that runs again: to pages that were copied, and to
// those between them, of more runs than are protected one by one. The next
// capture must have all of it.
func TestCaptureKeepsWhatIsWrittenAfterIt(t *testing.T) {
	const pages = 8 * maxTakes
	m := newMemory(t, pages*pageSize)
	for p := range pages {
		m.ram[p*pageSize] = 1
	}
	capture(t, m).table.Release()
	for round := range 4 {
		for p := 0; p < pages; p += 2 {
			m.ram[p*pageSize]++
		}
		c, err := m.newCapture(true)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.freeze(); err != nil {
			t.Fatal(err)
		}
		frozen := bytes.Clone(m.ram)
		write := func() {
			for p := round; p < pages; p += 5 {
				m.ram[p*pageSize+1]++
			}
		}
		if round%2 == 0 {
			write()
		}
		done, err := c.finish()
		if err != nil {
			t.Fatal(err)
		}
		if round%2 == 1 { // at the same time as the rest of the capture
			write()
		}
		for _, want := range []struct {
			table *snapshot.Table
			bytes []byte
		}{{done.table, frozen}, {capture(t, m).table, m.ram}} {
			child := mapped(t, want.table)
			want.table.Release()
			if !bytes.Equal(child.ram, want.bytes) {
				t.Fatalf("round %d: a child has other bytes", round)
			}
		}
	}
}

// TestFailedCaptureLosesNothing gives up captures half way: what they took
// from the tracker is in the next one.
func TestFailedCaptureLosesNothing(t *testing.T) {
	const pages = 3 * precopyFrom
	m := newMemory(t, pages*pageSize)
	capture(t, m).table.Release()
	for round := range 6 {
		for p := range pages {
			m.ram[p*pageSize] = byte(round + 1)
		}
		c, err := m.newCapture(true)
		if err != nil {
			t.Fatal(err)
		}
		if round%2 == 1 {
			if err := c.freeze(); err != nil {
				t.Fatal(err)
			}
		}
		c.abandon()
		done := capture(t, m)
		child := mapped(t, done.table)
		done.table.Release()
		if !bytes.Equal(child.ram, m.ram) {
			t.Fatalf("round %d: the child has other bytes", round)
		}
	}
}

func TestPreparedForksBuildNothing(t *testing.T) {
	vm := startMicro(t, guestCounter, func(c *Config) { c.Spare = -1 })
	if err := vm.Prepare(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if n := len(vm.pool.ready); n != 3 {
		t.Fatalf("%d shells ready, want 3", n)
	}
	children, err := vm.Fork(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(vm.pool.ready); n != 1 {
		t.Errorf("%d shells ready after a fork of 2, want 1", n)
	}
	for _, c := range children {
		awaitCounter(t, c, 0)
		closeVM(t, c)
	}
	closeVM(t, vm)
	shellPools.mu.Lock()
	defer shellPools.mu.Unlock()
	if shellPools.all[vm.pool.key] == vm.pool {
		t.Error("the pool outlives its machines")
	}
}

func TestFirstExitIsTimed(t *testing.T) {
	vm := startMicro(t, guestGreeter)
	<-vm.Done()
	if d := vm.Timings().FirstExit; d <= 0 || d > time.Minute {
		t.Errorf("first exit after %v", d)
	}
}

// TestResetOfAMachineThatEnds ends a machine in the middle of its reset. It
// fails, and gives the machine no new devices: nobody would take them away
// before its memory.
func TestResetOfAMachineThatEnds(t *testing.T) {
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 10)
	image := captureOf(t, vm)
	defer image.Close()
	child, err := image.Start(t.Context(), StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeVM(t, child)
	board := child.board.Load()
	if err := child.takeTurn(t.Context()); err != nil {
		t.Fatal(err)
	}
	child.stop(Outcome{Err: ErrPowerOff})
	<-child.ended
	err = child.goOn(t.Context(), func(*vcpu) error {
		t.Error("it was reset")
		return nil
	})
	child.turn.give()
	if !errors.Is(err, ErrClosed) || child.board.Load() != board {
		t.Errorf("%v; devices are new: %v", err, child.board.Load() != board)
	}
}
