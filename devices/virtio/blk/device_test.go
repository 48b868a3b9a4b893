package blk_test

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/blk"
)

// gate is a hook that blocks until it is told.
type gate struct {
	entered chan call
	leave   chan error
}

func (d *disk) block() gate {
	g := gate{make(chan call, 64), make(chan error)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = func(c call) error {
		g.entered <- c
		return <-g.leave
	}
	return g
}

// open lets everybody through from now on.
func (g gate) open() { close(g.leave) }

// begun runs f on a goroutine and returns what tells, once all has settled,
// whether f has ended.
func begun(f func()) (ended func() bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return func() bool {
		synctest.Wait()
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// serving is the number of goroutines of all devices.
func serving() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "blk.(*Device).work(")
}

func TestConfigurationIsChecked(t *testing.T) {
	good := blk.Env{Backend: blk.NewMemory(make([]byte, sector))}
	for _, c := range []struct {
		name string
		cfg  blk.Config
		env  blk.Env
		want string // in the error; none if empty
	}{
		{"defaults", blk.Config{}, good, ""},
		{"most", blk.Config{ID: " exactly twenty b ~ ", Queues: 8}, good, ""},
		{"long ID", blk.Config{ID: "exactly twenty-one by"}, good, "longer than 20"},
		{"odd ID", blk.Config{ID: "disk\n"}, good, "printable"},
		{"foreign ID", blk.Config{ID: "dïsk"}, good, "printable"},
		{"many queues", blk.Config{Queues: 9}, good, "9 queues"},
		{"negative queues", blk.Config{Queues: -1}, good, "-1 queues"},
		{"no backend", blk.Config{}, blk.Env{}, "no backend"},
		{"empty disk", blk.Config{}, blk.Env{Backend: blk.NewMemory(nil)}, "0 bytes"},
		{"half a sector", blk.Config{}, blk.Env{Backend: blk.NewMemory(make([]byte, sector/2))}, "256 bytes"},
	} {
		_, err := blk.New(c.cfg, c.env)
		_, restored := blk.Restore(c.cfg, c.env, blk.State{})
		for _, err := range []error{err, restored} {
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
		}
	}
}

// Offsets are those of section 5.2.4.
func TestConfigurationSpace(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		g := cold(t, blk.Config{Queues: 5, ReadOnly: readOnly})
		space := make([]byte, 64)
		g.dev.ReadConfig(0, space)
		le := binary.LittleEndian
		got := map[string]uint64{
			"capacity": le.Uint64(space), "size_max": uint64(le.Uint32(space[8:])), "seg_max": uint64(le.Uint32(space[12:])),
			"geometry": uint64(le.Uint32(space[16:])), "blk_size": uint64(le.Uint32(space[20:])),
			"physical_block_exp": uint64(space[24]), "alignment_offset": uint64(space[25]),
			"min_io_size": uint64(le.Uint16(space[26:])), "opt_io_size": uint64(le.Uint32(space[28:])),
			"writeback": uint64(space[32]), "num_queues": uint64(le.Uint16(space[34:])),
			"max_discard_sectors": uint64(le.Uint32(space[36:])), "max_discard_seg": uint64(le.Uint32(space[40:])),
			"discard_sector_alignment": uint64(le.Uint32(space[44:])),
			"max_write_zeroes_sectors": uint64(le.Uint32(space[48:])), "max_write_zeroes_seg": uint64(le.Uint32(space[52:])),
			"write_zeroes_may_unmap": uint64(space[56]), "what follows": le.Uint64(append(space[57:], 0)),
		}
		want := map[string]uint64{
			"capacity": diskSectors, "seg_max": 254, "blk_size": 512, "physical_block_exp": 3, "min_io_size": 8, "num_queues": 5,
		}
		features := uint64(1<<2 | 1<<6 | 1<<9 | 1<<10 | 1<<12)
		if readOnly {
			features |= 1 << 5
		} else {
			features |= 1<<13 | 1<<14
			want["max_discard_sectors"], want["max_discard_seg"], want["discard_sector_alignment"] = 1<<18, 16, 8
			want["max_write_zeroes_sectors"], want["max_write_zeroes_seg"], want["write_zeroes_may_unmap"] = 1<<18, 16, 1
		}
		for field, v := range got {
			if v != want[field] {
				t.Errorf("read-only %v: %s is %d, want %d", readOnly, field, v, want[field])
			}
		}
		if got := g.dev.Features(); got != features {
			t.Errorf("read-only %v: features %#x, want %#x", readOnly, got, features)
		}
	}
}

func TestActivationNeedsAQueue(t *testing.T) {
	g := cold(t, blk.Config{Queues: 2})
	for _, queues := range [][]*virtio.Queue{nil, {nil, nil}, {new(virtio.Queue)}} {
		if err := g.dev.Activate(virtio.Activation{Queues: queues}); err == nil {
			t.Errorf("activated with %d queues", len(queues))
		}
	}
	if err := g.Start(everything, 1); err != nil {
		t.Errorf("without the first queue: %v", err)
	}
}

