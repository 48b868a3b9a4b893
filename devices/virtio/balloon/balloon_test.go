package balloon_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/balloon"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

const (
	inflateQ = iota
	deflateQ
	reportQ
)

const (
	page = balloon.PageSize
	kib  = 1 << 10
	mib  = 1 << 20

	reporting  = 1 << 5
	pagePoison = 1 << 4
	everything = ^uint64(0)
)

// host is what Release does.
type host struct {
	mu    sync.Mutex
	calls [][]balloon.Range
	hook  func([]balloon.Range) error // called first, if not nil
}

func (h *host) release(rs []balloon.Range) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, slices.Clone(rs))
	if h.hook != nil {
		return h.hook(rs)
	}
	return nil
}

// take returns what was released since the last take.
func (h *host) take() (rs []balloon.Range) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rs = slices.Concat(h.calls...)
	h.calls = nil
	return rs
}

// guest is a driver with a device that is live.
type guest struct {
	*virtiotest.Driver
	host *host
	dev  *balloon.Device
	irq  *virtiotest.Interrupt
	mmio *virtio.MMIO
}

// boot runs test in a bubble, with a guest of 32 MiB that has negotiated
// features.
func boot(t *testing.T, features uint64, test func(t *testing.T, g *guest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := cold(t, 32*mib)
		if err := g.Start(features); err != nil {
			t.Fatal(err)
		}
		test(t, g)
	})
}

// cold makes a guest whose driver has not come yet.
func cold(t *testing.T, ram int) *guest {
	t.Helper()
	h := new(host)
	dev, err := balloon.New(balloon.Config{}, balloon.Env{Release: h.release})
	if err != nil {
		t.Fatal(err)
	}
	mem, irq := virtiotest.NewMemory(ram), virtiotest.NewInterrupt()
	m := virtio.NewMMIO(dev, mem, irq)
	t.Cleanup(m.Reset)
	return &guest{virtiotest.NewDriver(m, mem), h, dev, irq, m}
}

// fork makes a child that stays quiet. The parent does as well.
func (g *guest) fork(t *testing.T) *guest {
	t.Helper()
	g.mmio.Quiesce()
	h := new(host)
	dev, err := balloon.Restore(balloon.Config{}, balloon.Env{Release: h.release}, g.dev.Save())
	if err != nil {
		t.Fatal(err)
	}
	mem, irq := g.Mem.Fork(), virtiotest.NewInterrupt()
	m, err := virtio.RestoreMMIO(dev, mem, irq, g.mmio.State())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Reset)
	return &guest{g.Fork(m, mem), h, dev, irq, m}
}

// send makes a request and fails unless it is answered with nothing written.
func (g *guest) send(t *testing.T, queue int, bufs ...virtiotest.Buffer) {
	t.Helper()
	g.Rings[queue].Add(bufs...)
	g.Kick(queue)
	synctest.Wait()
	switch u, ok := g.Rings[queue].Take(); {
	case !ok:
		t.Fatal("request not answered")
	case u.Len != 0:
		t.Errorf("device claims to have written %d bytes", u.Len)
	}
}

// report hands over free memory.
func (g *guest) report(t *testing.T, rs ...balloon.Range) {
	t.Helper()
	var bufs []virtiotest.Buffer
	for _, r := range rs {
		bufs = append(bufs, g.Mem.RAMBuffer(r.GPA, int(r.Size)))
	}
	g.send(t, reportQ, bufs...)
}

// pfns is a list of page numbers as a buffer.
func (g *guest) pfns(numbers ...uint32) virtiotest.Buffer {
	var b []byte
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return g.Mem.Out(b)
}

// run is n page numbers from first on.
func run(first, n uint32) (numbers []uint32) {
	for i := range n {
		numbers = append(numbers, first+i)
	}
	return numbers
}

// released fails unless exactly want was released since last asked.
func (g *guest) released(t *testing.T, want ...balloon.Range) {
	t.Helper()
	if got := g.host.take(); !slices.Equal(got, want) {
		t.Errorf("released %x, want %x", got, want)
	}
}

