package blk_test

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/forkvm/forkvm/devices/virtio/blk"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// moody is a disk that need not wait, every other time.
type moody struct {
	*disk
	times atomic.Uint64
}

func (m *moody) TryReadAt(bufs [][]byte, off int64) (bool, error) {
	if m.times.Add(1)%2 == 0 {
		return false, nil
	}
	return m.memory.TryReadAt(bufs, off)
}

func (m *moody) TryWriteAt(bufs [][]byte, off int64) (bool, error) {
	if m.times.Add(1)%2 == 0 {
		return false, nil
	}
	return m.memory.TryWriteAt(bufs, off)
}

// sluggish is a disk that need not wait, but for sectors that are said to be
// slow.
type sluggish struct {
	*disk
	slow  map[int64]bool // by offset
	err   error          // of what need not wait
	tried atomic.Uint64
}

func (s *sluggish) TryReadAt(bufs [][]byte, off int64) (bool, error) {
	if s.tried.Add(1); s.slow[off] {
		return false, nil
	}
	if s.err != nil {
		return true, s.err
	}
	return s.memory.TryReadAt(bufs, off)
}

func (s *sluggish) TryWriteAt(bufs [][]byte, off int64) (bool, error) {
	if s.tried.Add(1); s.slow[off] {
		return false, nil
	}
	if s.err != nil {
		return true, s.err
	}
	return s.memory.TryWriteAt(bufs, off)
}

// bootSluggish is boot with a disk of that kind.
func bootSluggish(t *testing.T, features uint64, test func(t *testing.T, g *guest, s *sluggish)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var s *sluggish
		g := coldOn(t, blk.Config{}, 4<<20, func(d *disk) blk.Backend {
			s = &sluggish{disk: d, slow: make(map[int64]bool)}
			return s
		})
		g.start(t, features)
		test(t, g, s)
	})
}

// What need not wait is answered before the notification returns, without any
// other goroutine.
func TestPromptRequestsNeedNoGoroutine(t *testing.T) {
	bootSluggish(t, everything, func(t *testing.T, g *guest, s *sluggish) {
		read := g.request(0, header(typeIn, 1), sector)
		write := g.request(0, append(header(typeOut, 2), make([]byte, sector)...), 0)
		id := g.request(0, header(typeGetID, 0), 20)
		bad := g.request(0, header(typeIn, diskSectors), sector)
		before := g.irq.Count()
		g.Kick(0)
		for i, p := range []pending{read, write, id, bad} {
			want := byte(statusOK)
			if i == 3 {
				want = statusIOErr
			}
			if status, _ := g.answer(t, 0, p); status != want {
				t.Errorf("request %d: status %d, want %d", i, status, want)
			}
		}
		if g.irq.Count() == before {
			t.Error("no interrupt")
		}
		if !bytes.Equal(g.data(read), pattern(2 * sector)[sector:]) || !bytes.Equal(g.disk.bytes[2*sector:3*sector], make([]byte, sector)) {
			t.Error("not what was to be read or written")
		}
		if calls := g.disk.take(); len(calls) != 0 {
			t.Errorf("the backend was asked to wait for %+v", calls)
		}
		want := blk.Stats{Reads: 1, Writes: 1, ReadBytes: sector, WrittenBytes: sector, Refused: 1}
		if got := g.dev.Stats(); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	})
}

// What has to wait does so elsewhere, and holds up nothing: neither what came
// with it nor what comes later.
func TestSlowRequestsLeaveTheThreadOfTheVCPU(t *testing.T) {
	bootSluggish(t, everything, func(t *testing.T, g *guest, s *sluggish) {
		gate := g.disk.block()
		s.slow[0], s.slow[3*sector] = true, true
		waiting := []pending{
			g.request(0, header(typeIn, 0), sector),
			g.request(0, append(header(typeOut, 3), make([]byte, sector)...), 0),
			g.request(0, header(typeFlush, 0), 0),
		}
		prompt := g.request(0, header(typeIn, 1), sector)
		g.Kick(0)
		synctest.Wait()
		if status, _ := g.answer(t, 0, prompt); status != statusOK {
			t.Errorf("status %d", status)
		}
		later := g.request(0, header(typeIn, 2), sector)
		g.Kick(0)
		if status, _ := g.answer(t, 0, later); status != statusOK {
			t.Errorf("status %d", status)
		}
		if got := len(gate.entered); got != 3 {
			t.Errorf("%d requests wait, want 3", got)
		}
		quiesced := begun(g.mmio.Quiesce)
		if quiesced() {
			t.Error("quiet with requests in flight")
		}
		gate.open()
		if !quiesced() {
			t.Error("not quiet with nothing in flight")
		}
		for range waiting {
			if u, ok := g.Rings[0].Take(); !ok || g.Mem.RAM()[waiting[0].status] != statusOK {
				t.Errorf("request %d not answered well", u.Head)
			}
		}
		if got := serving(); got != 0 {
			t.Errorf("%d goroutines of an idle device", got)
		}
	})
}

