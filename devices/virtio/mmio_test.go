package virtio_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// fake is a device with three queues that writes down what the transport does.
type fake struct {
	act      *virtio.Activation
	refuse   error
	notified []int
	calls    []string
	config   [8]byte
}

func (f *fake) Type() uint32                    { return virtio.TypeBlock }
func (f *fake) Features() uint64                { return 1<<3 | 1<<50 }
func (f *fake) QueueSizes() []uint16            { return []uint16{8, 256, 16} }
func (f *fake) ReadConfig(off uint64, p []byte) { copyAt(p, f.config[:], off) }
func (f *fake) WriteConfig(off uint64, p []byte) {
	if off < uint64(len(f.config)) {
		copy(f.config[off:], p)
	}
}
func (f *fake) Notify(q int) { f.notified = append(f.notified, q) }
func (f *fake) Reset()       { f.act = nil; f.calls = append(f.calls, "reset") }
func (f *fake) Quiesce()     { f.calls = append(f.calls, "quiesce") }
func (f *fake) Resume()      { f.calls = append(f.calls, "resume") }
func (f *fake) Activate(a virtio.Activation) error {
	f.calls = append(f.calls, "activate")
	if f.refuse != nil {
		return f.refuse
	}
	f.act = &a
	return nil
}

func copyAt(p, from []byte, off uint64) {
	if off < uint64(len(from)) {
		copy(p, from[off:])
	}
}

type mmioTest struct {
	*virtiotest.Driver
	dev  *fake
	irq  *virtiotest.Interrupt
	mmio *virtio.MMIO
}

func newMMIOTest() *mmioTest {
	mem, dev, irq := virtiotest.NewMemory(1<<20), &fake{}, virtiotest.NewInterrupt()
	m := virtio.NewMMIO(dev, mem, irq)
	return &mmioTest{virtiotest.NewDriver(m, mem), dev, irq, m}
}

func startMMIOTest(t *testing.T, queues ...int) *mmioTest {
	t.Helper()
	m := newMMIOTest()
	if err := m.Start(^uint64(0), queues...); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mmioTest) status() uint32 { return m.Read(virtiotest.RegStatus) }

func TestMMIOIdentifiesItself(t *testing.T) {
	m := newMMIOTest()
	for off, want := range map[uint64]uint32{
		0x000: 0x74726976, 0x004: 2, 0x008: virtio.TypeBlock,
		0x0b0: 0xffffffff, 0x0b4: 0xffffffff, 0x0b8: 0xffffffff, 0x0bc: 0xffffffff,
		0x014: 0, 0x070: 0, 0x0c0: 0, 0x0f0: 0,
	} {
		if got := m.Read(off); got != want {
			t.Errorf("register %#x: %#x, want %#x", off, got, want)
		}
	}
	want := uint64(1<<3 | 1<<50 | allFeatures)
	if got := m.Offered(); got != want {
		t.Errorf("features %#x, want %#x", got, want)
	}
	m.Write(virtiotest.RegDeviceFeaturesSel, 2)
	if got := m.Read(virtiotest.RegDeviceFeatures); got != 0 {
		t.Errorf("third word of features: %#x, want 0", got)
	}
}

func TestMMIOGoesLive(t *testing.T) {
	m := startMMIOTest(t, 0, 2)
	a := m.dev.act
	if a == nil {
		t.Fatal("device not activated")
	}
	if len(a.Queues) != 3 || a.Queues[0] == nil || a.Queues[1] != nil || a.Queues[2] == nil {
		t.Errorf("queues %v, want the first and the third", a.Queues)
	}
	if a.Queues[0].NeedInterrupt() {
		t.Error("a fresh queue wants an interrupt for nothing")
	}
	if want := m.Offered(); a.Features != want {
		t.Errorf("features %#x, want %#x", a.Features, want)
	}
	for _, q := range []int{2, 0, 1, 3, -1} {
		m.Notify(q)
	}
	if want := []int{2, 0}; !slices.Equal(m.dev.notified, want) {
		t.Errorf("notified %v, want %v", m.dev.notified, want)
	}
	if got := m.mmio.Faults(); got != 3 {
		t.Errorf("%d faults, want 3 for notifications of queues that are not there", got)
	}
	m.Rings[2].Add(m.Mem.Out([]byte("x")))
	if c, err := a.Queues[2].Pop(); err != nil || c.ReadableLen() != 1 {
		t.Errorf("Pop: %v, %v", c, err)
	}
}

