package devtest

import (
	"bytes"
	"math"
	"sync"
	"testing"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// ringFeatures are what changes the way of requests.
var ringFeatures = []uint64{
	virtio.FeatureIndirectDesc | virtio.FeatureEventIdx,
	virtio.FeatureEventIdx,
	virtio.FeatureIndirectDesc,
	0,
}

// What a device says of itself is possible, and its configuration space can be
// read at any offset by any width.
func testProperties[D virtio.Device, S any](t testing.TB, v *Virtio[D, S]) {
	dev := v.New(t)
	if dev.Type() == 0 {
		t.Error("type 0")
	}
	for i, n := range dev.QueueSizes() {
		if n == 0 || n > virtio.MaxQueueSize || n&(n-1) != 0 {
			t.Errorf("queue %d: size %d", i, n)
		}
	}
	// Section 6: bits 24 to 40 belong to transport and queues.
	if f := dev.Features() & (1<<41 - 1<<24); f != 0 {
		t.Errorf("features %#x are not the device's to offer", f)
	}
	whole := make([]byte, 256)
	dev.ReadConfig(0, whole)
	for _, n := range []int{1, 2, 4, 8} {
		for off := range len(whole) - 8 {
			p := bytes.Repeat([]byte{0xaa}, n)
			if dev.ReadConfig(uint64(off), p); !bytes.Equal(p, whole[off:][:n]) {
				t.Fatalf("configuration space at %d: % x by %d bytes, % x as a whole", off, p, n, whole[off:][:n])
			}
		}
	}
	for _, off := range []uint64{1 << 12, 1 << 32, math.MaxInt64, math.MaxUint64 - 3, math.MaxUint64} {
		p := bytes.Repeat([]byte{0xaa}, 8)
		if dev.ReadConfig(off, p); !bytes.Equal(p, make([]byte, 8)) {
			t.Errorf("configuration space at %#x: % x, want zeros", off, p)
		}
		if w, ok := any(dev).(virtio.ConfigWriter); ok {
			w.WriteConfig(off, p)
		}
	}
}

// Requests are answered and interrupted for, far beyond one round of the ring,
// whatever the features of the ring.
func testRequests[D virtio.Device, S any](t testing.TB, v *Virtio[D, S]) {
	for _, features := range ringFeatures {
		m := v.cold(t)
		m.start(t, everything&^(virtio.FeatureIndirectDesc|virtio.FeatureEventIdx)|features)
		for i := range 200 {
			before := m.irq.Count()
			m.request(t)
			if m.irq.Count() == before {
				t.Fatalf("features %#x, request %d: no interrupt", m.drv.Features, i)
			}
			if got := m.drv.AckInterrupt(); got&1 == 0 {
				t.Fatalf("features %#x, request %d: interrupt status %#x", m.drv.Features, i, got)
			}
		}
	}
}

// Between Quiesce and Resume nothing happens, whoever wants something.
func testQuiesce[D virtio.Device, S any](t testing.TB, v *Virtio[D, S]) {
	m := v.live(t)
	m.request(t)
	m.mmio.Quiesce()
	m.mmio.Quiesce()
	m.offer()
	w := m.watch()
	m.drv.Notify(v.Request.Queue)
	if v.Host != nil {
		v.Host(t, m.dev)
	}
	m.settle()
	w.check(t)
	m.mmio.Quiesce()
	m.settle()
	w.check(t)

	m.mmio.Resume()
	m.settle()
	if !m.answered(t) {
		t.Error("request not answered after Resume")
	}
	m.mmio.Resume()
	m.settle()
	m.request(t)
}

// A notification that came while the device was quiet, or just before, is made
// good by Resume even if nobody notifies again.
func testSwallowedNotification[D virtio.Device, S any](t testing.TB, v *Virtio[D, S]) {
	for _, notify := range []bool{false, true} {
		m := v.live(t)
		for range 100 {
			m.mmio.Quiesce()
			m.offer()
			if notify {
				m.drv.Kick(v.Request.Queue)
			}
			m.settle()
			before := m.irq.Count()
			m.mmio.Resume()
			m.settle()
			if !m.answered(t) {
				t.Fatalf("request not answered after Resume (notified meanwhile: %v)", notify)
			}
			if m.irq.Count() == before {
				t.Fatalf("no interrupt after Resume (notified meanwhile: %v)", notify)
			}
			// And the driver is told to notify of the next one.
			m.request(t)
		}
	}
}

// A pause without any capture blocks nothing: neither requests nor the host.
func testPauseAndResume[D virtio.Device, S any](t testing.TB, v *Virtio[D, S]) {
	m := v.live(t)
	for range 3 {
		m.mmio.Quiesce()
		m.mmio.Resume()
		m.settle()
		m.request(t)
	}
	if v.Host == nil {
		return
	}
	m.mmio.Quiesce()
	m.mmio.Resume()
	m.settle()
	before := m.irq.Count()
	v.Host(t, m.dev)
	m.settle()
	if m.irq.Count() == before {
		t.Error("no interrupt for what came from the host after a pause")
	}
}

// A child does what its parent would have done, children of children too, and
// the parent notices nothing.
func testRestore[D virtio.Device, S any](t testing.TB, v *Virtio[D, S]) {
	m := v.live(t)
	for range 5 {
		m.request(t)
		img := m.capture(t)
		w := m.watch()
		child := img.restore(t)
		cw := child.watch()
		child.settle()
		cw.check(t)
		w.check(t)
		equal(t, "state of a transport after a restore", child.mmio.State(), img.mmio)
		// A restore may drop what cannot be carried over, but only once.
		first := v.Save(child.dev)
		again := v.Restore(t, first)
		equal(t, "state of a device after a second restore", v.Save(again), first)
		again.Reset()

		m.mmio.Resume()
		m.settle()
		m.request(t)
		m.mmio.Quiesce()
		w = m.watch()
		child.mmio.Resume()
		child.settle()
		child.request(t)
		w.check(t)
		m.mmio.Reset()
		m = child
	}
}

// A machine captured before its driver came, or in the middle of the
// handshake, lets the driver go on.
func testRestoreCold[D virtio.Device, S any](t testing.TB, v *Virtio[D, S]) {
	m := v.cold(t).capture(t).restore(t)
	m.mmio.Resume()
	if err := m.drv.Negotiate(everything); err != nil {
		t.Fatal(err)
	}
	m = m.capture(t).restore(t)
	m.mmio.Resume()
	m.drv.SetUpQueues()
	m = m.capture(t).restore(t)
	m.mmio.Resume()
	if err := m.drv.SetStatus(virtiotest.StatusDriverOK); err != nil {
		t.Fatalf("%v; %v", err, m.mmio.Failure())
	}
	m.request(t)
}

// A request that was made but not served when the machine was captured is
// served by the child and by the parent.
func testOutstanding[D virtio.Device, S any](t testing.TB, v *Virtio[D, S]) {
	for _, features := range ringFeatures {
		m := v.cold(t)
		m.start(t, everything&^(virtio.FeatureIndirectDesc|virtio.FeatureEventIdx)|features)
		m.request(t)
		m.mmio.Quiesce()
		m.offer()
		m.drv.Kick(v.Request.Queue)
		m.settle()
		child := m.capture(t).restore(t)
		w := child.watch()
		child.drv.Notify(v.Request.Queue)
		child.settle()
		w.check(t)
		for _, m := range []*machine[D, S]{m, child} {
			before := m.irq.Count()
			m.mmio.Resume()
			m.settle()
			if !m.answered(t) {
				t.Fatalf("features %#x: request not answered", m.drv.Features)
			}
			if m.irq.Count() == before {
				t.Errorf("features %#x: no interrupt", m.drv.Features)
			}
			m.request(t)
		}
	}
}

// After a reset, whenever it comes, the device leaves the guest alone until it
// is started again, and then serves as ever.
func testReset[D virtio.Device, S any](t testing.TB, v *Virtio[D, S]) {
	m := v.cold(t)
	m.mmio.Reset()
	for i := range 20 {
		m.mem.FreeAll()
		m.start(t, everything)
		m.request(t)
		m.offer()
		if i%2 == 0 {
			m.drv.Notify(v.Request.Queue)
		}
		if i%3 == 0 && v.Host != nil {
			v.Host(t, m.dev)
		}
		if i%5 == 0 {
			m.mmio.Quiesce()
		}
		m.mmio.Reset()
		w := m.watch()
		m.dev.Notify(v.Request.Queue)
		m.mmio.Resume()
		m.settle()
		w.check(t)
	}
	m.mem.FreeAll()
	m.start(t, everything)
	m.request(t)
}

// A driver may leave queues out. The device goes without them, or says that it
// cannot.
func testSparseQueues[D virtio.Device, S any](t testing.TB, v *Virtio[D, S]) {
	n := len(v.New(t).QueueSizes())
	for _, queues := range sparse(n) {
		m := v.cold(t)
		if err := m.drv.Start(everything, queues...); err != nil {
			continue
		}
		for q := range n {
			m.dev.Notify(q)
		}
		m.settle()
		child := m.capture(t).restore(t)
		for _, m := range []*machine[D, S]{m, child} {
			m.mmio.Resume()
			m.settle()
			if v.Host != nil {
				v.Host(t, m.dev)
			}
			if m.ring() != nil {
				m.request(t)
			}
			m.mmio.Reset()
			m.settle()
		}
	}
}

// sparse returns selections out of n queues: none, each alone, and all but
// each. An index that is no queue stands for none.
func sparse(n int) [][]int {
	sets := [][]int{{-1}}
	for q := range n {
		rest := []int{-1}
		for other := range n {
			if other != q {
				rest = append(rest, other)
			}
		}
		sets = append(sets, []int{q}, rest)
	}
	return sets
}

// Every method may come at any time from any thread.
func testConcurrency[D virtio.Device, S any](t testing.TB, v *Virtio[D, S]) {
	m := v.live(t)
	var wg sync.WaitGroup
	for _, f := range []func(){
		func() { m.dev.Notify(v.Request.Queue) },
		func() { m.dev.ReadConfig(0, make([]byte, 8)) },
		func() { m.mmio.Quiesce() },
		func() { m.mmio.Resume() },
		func() { m.drv.Read(virtiotest.RegStatus) },
		func() { m.mmio.ConfigChanged() },
	} {
		wg.Go(func() {
			for range 200 {
				f()
			}
		})
	}
	wg.Go(func() {
		for range 8 {
			m.offer()
			m.drv.Notify(v.Request.Queue)
		}
		m.mmio.Reset()
	})
	wg.Wait()
	m.mmio.Resume()
	m.mem.FreeAll()
	m.start(t, everything)
	m.request(t)
}
