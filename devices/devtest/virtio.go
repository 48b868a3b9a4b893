// Package devtest is the conformance suite of devices, in the manner of
// testing/fstest: [TestVirtio] for those behind a virtio transport, [TestBus]
// for those that sit on a bus themselves, and a fuzz target for each.
//
// The tests run in testing/synctest bubbles: time stands still and "nothing
// more happens" is a fact, not a guess. What a device is given for its host
// side must therefore live in the process: channels and conditions, no sockets.
package devtest

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// Virtio tells the suite how to handle a device of type D with state S.
type Virtio[D virtio.Device, S any] struct {
	// New makes a cold device. What it needs to stop is for t.Cleanup.
	New func(t testing.TB) D

	// Save is the state of a quiet device.
	Save func(D) S

	// Restore makes a device from a state, quiet until Resume.
	Restore func(t testing.TB, s S) D

	// Request is one that the device answers at once, by itself, any number
	// of times.
	Request Request

	// Prime, if not nil, is called when the driver has started, to make the
	// buffers available that the device needs for what comes from its host
	// side. It leaves the queue of Request alone.
	Prime func(d *virtiotest.Driver)

	// Host, if not nil, makes the host side have something for the guest, to
	// be answered by at least one interrupt of a device that was primed. It
	// does not block.
	Host func(t testing.TB, dev D)
}

// Request is a request as the driver makes it.
type Request struct {
	Queue int
	Out   []byte // what the device reads
	In    int    // room for what it writes, in bytes

	// Check, if not nil, looks at what the device wrote.
	Check func(in []byte) error
}

// machine is a device with all that a guest would be.
type machine[D virtio.Device, S any] struct {
	v    *Virtio[D, S]
	dev  D
	mem  *virtiotest.Memory
	irq  *virtiotest.Interrupt
	mmio *virtio.MMIO
	drv  *virtiotest.Driver
}

// everything is more than any device offers.
const everything = ^uint64(0)

// TestVirtio runs the suite.
func TestVirtio[D virtio.Device, S any](t *testing.T, v Virtio[D, S]) {
	for _, c := range []struct {
		name string
		test func(t testing.TB, v *Virtio[D, S])
	}{
		{"Properties", testProperties[D, S]},
		{"Requests", testRequests[D, S]},
		{"Quiesce", testQuiesce[D, S]},
		{"SwallowedNotification", testSwallowedNotification[D, S]},
		{"PauseAndResume", testPauseAndResume[D, S]},
		{"Restore", testRestore[D, S]},
		{"RestoreCold", testRestoreCold[D, S]},
		{"RequestOutstandingAtCapture", testOutstanding[D, S]},
		{"Reset", testReset[D, S]},
		{"SparseQueues", testSparseQueues[D, S]},
		{"Concurrency", testConcurrency[D, S]},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.test(t, &v) })
		})
	}
	t.Run("HostileDriver", func(t *testing.T) { testHostile(t, &v) })
}

// ramSize is enough for what a test asks of one machine.
const ramSize = 512 << 10

// cold makes a machine whose driver has not come yet.
func (v *Virtio[D, S]) cold(t testing.TB) *machine[D, S] { return v.machine(t, ramSize) }

func (v *Virtio[D, S]) machine(t testing.TB, ram int) *machine[D, S] {
	m := &machine[D, S]{v: v, dev: v.New(t), mem: virtiotest.NewMemory(ram), irq: virtiotest.NewInterrupt()}
	m.mmio = virtio.NewMMIO(m.dev, m.mem, m.irq)
	m.drv = virtiotest.NewDriver(m.mmio, m.mem)
	t.Cleanup(m.mmio.Reset)
	return m
}

// live makes a machine whose driver has started.
func (v *Virtio[D, S]) live(t testing.TB) *machine[D, S] {
	t.Helper()
	m := v.cold(t)
	m.start(t, everything)
	return m
}

func (m *machine[D, S]) start(t testing.TB, features uint64, queues ...int) {
	t.Helper()
	if err := m.drv.Start(features, queues...); err != nil {
		t.Fatalf("the device does not start: %v; %v", err, m.mmio.Failure())
	}
	if m.v.Prime != nil && len(queues) == 0 {
		m.v.Prime(m.drv)
	}
	m.settle()
}

// settle returns when the device has nothing left to do.
func (m *machine[D, S]) settle() { synctest.Wait() }