func TestMMIOInterrupts(t *testing.T) {
	m := startMMIOTest(t)
	m.dev.act.Interrupt.Trigger()
	if got := m.Read(virtiotest.RegInterruptStatus); got != 1 || m.irq.Count() != 1 {
		t.Errorf("status %#x after a used buffer, %d interrupts", got, m.irq.Count())
	}
	before := m.Read(virtiotest.RegConfigGeneration)
	m.dev.act.ConfigChanged()
	if got := m.Read(virtiotest.RegInterruptStatus); got != 3 || m.irq.Count() != 2 {
		t.Errorf("status %#x after a change of configuration, %d interrupts", got, m.irq.Count())
	}
	if got := m.Read(virtiotest.RegConfigGeneration); got == before {
		t.Errorf("generation still %d after a change", got)
	}
	m.Write(virtiotest.RegInterruptACK, 1)
	if got := m.Read(virtiotest.RegInterruptStatus); got != 2 {
		t.Errorf("status %#x after acknowledging 1, want 2", got)
	}
}

func TestMMIOConfigChangeBeforeDriverOKIsSilent(t *testing.T) {
	m := newMMIOTest()
	m.mmio.ConfigChanged()
	if m.irq.Count() != 0 || m.Read(virtiotest.RegInterruptStatus) != 0 {
		t.Error("interrupt for a driver that is not there yet")
	}
}

func TestMMIOHandshake(t *testing.T) {
	good := uint64(virtio.FeatureVersion1 | 1<<3)
	for _, c := range []struct {
		name     string
		features uint64
		writes   []uint32
		want     uint32
		faults   uint64
	}{
		{"step by step", good, []uint32{1, 3, 11, 15}, 15, 0},
		{"all at once", good, []uint32{15}, 15, 0},
		{"again the same", good, []uint32{1, 1, 3, 3, 11, 11, 15, 15}, 15, 0},
		{"driver first", good, []uint32{2}, 0, 1},
		{"features without driver", good, []uint32{1, 9}, 1, 1},
		{"live without features", good, []uint32{1, 3, 7}, 3, 1},
		{"bit taken back", good, []uint32{1, 3, 2}, 3, 1},
		{"unknown bit", good, []uint32{1, 3, 3 | 16}, 3, 1},
		{"needs reset by the driver", good, []uint32{1, 3 | 64}, 3, 0},
		{"without version 1", 1 << 3, []uint32{1, 3, 11}, 3, 1},
		{"feature not offered", good | 1<<4, []uint32{1, 3, 11}, 3, 1},
		{"live with refused features", 1 << 3, []uint32{1, 3, 11, 15}, 3, 2},
		{"given up", good, []uint32{1, 3, 131, 143}, 131, 1},
		{"reset", good, []uint32{1, 3, 11, 15, 0}, 0, 0},
		{"reset after giving up", good, []uint32{129, 0, 1}, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMMIOTest()
			m.WriteFeatures(c.features)
			for _, v := range c.writes {
				m.Write(virtiotest.RegStatus, v)
			}
			if got := m.status(); got != c.want {
				t.Errorf("status %#x, want %#x", got, c.want)
			}
			if got := m.mmio.Faults(); got != c.faults {
				t.Errorf("%d faults, want %d", got, c.faults)
			}
			if live := m.dev.act != nil; live != (c.want&4 != 0) {
				t.Errorf("status %#x, but device live: %v", c.want, live)
			}
		})
	}
}