func TestReportIsReleasedBeforeItIsAnswered(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.host.hook = func([]balloon.Range) error {
			if g.Rings[reportQ].UsedIdx() != 0 {
				t.Error("answered before the memory was released")
			}
			return nil
		}
		g.report(t, balloon.Range{GPA: 8 * mib, Size: 4 * mib}, balloon.Range{GPA: 4 * mib, Size: 2 * mib})
		g.released(t, balloon.Range{GPA: 4 * mib, Size: 2 * mib}, balloon.Range{GPA: 8 * mib, Size: 4 * mib})
		want := balloon.Stats{Requests: 1, Released: 6 * mib, Ranges: 2}
		if got := g.dev.Stats(); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	})
}

func TestNeighboursAreReleasedAsOne(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.report(t,
			balloon.Range{GPA: 12 * mib, Size: 2 * mib},
			balloon.Range{GPA: 8 * mib, Size: 2 * mib},
			balloon.Range{GPA: 10 * mib, Size: 2 * mib})
		g.released(t, balloon.Range{GPA: 8 * mib, Size: 6 * mib})
	})
}

// What breaks the rules is not released, while the rest of the request is.
func TestRefusedRanges(t *testing.T) {
	const at = 8 * mib
	good := balloon.Range{GPA: 16 * mib, Size: 1 * mib}
	for _, c := range []struct {
		name    string
		bad     []balloon.Range
		also    []balloon.Range // released nevertheless
		refused uint64
	}{
		{"UnalignedStart", []balloon.Range{{GPA: at + 8, Size: 128 * kib}}, nil, 1},
		{"UnalignedSize", []balloon.Range{{GPA: at, Size: 128*kib + 8}}, nil, 1},
		{"Twice", []balloon.Range{{GPA: at, Size: 128 * kib}, {GPA: at, Size: 128 * kib}}, []balloon.Range{{GPA: at, Size: 128 * kib}}, 1},
		{"Overlap", []balloon.Range{{GPA: at, Size: 128 * kib}, {GPA: at + 64*kib, Size: 128 * kib}}, []balloon.Range{{GPA: at, Size: 128 * kib}}, 1},
		{"Rings", []balloon.Range{{GPA: 0, Size: 1 * mib}}, nil, 1},
		{"Empty", []balloon.Range{{GPA: at}}, nil, 0}, // an empty buffer is nothing
	} {
		t.Run(c.name, func(t *testing.T) {
			boot(t, everything, func(t *testing.T, g *guest) {
				g.report(t, append(c.bad, good)...)
				g.released(t, append(c.also, good)...)
				if got := g.dev.Stats(); got.Refused != c.refused || got.Small != 0 {
					t.Errorf("counted %+v, want %d refused", got, c.refused)
				}
			})
		})
	}
}

// A descriptor can name more than anybody has free.
func TestHugeRangeIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cold(t, 130*mib)
		if err := g.Start(everything); err != nil {
			t.Fatal(err)
		}
		g.report(t, balloon.Range{GPA: 1 * mib, Size: 64*mib + page})
		g.released(t)
		g.report(t, balloon.Range{GPA: 1 * mib, Size: 64 * mib}, balloon.Range{GPA: 65 * mib, Size: 64 * mib})
		g.released(t, balloon.Range{GPA: 1 * mib, Size: 128 * mib})
	})
}

// The device goes on to touch its rings, each of them.
func TestRingsAreNotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cold(t, 32*mib)
		if err := g.Negotiate(everything); err != nil {
			t.Fatal(err)
		}
		g.SetUpQueues(reportQ)
		rings := map[uint64]uint32{virtiotest.RegQueueDesc: 4 * mib, virtiotest.RegQueueDriver: 5 * mib, virtiotest.RegQueueDevice: 6 * mib}
		g.Write(virtiotest.RegQueueSel, inflateQ)
		g.Write(virtiotest.RegQueueNum, 8)
		for reg, gpa := range rings {
			g.Write(reg, gpa)
		}
		g.Write(virtiotest.RegQueueReady, 1)
		if err := g.SetStatus(virtiotest.StatusDriverOK); err != nil {
			t.Fatal(err)
		}
		for _, gpa := range rings {
			g.report(t, balloon.Range{GPA: uint64(gpa), Size: 128 * kib})
			g.released(t)
			g.report(t, balloon.Range{GPA: uint64(gpa) - 128*kib, Size: 128 * kib})
			g.released(t, balloon.Range{GPA: uint64(gpa) - 128*kib, Size: 128 * kib})
		}
		if got := g.dev.Stats().Refused; got != 3 {
			t.Errorf("%d refused, want 3", got)
		}
	})
}