// The thread of a vCPU does not wait for the backend, and no more requests
// than eight are in it at a time.
func TestNotifyDoesNotWait(t *testing.T) {
	boot(t, blk.Config{Queues: 2}, func(t *testing.T, g *guest) {
		gate := g.disk.block()
		for i := range uint64(20) {
			queue := int(i % 2)
			g.request(queue, header(typeIn, i), sector)
			g.Kick(queue) // returns though nobody leaves the gate
		}
		synctest.Wait()
		if got := len(gate.entered); got != 8 {
			t.Errorf("%d requests in flight, want 8", got)
		}
		if got := serving(); got != 8 {
			t.Errorf("%d goroutines, want 8", got)
		}
		gate.open()
		synctest.Wait()
		if got := g.dev.Stats().Reads; got != 20 {
			t.Errorf("%d reads, want 20", got)
		}
		if got := serving(); got != 0 {
			t.Errorf("%d goroutines of an idle device", got)
		}
	})
}

// A request that takes its time holds up no other, and nobody has to notify
// twice.
func TestCompletedOutOfOrder(t *testing.T) {
	boot(t, blk.Config{}, func(t *testing.T, g *guest) {
		slow := make(chan struct{})
		g.disk.hook = func(c call) error {
			if c.off == 0 {
				<-slow
			}
			return nil
		}
		first := g.request(0, header(typeIn, 0), sector)
		g.Kick(0)
		synctest.Wait()
		second := g.request(0, header(typeIn, 1), sector)
		third := g.request(0, header(typeIn, 2), sector)
		g.Kick(0)
		synctest.Wait()
		var heads []uint16
		for range 2 {
			u, ok := g.Rings[0].Take()
			if !ok {
				t.Fatal("a slow request holds up another")
			}
			heads = append(heads, u.Head)
		}
		slices.Sort(heads)
		want := []uint16{second.head, third.head}
		if slices.Sort(want); !slices.Equal(heads, want) {
			t.Errorf("requests %d answered, want %d", heads, want)
		}
		before := g.irq.Count()
		close(slow)
		synctest.Wait()
		if status, _ := g.answer(t, 0, first); status != statusOK {
			t.Errorf("status %d", status)
		}
		if g.irq.Count() != before+1 {
			t.Errorf("%d interrupts, want 1", g.irq.Count()-before)
		}
	})
}

// When a request comes back the backend has done with it, so that a flush that
// is made then covers it.
func TestWriteIsDoneWhenAnswered(t *testing.T) {
	boot(t, blk.Config{}, func(t *testing.T, g *guest) {
		gate := g.disk.block()
		g.request(0, append(header(typeOut, 0), pattern(sector)...), 0)
		g.Kick(0)
		synctest.Wait()
		if _, ok := g.Rings[0].Take(); ok {
			t.Fatal("answered while the backend is at it")
		}
		g.request(0, header(typeFlush, 0), 0)
		g.Kick(0)
		synctest.Wait()
		if got := len(gate.entered); got != 2 {
			t.Errorf("%d requests in flight: a flush waits for no write that was not answered", got)
		}
		gate.open()
	})
}

func TestQuiesceWaitsForWhatIsInFlight(t *testing.T) {
	boot(t, blk.Config{}, func(t *testing.T, g *guest) {
		gate := g.disk.block()
		for i := range uint64(10) {
			g.request(0, header(typeIn, i), sector)
		}
		g.Kick(0)
		synctest.Wait()
		quiesced := begun(g.mmio.Quiesce)
		again := begun(g.mmio.Quiesce)
		if quiesced() || again() {
			t.Fatal("quiet with requests in flight")
		}
		for range 7 {
			gate.leave <- nil
		}
		if quiesced() {
			t.Fatal("quiet with a request in flight")
		}
		gate.leave <- nil
		if !quiesced() || !again() {
			t.Fatal("not quiet with nothing in flight")
		}
		st := g.mmio.State().Queues[0]
		if st.NextAvail != st.NextUsed || st.NextUsed != 8 {
			t.Errorf("%d requests popped and %d pushed, want 8", st.NextAvail, st.NextUsed)
		}
		if got := serving(); got != 0 {
			t.Errorf("%d goroutines of a quiet device", got)
		}
		gate.open()
		g.mmio.Resume()
		synctest.Wait()
		if got := g.Rings[0].UsedIdx(); got != 10 {
			t.Errorf("%d requests answered after Resume, want 10", got)
		}
	})
}

// Whoever resumes ends the wait of whoever wanted quiet, even if there is
// always something in flight.
func TestResumeEndsAQuiesceThatWaits(t *testing.T) {
	boot(t, blk.Config{}, func(t *testing.T, g *guest) {
		gate := g.disk.block()
		g.request(0, header(typeIn, 0), sector)
		g.Kick(0)
		synctest.Wait()
		quiesced := begun(g.mmio.Quiesce)
		if quiesced() {
			t.Fatal("quiet with a request in flight")
		}
		g.mmio.Resume()
		if !quiesced() {
			t.Fatal("waits for quiet that was taken back")
		}
		gate.open()
	})
}