func TestMMIOFeaturesAreFixedOnceAgreed(t *testing.T) {
	m := newMMIOTest()
	if err := m.Negotiate(virtio.FeatureVersion1); err != nil {
		t.Fatal(err)
	}
	m.WriteFeatures(^uint64(0))
	if err := m.SetStatus(virtiotest.StatusDriverOK); err != nil {
		t.Fatal(err)
	}
	if got := m.dev.act.Features; got != virtio.FeatureVersion1 {
		t.Errorf("features %#x, want only version 1", got)
	}
}

func TestMMIOQueueRegisters(t *testing.T) {
	m := newMMIOTest()
	for q, want := range []uint32{8, 256, 16, 0, 0} {
		m.Write(virtiotest.RegQueueSel, uint32(q))
		if got := m.Read(virtiotest.RegQueueNumMax); got != want {
			t.Errorf("queue %d: largest size %d, want %d", q, got, want)
		}
	}
	m.Write(virtiotest.RegQueueSel, 0)
	m.Write(virtiotest.RegQueueNum, 4)
	m.Write(virtiotest.RegQueueNum, 9) // more than there is: ignored
	m.Write(virtiotest.RegQueueDesc, 0x1000)
	m.Write(virtiotest.RegQueueDesc+4, 0x1)
	m.Write(virtiotest.RegQueueReady, 1)
	m.Write(virtiotest.RegQueueDesc, 0x2000) // too late
	if got := m.Read(virtiotest.RegQueueReady); got != 1 {
		t.Errorf("QueueReady %d, want 1", got)
	}
	want := virtio.QueueState{MaxSize: 8, Size: 4, Ready: true, Desc: 0x1_0000_1000}
	if got := m.mmio.State().Queues[0]; got != want {
		t.Errorf("queue %+v, want %+v", got, want)
	}
	if got := m.mmio.Faults(); got != 2 {
		t.Errorf("%d faults, want 2", got)
	}
	m.Write(virtiotest.RegQueueReady, 0)
	m.Write(virtiotest.RegQueueDesc, 0x2000)
	if got := m.mmio.State().Queues[0].Desc; got != 0x1_0000_2000 {
		t.Errorf("table at %#x after the queue was taken back", got)
	}
}

// Whatever makes service impossible ends in DEVICE_NEEDS_RESET, an interrupt
// and, after the reset, a device as good as new.
func TestMMIONeedsReset(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(t *testing.T, m *mmioTest)
	}{
		{"device refuses", func(t *testing.T, m *mmioTest) {
			m.dev.refuse = errors.New("no")
			m.Start(allFeatures)
			m.dev.refuse = nil
		}},
		{"ring is not RAM", func(t *testing.T, m *mmioTest) {
			m.Negotiate(allFeatures)
			m.SetUpQueues(0)
			m.Write(virtiotest.RegQueueSel, 0)
			m.Write(virtiotest.RegQueueReady, 0)
			m.Write(virtiotest.RegQueueDevice+4, 1)
			m.Write(virtiotest.RegQueueReady, 1)
			m.SetStatus(virtiotest.StatusDriverOK)
		}},
		{"queue of no size", func(t *testing.T, m *mmioTest) {
			m.Negotiate(allFeatures)
			m.Write(virtiotest.RegQueueReady, 1)
			m.SetStatus(virtiotest.StatusDriverOK)
		}},
		{"queue broken", func(t *testing.T, m *mmioTest) {
			m.Start(allFeatures)
			m.Rings[1].SetAvailIdx(1000)
			m.dev.act.Queues[1].Pop()
		}},
		{"queue stopped while live", func(t *testing.T, m *mmioTest) {
			m.Start(allFeatures)
			m.Write(virtiotest.RegQueueSel, 1)
			m.Write(virtiotest.RegQueueReady, 0)
			if m.dev.act != nil || m.Read(virtiotest.RegQueueReady) != 0 {
				t.Error("the device goes on with a queue that was stopped")
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMMIOTest()
			c.do(t, m)
			if s := m.status(); s&virtiotest.StatusNeedsReset == 0 || s&virtiotest.StatusDriverOK == 0 {
				t.Errorf("status %#x, want live and in need of a reset", s)
			}
			if m.Read(virtiotest.RegInterruptStatus)&2 == 0 || m.irq.Count() == 0 {
				t.Error("driver was not interrupted")
			}
			if m.mmio.Failure() == nil {
				t.Error("no reason given")
			}
			if err := m.Start(allFeatures); err != nil {
				t.Errorf("after a reset: %v", err)
			}
		})
	}
}