func TestSmallPiecesAreAnsweredButKept(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.report(t, balloon.Range{GPA: 8 * mib, Size: 60 * kib}, balloon.Range{GPA: 9 * mib, Size: 64 * kib})
		g.released(t, balloon.Range{GPA: 9 * mib, Size: 64 * kib})
		// Together they may be large enough.
		g.report(t, balloon.Range{GPA: 8 * mib, Size: 32 * kib}, balloon.Range{GPA: 8*mib + 32*kib, Size: 32 * kib})
		g.released(t, balloon.Range{GPA: 8 * mib, Size: 64 * kib})
		if got := g.dev.Stats(); got.Small != 1 || got.Refused != 0 {
			t.Errorf("counted %+v, want 1 small", got)
		}
	})
}

// The transport refuses buffers outside RAM: the driver has to reset.
func TestReportOutsideRAM(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.Rings[reportQ].Add(g.Mem.RAMBuffer(31*mib, 2*mib))
		g.Kick(reportQ)
		synctest.Wait()
		if s := g.Read(virtiotest.RegStatus); s&virtiotest.StatusNeedsReset == 0 {
			t.Errorf("status %#x: no reset asked for", s)
		}
		g.released(t)
		// The other queues go on.
		g.send(t, inflateQ, g.pfns(run(2048, 16)...))
		g.released(t, balloon.Range{GPA: 8 * mib, Size: 64 * kib})
		if got := g.dev.Stats().Refused; got != 1 {
			t.Errorf("%d refused, want 1", got)
		}
	})
}

func TestReportThatWasNotNegotiated(t *testing.T) {
	boot(t, everything&^reporting, func(t *testing.T, g *guest) {
		g.report(t, balloon.Range{GPA: 8 * mib, Size: 2 * mib})
		g.released(t)
		if got := g.dev.Stats().Refused; got != 1 {
			t.Errorf("%d refused, want 1", got)
		}
	})
}

func TestReportWithReadableBuffers(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.send(t, reportQ, g.Mem.Out([]byte("free")), g.Mem.RAMBuffer(8*mib, 2*mib))
		g.released(t)
		if got := g.dev.Stats().Refused; got != 1 {
			t.Errorf("%d refused, want 1", got)
		}
	})
}

// Free pages that keep a value keep it; in those of the balloon nobody looks.
func TestPoison(t *testing.T) {
	reported := balloon.Range{GPA: 8 * mib, Size: 2 * mib}
	for _, c := range []struct {
		name     string
		features uint64
		poison   uint32
		want     []balloon.Range
	}{
		{"Zeros", everything, 0, []balloon.Range{reported}},
		{"Pattern", everything, 0xaaaaaaaa, nil},
		{"PatternNotNegotiated", everything &^ pagePoison, 0xaaaaaaaa, []balloon.Range{reported}},
	} {
		t.Run(c.name, func(t *testing.T) {
			boot(t, c.features, func(t *testing.T, g *guest) {
				g.Write(virtiotest.RegConfig+12, c.poison)
				g.report(t, reported)
				g.released(t, c.want...)
				g.send(t, inflateQ, g.pfns(run(4096, 32)...))
				g.released(t, balloon.Range{GPA: 16 * mib, Size: 128 * kib})

				child := g.fork(t)
				child.mmio.Resume()
				child.report(t, reported)
				child.released(t, c.want...)
			})
		})
	}
}

func TestInflate(t *testing.T) {
	for _, c := range []struct {
		name           string
		pfns           []uint32
		want           []balloon.Range
		small, refused uint64
	}{
		{"InAnyOrder", []uint32{2055, 2048, 2054, 2049, 2053, 2050, 2052, 2051, 2063, 2056, 2062, 2057, 2061, 2058, 2060, 2059},
			[]balloon.Range{{GPA: 8 * mib, Size: 64 * kib}}, 0, 0},
		{"TwoRuns", slices.Concat(run(4096, 20), run(2048, 32)),
			[]balloon.Range{{GPA: 8 * mib, Size: 128 * kib}, {GPA: 16 * mib, Size: 80 * kib}}, 0, 0},
		{"Scattered", []uint32{2048, 2050, 2052}, nil, 3, 0},
		{"Twice", slices.Concat(run(2048, 32), run(2050, 2)), []balloon.Range{{GPA: 8 * mib, Size: 128 * kib}}, 0, 2},
		{"OutsideRAM", slices.Concat(run(2048, 16), run(8192, 16), run(0xffffff00, 256)),
			[]balloon.Range{{GPA: 8 * mib, Size: 64 * kib}}, 0, 2},
		{"AcrossTheEndOfRAM", run(8192-16, 32), nil, 0, 1},
		{"Rings", run(0, 256), nil, 0, 1},
		{"TooMany", run(2048, 1024+16), []balloon.Range{{GPA: 8 * mib, Size: 4 * mib}}, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			boot(t, everything, func(t *testing.T, g *guest) {
				g.send(t, inflateQ, g.pfns(c.pfns...))
				g.released(t, c.want...)
				if got := g.dev.Stats(); got.Small != c.small || got.Refused != c.refused {
					t.Errorf("counted %+v, want %d small and %d refused", got, c.small, c.refused)
				}
			})
		})
	}
}