func TestResetWaitsForWhatIsInFlight(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		boot(t, blk.Config{}, func(t *testing.T, g *guest) {
			gate := g.disk.block()
			for i := range uint64(3) {
				g.request(0, header(typeIn, i), sector)
			}
			g.Kick(0)
			synctest.Wait()
			g.request(0, header(typeIn, 3), sector)
			quiesced := func() bool { return true }
			if quiet {
				quiesced = begun(g.mmio.Quiesce)
			}
			reset := begun(g.mmio.Reset)
			again := begun(g.dev.Reset)
			if reset() || again() {
				t.Fatal("reset with requests in flight")
			}
			gate.open()
			if !reset() || !again() || !quiesced() {
				t.Fatal("not reset with nothing in flight")
			}
			ram, interrupts := bytes.Clone(g.Mem.RAM()), g.irq.Count()
			g.dev.Notify(0)
			g.mmio.Resume()
			synctest.Wait()
			if !bytes.Equal(ram, g.Mem.RAM()) || g.irq.Count() != interrupts {
				t.Error("memory touched or interrupt raised after a reset")
			}
			if got := g.dev.Stats().Reads; got != 3 {
				t.Errorf("%d reads, want 3", got)
			}
			g.Mem.FreeAll()
			g.start(t, everything)
			if status, _, _ := g.do(t, header(typeIn, 0), sector); status != statusOK {
				t.Errorf("status %d after a reset", status)
			}
		})
	}
}

// A machine that is captured in the middle of a queue does not lose or repeat
// anything, in the parent or in the child.
func TestForkInTheMiddleOfAQueue(t *testing.T) {
	boot(t, blk.Config{Queues: 2}, func(t *testing.T, g *guest) {
		gate := g.disk.block()
		for i := range uint64(16) {
			for queue := range 2 {
				at := 2*i + uint64(queue)
				g.request(queue, append(header(typeOut, at), bytes.Repeat([]byte{byte(at) + 100}, sector)...), 0)
			}
		}
		g.Notify(0)
		g.Notify(1)
		synctest.Wait()
		quiesced := begun(g.mmio.Quiesce)
		if quiesced() {
			t.Fatal("quiet with requests in flight")
		}
		gate.open()
		if !quiesced() {
			t.Fatal("not quiet")
		}
		if got := g.dev.Stats().Writes; got != 8 {
			t.Fatalf("%d writes before the capture, want 8", got)
		}
		child := g.fork(t)
		for _, g := range []*guest{g, child} {
			g.mmio.Resume()
			synctest.Wait()
			for queue := range 2 {
				for range 16 {
					if _, ok := g.Rings[queue].Take(); !ok {
						t.Fatal("request not answered")
					}
				}
			}
			for at := range 32 {
				if got := g.disk.bytes[at*sector]; got != byte(at)+100 {
					t.Errorf("sector %d has %d", at, got)
				}
			}
		}
		if got := len(g.disk.take()); got != 32 {
			t.Errorf("the parent's backend was asked %d times, want 32", got)
		}
		if got := len(child.disk.take()); got != 24 {
			t.Errorf("the child's backend was asked %d times, want 24", got)
		}
		if status, _, _ := child.do(t, header(typeIn, 0), sector); status != statusOK {
			t.Errorf("status %d in the child", status)
		}
	})
}

// A queue whose driver breaks the rules is lost, with what is in flight in it
// answered, and the others serve on.
func TestBrokenRing(t *testing.T) {
	boot(t, blk.Config{Queues: 2}, func(t *testing.T, g *guest) {
		gate := g.disk.block()
		g.request(0, header(typeIn, 0), sector)
		g.Kick(0)
		synctest.Wait()
		g.Rings[0].SetAvailIdx(5000)
		g.Notify(0)
		synctest.Wait()
		gate.open()
		synctest.Wait()
		if _, ok := g.Rings[0].Take(); !ok {
			t.Error("request in flight was not answered")
		}
		if got := g.dev.Stats(); got.Refused != 1 || got.Reads != 1 {
			t.Errorf("counted %+v", got)
		}
		if g.mmio.Failure() == nil {
			t.Error("no reset was asked for")
		}
		g.Notify(0)
		p := g.request(1, header(typeIn, 1), sector)
		g.Kick(1)
		synctest.Wait()
		if status, _ := g.answer(t, 1, p); status != statusOK {
			t.Errorf("status %d in the other queue", status)
		}
		if got := g.dev.Stats().Refused; got != 1 {
			t.Errorf("%d refused, want 1", got)
		}
		g.Mem.FreeAll()
		g.start(t, everything)
		if status, _, _ := g.do(t, header(typeIn, 1), sector); status != statusOK {
			t.Errorf("status %d after a reset", status)
		}
	})
}