// witness is a disk that notes what is read on the thread that notified.
type witness struct {
	*blk.Memory
	notifier atomic.Int64
}

func (w *witness) TryReadAt(bufs [][]byte, off int64) (bool, error) {
	buf := make([]byte, 64<<10)
	if bytes.Contains(buf[:runtime.Stack(buf, false)], []byte("(*Device).Notify(")) {
		w.notifier.Add(1)
	}
	return w.Memory.TryReadAt(bufs, off)
}

// A vCPU does not serve for long: neither large requests nor many.
func TestVCPUServesOnlySoMuch(t *testing.T) {
	for _, c := range []struct {
		name           string
		sectors, count int
		want           int64 // served by the vCPU
	}{
		{"few", 1, 20, 20},
		{"many", 1, 60, 32},
		{"much", 64, 10, 4},
		{"large", 257, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{Memory: blk.NewMemory(make([]byte, 1024*sector))}
				g := coldOn(t, blk.Config{}, 4<<20, func(*disk) blk.Backend { return w })
				if err := g.Negotiate(everything); err != nil {
					t.Fatal(err)
				}
				ring := virtiotest.NewRing(g.Mem, 256, g.Features)
				g.Rings = []*virtiotest.Ring{ring}
				g.SetUpQueue(0, ring)
				if err := g.SetStatus(virtiotest.StatusDriverOK); err != nil {
					t.Fatal(err)
				}
				for range c.count {
					g.request(0, header(typeIn, 0), c.sectors*sector)
				}
				g.Kick(0)
				synctest.Wait()
				if got := w.notifier.Load(); got != c.want {
					t.Errorf("the vCPU served %d requests, want %d", got, c.want)
				}
				if got := int(ring.UsedIdx()); got != c.count {
					t.Errorf("%d requests answered in the end, want %d", got, c.count)
				}
			})
		})
	}
}

// A driver that cannot flush gets its writes flushed, which may take long.
func TestWriteThroughIsNotPrompt(t *testing.T) {
	bootSluggish(t, everything&^featureFlush, func(t *testing.T, g *guest, s *sluggish) {
		if status, _, _ := g.do(t, append(header(typeOut, 1), make([]byte, sector)...), 0); status != statusOK {
			t.Errorf("status %d", status)
		}
		if got := g.disk.take(); len(got) != 2 || got[0].kind != typeOut || got[1].kind != typeFlush {
			t.Errorf("the backend was asked for %+v, want a write and a flush", got)
		}
		if s.tried.Load() != 0 {
			t.Error("the write was tried without the flush")
		}
	})
}

func TestPromptFailure(t *testing.T) {
	bootSluggish(t, everything, func(t *testing.T, g *guest, s *sluggish) {
		s.err = syscall.ENOSPC
		for _, out := range [][]byte{append(header(typeOut, 1), make([]byte, sector)...), header(typeIn, 1)} {
			in := 0
			if out[0] == typeIn {
				in = sector
			}
			if status, _, _ := g.do(t, out, in); status != statusIOErr {
				t.Errorf("type %d: status %d, want an error", out[0], status)
			}
		}
		if got := g.dev.Stats().Failed; got != 2 || g.dev.Failure() != syscall.ENOSPC {
			t.Errorf("%d failed, the latest with %v", got, g.dev.Failure())
		}
	})
}

// Several vCPUs write and read back at once, each by a queue of its own, while
// the machine is paused and goes on.
func TestQueuesAtOnce(t *testing.T) {
	for name, backend := range map[string]func(*disk) blk.Backend{
		"waits":     func(d *disk) blk.Backend { return d },
		"promptly":  func(d *disk) blk.Backend { return d.memory },
		"sometimes": func(d *disk) blk.Backend { return &moody{disk: d} },
	} {
		t.Run(name, func(t *testing.T) { queuesAtOnce(t, backend) })
	}
}