func TestInflateWithOddBuffers(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		var list []byte
		for _, n := range run(2048, 16) {
			list = binary.LittleEndian.AppendUint32(list, n)
		}
		// A number that is cut off, and numbers that straddle buffers.
		g.send(t, inflateQ, g.Mem.Out(list[:33]), g.Mem.Out(append(list[33:64:64], 1, 2, 3)))
		g.released(t, balloon.Range{GPA: 8 * mib, Size: 64 * kib})
		g.send(t, inflateQ, g.Mem.In(64))
		g.released(t)
		if got := g.dev.Stats().Refused; got != 2 {
			t.Errorf("%d refused, want 2", got)
		}
	})
}

func TestDeflateReleasesNothing(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.send(t, deflateQ, g.pfns(run(2048, 256)...))
		g.released(t)
		if got, want := g.dev.Stats(), (balloon.Stats{Requests: 1}); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	})
}

func TestDriverThatWantsNoInterrupts(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		for _, want := range []bool{false, true} {
			g.Rings[reportQ].SetInterrupts(want)
			before := g.irq.Count()
			g.report(t, balloon.Range{GPA: 8 * mib, Size: 2 * mib})
			if got := g.irq.Count() != before; got != want {
				t.Errorf("interrupt %v, want %v", got, want)
			}
		}
	})
}

func TestReleaseThatFails(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.host.hook = func([]balloon.Range) error { return errors.New("no more mappings") }
		g.report(t, balloon.Range{GPA: 8 * mib, Size: 2 * mib})
		if got, want := g.dev.Stats(), (balloon.Stats{Requests: 1, Failed: 1}); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	})
}

// What was reported but not answered at a capture is released by both.
func TestReportOutstandingAtCapture(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.mmio.Quiesce()
		g.Rings[reportQ].Add(g.Mem.RAMBuffer(8*mib, 2*mib))
		g.Kick(reportQ)
		synctest.Wait()
		child := g.fork(t)
		g.released(t)
		for _, g := range []*guest{g, child} {
			g.mmio.Resume()
			synctest.Wait()
			g.released(t, balloon.Range{GPA: 8 * mib, Size: 2 * mib})
			if _, ok := g.Rings[reportQ].Take(); !ok {
				t.Error("not answered")
			}
		}
	})
}

// Quiesce returns when nothing is being released any more.
func TestQuiesceWaitsForRelease(t *testing.T) {
	g := cold(t, 32*mib)
	if err := g.Start(everything); err != nil {
		t.Fatal(err)
	}
	begun, end := make(chan struct{}), make(chan struct{})
	ended := false
	g.host.hook = func([]balloon.Range) error {
		close(begun)
		<-end
		ended = true // the race detector sees a Quiesce that does not wait
		return nil
	}
	g.Rings[reportQ].Add(g.Mem.RAMBuffer(8*mib, 2*mib))
	g.Kick(reportQ)
	<-begun
	quiet := make(chan struct{})
	go func() {
		defer close(quiet)
		g.mmio.Quiesce()
		if !ended {
			t.Error("quiet while memory is being released")
		}
	}()
	close(end)
	<-quiet
}

func TestRefusesImpossibleConfig(t *testing.T) {
	h := new(host)
	if _, err := balloon.New(balloon.Config{MinRange: 5000}, balloon.Env{Release: h.release}); err == nil {
		t.Error("pieces of a part of a page")
	}
	if _, err := balloon.Restore(balloon.Config{}, balloon.Env{}, balloon.State{}); err == nil {
		t.Error("nothing to release memory with")
	}
}