func TestMMIOAccessWidths(t *testing.T) {
	m := newMMIOTest()
	for _, c := range []struct{ off, n uint64 }{{0, 1}, {0, 2}, {0, 8}, {0, 0}, {2, 4}, {0xfc, 8}, {0xfe, 4}} {
		p := bytes.Repeat([]byte{0xaa}, int(c.n))
		m.mmio.Read(c.off, p)
		if !bytes.Equal(p, make([]byte, c.n)) {
			t.Errorf("read of %d bytes at %#x: % x, want zeros", c.n, c.off, p)
		}
		m.mmio.Write(virtiotest.RegStatus+c.off%4, bytes.Repeat([]byte{1}, int(c.n&^4)))
	}
	if got := m.status(); got != 0 {
		t.Errorf("status %#x after writes of wrong width", got)
	}
	copy(m.dev.config[:], "abcdefgh")
	for _, n := range []int{1, 2, 4, 8} {
		p := make([]byte, n)
		m.mmio.Read(virtiotest.RegConfig, p)
		if want := "abcdefgh"[:n]; string(p) != want {
			t.Errorf("configuration by %d bytes: %q, want %q", n, p, want)
		}
	}
	p := []byte{1, 2}
	if m.mmio.Read(virtiotest.RegConfig+7, p); string(p) != "h\x00" {
		t.Errorf("read over the end of configuration space: %q", p)
	}
	m.mmio.Write(virtiotest.RegConfig+2, []byte("XY"))
	if got := string(m.dev.config[:]); got != "abXYefgh" {
		t.Errorf("configuration %q after a write", got)
	}
}

// A transport restored in the middle of the handshake lets the driver go on.
func TestMMIOStateInTheMiddleOfTheHandshake(t *testing.T) {
	m := newMMIOTest()
	m.Write(virtiotest.RegStatus, 1)
	m.Write(virtiotest.RegStatus, 3)
	m.Write(virtiotest.RegDriverFeaturesSel, 1)
	m.Write(virtiotest.RegDriverFeatures, 1)
	m = m.restored(t)
	m.Write(virtiotest.RegStatus, 11)
	m.Write(virtiotest.RegQueueSel, 2)
	m = m.restored(t)
	if m.dev.act != nil {
		t.Error("device live before DRIVER_OK")
	}
	if got := m.Read(virtiotest.RegQueueNumMax); got != 16 {
		t.Errorf("largest size of the selected queue %d, want 16", got)
	}
	m.Write(virtiotest.RegStatus, 15)
	if m.status() != 15 || m.dev.act == nil || m.dev.act.Features != virtio.FeatureVersion1 {
		t.Errorf("status %#x, device %+v", m.status(), m.dev.act)
	}
}

// restored returns m's machine as a restore makes it.
func (m *mmioTest) restored(t *testing.T) *mmioTest {
	t.Helper()
	m.mmio.Quiesce()
	st := m.mmio.State()
	mem, dev, irq := m.Mem.Fork(), &fake{}, virtiotest.NewInterrupt()
	r, err := virtio.RestoreMMIO(dev, mem, irq, st)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.State(); !reflect.DeepEqual(got, st) {
		t.Errorf("state %+v after a restore, want %+v", got, st)
	}
	return &mmioTest{m.Fork(r, mem), dev, irq, r}
}