func queuesAtOnce(t *testing.T, backend func(*disk) blk.Backend) {
	const queues, each, batch = 4, 64, 8
	g := coldOn(t, blk.Config{Queues: queues}, 4<<20, backend)
	g.start(t, everything)
	// Memory for all, before they start: to hand it out is not for several.
	type buffers struct{ out, in, ask, status virtiotest.Buffer }
	bufs := make([][]buffers, queues)
	for queue := range bufs {
		for i := range batch {
			at := uint64(queue*batch + i)
			bufs[queue] = append(bufs[queue], buffers{
				out:    g.Mem.Out(append(header(typeOut, at), make([]byte, sector)...)),
				ask:    g.Mem.Out(header(typeIn, at)),
				in:     g.Mem.In(sector),
				status: g.Mem.In(1),
			})
		}
	}
	stop, paused := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(paused)
		for {
			select {
			case <-stop:
				return
			default:
				g.mmio.Quiesce()
				g.mmio.Resume()
			}
		}
	}()
	var wg sync.WaitGroup
	errs := make(chan error, queues)
	for queue := range queues {
		wg.Go(func() {
			ring := g.Rings[queue]
			drain := func(n int) {
				for n > 0 {
					if _, ok := ring.Take(); ok {
						n--
					} else {
						runtime.Gosched()
					}
				}
			}
			for round := range each {
				for _, b := range bufs[queue] {
					fill := g.Mem.RAM()[b.out.GPA+headerSize:][:sector]
					for i := range fill {
						fill[i] = byte(round*queues + queue)
					}
					ring.Add(b.out, b.status)
					g.dev.Notify(queue)
				}
				drain(batch)
				for _, b := range bufs[queue] {
					ring.Add(b.ask, b.in, b.status)
				}
				g.dev.Notify(queue)
				drain(batch)
				for _, b := range bufs[queue] {
					want := bytes.Repeat([]byte{byte(round*queues + queue)}, sector)
					if !bytes.Equal(g.Mem.RAM()[b.in.GPA:][:sector], want) {
						errs <- fmt.Errorf("queue %d, round %d: read is not what was written", queue, round)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	<-paused
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	want := blk.Stats{Reads: queues * each * batch, Writes: queues * each * batch}
	want.ReadBytes, want.WrittenBytes = want.Reads*sector, want.Writes*sector
	if got := g.dev.Stats(); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

// bystander is a disk that notes whether it is asked on the thread that notified.
type bystander struct {
	*disk
	mu     sync.Mutex
	prompt int // calls on that thread
	other  int
}

func (w *bystander) TryReadAt(bufs [][]byte, off int64) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bytes.Contains(debug.Stack(), []byte("servePromptly")) {
		w.prompt++
	} else {
		w.other++
	}
	return w.memory.TryReadAt(bufs, off)
}

func (w *bystander) TryWriteAt([][]byte, int64) (bool, error) { return false, nil }

// counts are the calls since the last counts.
func (w *bystander) counts() (prompt, other int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	prompt, other = w.prompt, w.other
	w.prompt, w.other = 0, 0
	return prompt, other
}

// A driver that has one request at a time is answered at once, but for a few
// by which is found out whether it still has. One with several notifies for the
// first and may go on, until it has one at a time again.
func TestPromptnessFollowsTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *bystander
		g := coldOn(t, blk.Config{}, 4<<20, func(d *disk) blk.Backend {
			w = &bystander{disk: d}
			return w
		})
		g.start(t, everything)
		ask := func(times, together int) {
			for range times {
				var all []pending
				for range together {
					all = append(all, g.request(0, header(typeIn, 1), sector))
				}
				g.Kick(0)
				synctest.Wait()
				for _, p := range all {
					if status, _ := g.answer(t, 0, p); status != statusOK {
						t.Fatalf("status %d", status)
					}
				}
			}
		}
		ask(200, 1)
		if prompt, other := w.counts(); prompt+other != 200 || other > 4 {
			t.Errorf("one at a time: %d on the driver's thread, %d elsewhere", prompt, other)
		}
		ask(200, 4)
		if prompt, other := w.counts(); prompt+other != 800 || prompt > 4*64 {
			t.Errorf("four at a time: %d on the driver's thread, %d elsewhere", prompt, other)
		}
		ask(200, 1)
		if prompt, other := w.counts(); prompt+other != 200 || other > 5 {
			t.Errorf("one at a time again: %d on the driver's thread, %d elsewhere", prompt, other)
		}
	})
}

// fleeting is a disk that has nothing to flush.
type fleeting struct{ *sluggish }

func (fleeting) Volatile() {}

// A flush of a disk that has nothing to flush is answered at once, and so are
// the writes of a driver that cannot ask for one.
func TestNothingToFlush(t *testing.T) {
	for name, features := range map[string]uint64{"flush": everything, "write-through": everything &^ featureFlush} {
		synctest.Test(t, func(t *testing.T) {
			g := coldOn(t, blk.Config{}, 4<<20, func(d *disk) blk.Backend {
				return fleeting{&sluggish{disk: d, slow: make(map[int64]bool)}}
			})
			g.start(t, features)
			out := header(typeFlush, 0)
			if name == "write-through" {
				out = append(header(typeOut, 2), make([]byte, sector)...)
			}
			p := g.request(0, out, 0)
			g.Kick(0)
			if status, _ := g.answer(t, 0, p); status != statusOK {
				t.Errorf("%s: status %d", name, status)
			}
			if calls := g.disk.take(); len(calls) != 0 {
				t.Errorf("%s: the backend was asked for %+v", name, calls)
			}
		})
	}
}