// ring is the queue of the request.
func (m *machine[D, S]) ring() *virtiotest.Ring { return m.drv.Rings[m.v.Request.Queue] }

// offer makes a request available without telling the device.
func (m *machine[D, S]) offer() {
	var bufs []virtiotest.Buffer
	if r := m.v.Request; len(r.Out) > 0 {
		bufs = append(bufs, m.mem.Out(r.Out))
	}
	if n := m.v.Request.In; n > 0 {
		bufs = append(bufs, m.mem.In(n))
	}
	m.ring().Add(bufs...)
}

// answered tells whether the device has answered a request, and checks it.
func (m *machine[D, S]) answered(t testing.TB) bool {
	t.Helper()
	u, ok := m.ring().Take()
	if !ok {
		return false
	}
	if check := m.v.Request.Check; check != nil {
		if err := check(u.In); err != nil {
			t.Errorf("answer to a request: %v", err)
		}
	}
	return true
}

// request makes a request and fails unless the device answers it.
func (m *machine[D, S]) request(t testing.TB) {
	t.Helper()
	m.offer()
	m.drv.Kick(m.v.Request.Queue)
	m.settle()
	if !m.answered(t) {
		t.Fatalf("request not answered; features %#x, status %#x; %v", m.drv.Features, m.drv.Read(virtiotest.RegStatus), m.mmio.Failure())
	}
}

// image is a machine that was captured.
type image[D virtio.Device, S any] struct {
	of    *machine[D, S]
	state S
	mmio  virtio.MMIOState
	mem   *virtiotest.Memory
	drv   *virtiotest.Driver
}

// capture takes the state of m, which stays quiet.
func (m *machine[D, S]) capture(t testing.TB) image[D, S] {
	t.Helper()
	m.mmio.Quiesce()
	mem := m.mem.Fork()
	i := image[D, S]{of: m, state: m.v.Save(m.dev), mmio: m.mmio.State(), mem: mem, drv: m.drv.Fork(nil, mem)}
	plain(t, i.state)
	plain(t, i.mmio)
	return i
}

// restore makes a child, which stays quiet.
func (i image[D, S]) restore(t testing.TB) *machine[D, S] {
	t.Helper()
	m := &machine[D, S]{v: i.of.v, dev: i.of.v.Restore(t, i.state), mem: i.mem.Fork(), irq: virtiotest.NewInterrupt()}
	mmio, err := virtio.RestoreMMIO(m.dev, m.mem, m.irq, i.mmio)
	if err != nil {
		t.Fatalf("a state that was just taken: %v", err)
	}
	m.mmio, m.drv = mmio, i.drv.Fork(mmio, m.mem)
	t.Cleanup(mmio.Reset)
	return m
}

// plain fails unless a state is a plain value, which survives encoding.
func plain[S any](t testing.TB, want S) {
	t.Helper()
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatalf("state %T does not encode: %v", want, err)
	}
	var got S
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("state %T does not decode: %v", want, err)
	}
	equal(t, "state after encoding and decoding", got, want)
}

// quiet watches a machine that must not stir.
type quiet[D virtio.Device, S any] struct {
	m          *machine[D, S]
	ram        []byte
	interrupts int
	slices     int
}

// watch begins to watch a machine once it has settled.
func (m *machine[D, S]) watch() quiet[D, S] {
	m.settle()
	return quiet[D, S]{m, bytes.Clone(m.mem.RAM()), m.irq.Count(), m.mem.Slices()}
}

// check fails if the device has touched memory or raised an interrupt. It
// overwrites all memory meanwhile, so that the race detector sees a device
// that only reads.
func (q quiet[D, S]) check(t testing.TB) {
	t.Helper()
	ram := q.m.mem.RAM()
	if !bytes.Equal(ram, q.ram) {
		t.Errorf("device wrote to guest memory")
	}
	for i := range ram {
		ram[i] ^= 0xff
	}
	q.m.settle()
	for i := range ram {
		ram[i] ^= 0xff
	}
	if !bytes.Equal(ram, q.ram) {
		t.Errorf("device wrote to guest memory")
	}
	if n := q.m.irq.Count() - q.interrupts; n != 0 {
		t.Errorf("device raised %d interrupts", n)
	}
	if n := q.m.mem.Slices() - q.slices; n != 0 {
		t.Errorf("device looked up guest memory %d times", n)
	}
}

// equal fails unless two states are the same.
func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}