func TestMMIOStateOfALiveDevice(t *testing.T) {
	m := startMMIOTest(t, 0, 2)
	m.Rings[2].Add(m.Mem.In(1))
	c, err := m.dev.act.Queues[2].Pop()
	if err != nil {
		t.Fatal(err)
	}
	m.dev.act.Queues[2].Push(c.Head, 1)
	m.mmio.ConfigChanged()
	m.AckInterrupt()
	m.dev.act.Interrupt.Trigger()

	r := m.restored(t)
	if want := []string{"activate"}; !slices.Equal(r.dev.calls, want) {
		t.Fatalf("calls %v, want %v", r.dev.calls, want)
	}
	if r.irq.Count() != 0 {
		t.Error("restoring raised an interrupt")
	}
	if got := r.AckInterrupt(); got != 1 {
		t.Errorf("interrupt status %#x, want 1", got)
	}
	if u, ok := r.Rings[2].Take(); !ok || u.Len != 1 {
		t.Errorf("used buffer is gone: %+v, %v", u, ok)
	}
	r.Rings[2].Add(r.Mem.In(1))
	if c, err := r.dev.act.Queues[2].Pop(); err != nil || c == nil {
		t.Errorf("Pop after a restore: %v, %v", c, err)
	}
	if r.dev.act.Queues[1] != nil {
		t.Error("the queue that was left out is there after a restore")
	}
	r.mmio.Resume()
	if want := []string{"activate", "resume"}; !slices.Equal(r.dev.calls, want) {
		t.Errorf("calls %v, want %v", r.dev.calls, want)
	}
	// And a reset starts from nothing.
	if err := r.Start(allFeatures); err != nil {
		t.Fatal(err)
	}
	r.Rings[2].Add(r.Mem.In(1))
	if c, err := r.dev.act.Queues[2].Pop(); err != nil || c == nil {
		t.Errorf("Pop after a reset: %v, %v", c, err)
	}
}

func TestMMIOStateIsPlain(t *testing.T) {
	want := startMMIOTest(t, 1).mmio.State()
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got virtio.MMIOState
	if err := json.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v after encoding, want %+v", got, err, want)
	}
}

func TestMMIORefusesImpossibleState(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*virtio.MMIOState)
	}{
		{"another device", func(s *virtio.MMIOState) { s.DeviceType = virtio.TypeNet }},
		{"unknown status bit", func(s *virtio.MMIOState) { s.Status |= 32 }},
		{"handshake with a gap", func(s *virtio.MMIOState) { s.Status &^= 2 }},
		{"active before DRIVER_OK", func(s *virtio.MMIOState) { s.Status = 11 }},
		{"feature not offered", func(s *virtio.MMIOState) { s.DriverFeatures |= 1 << 4 }},
		{"no version 1", func(s *virtio.MMIOState) { s.DriverFeatures &^= virtio.FeatureVersion1 }},
		{"unknown interrupt", func(s *virtio.MMIOState) { s.InterruptStatus = 4 }},
		{"queue missing", func(s *virtio.MMIOState) { s.Queues = s.Queues[:2] }},
		{"queue too many", func(s *virtio.MMIOState) { s.Queues = append(s.Queues, s.Queues[0]) }},
		{"other largest size", func(s *virtio.MMIOState) { s.Queues[0].MaxSize = 16 }},
		{"size too large", func(s *virtio.MMIOState) { s.Queues[0].Size = 16 }},
		{"size not a power of two", func(s *virtio.MMIOState) { s.Queues[0].Size = 7 }},
		{"ring not RAM", func(s *virtio.MMIOState) { s.Queues[0].Desc = 1 << 50 }},
		{"impossible indices", func(s *virtio.MMIOState) { s.Queues[0].NextAvail = 9 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := startMMIOTest(t)
			st := m.mmio.State()
			c.edit(&st)
			dev := &fake{}
			if _, err := virtio.RestoreMMIO(dev, m.Mem, m.irq, st); err == nil {
				t.Errorf("accepted %+v", st)
			}
			if len(dev.calls) != 0 {
				t.Errorf("device was told %v", dev.calls)
			}
		})
	}
}

func TestMMIOResetEndsService(t *testing.T) {
	m := startMMIOTest(t)
	m.mmio.Reset()
	if m.dev.act != nil || m.status() != 0 {
		t.Error("device live after Reset")
	}
	if st := m.mmio.State(); st.Active || st.Queues[0].Ready || st.DriverFeatures != 0 {
		t.Errorf("state %+v after Reset", st)
	}
}
