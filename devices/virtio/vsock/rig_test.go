package vsock

import (
	"encoding/binary"
	"testing"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

const (
	rxBufferSize = 3776 // what Linux 6.12 has in a page
	ringFeatures = virtio.FeatureVersion1 | virtio.FeatureIndirectDesc | virtio.FeatureEventIdx
)

// rig is the driver of a device, without sockets: packets go in and out by
// hand. It is used by one goroutine at a time.
type rig struct {
	dev  *Device
	mmio *virtio.MMIO
	irq  *virtiotest.Interrupt
	drv  *virtiotest.Driver

	rx     map[uint16]virtiotest.Buffer // by head
	events map[uint16]virtiotest.Buffer
	txFree []slot
	txBusy map[uint16]slot
}

// slot is memory for one TX packet.
type slot struct{ header, payload virtiotest.Buffer }

// newRig makes a device and a driver that has not started it.
func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	dev, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	mem, irq := virtiotest.NewMemory(6<<20), virtiotest.NewInterrupt()
	mmio := virtio.NewMMIO(dev, mem, irq)
	return &rig{dev: dev, mmio: mmio, irq: irq, drv: virtiotest.NewDriver(mmio, mem)}
}

// start brings the device up with nbufs RX buffers.
func (r *rig) start(t testing.TB, features uint64, nbufs int) {
	t.Helper()
	if err := r.drv.Start(features); err != nil {
		t.Fatal(err)
	}
	r.rx = make(map[uint16]virtiotest.Buffer)
	r.events = make(map[uint16]virtiotest.Buffer)
	r.txBusy = make(map[uint16]slot)
	if r.txFree == nil {
		for range 32 {
			r.txFree = append(r.txFree, slot{r.drv.Mem.Out(make([]byte, headerSize)), r.drv.Mem.Out(make([]byte, maxPayload))})
		}
	}
	r.addRX(nbufs)
	r.addEvents(8)
}

func (r *rig) addRX(n int) {
	for range n {
		r.offerRX(r.drv.Mem.In(rxBufferSize))
	}
	r.drv.Kick(queueRX)
}

func (r *rig) offerRX(b virtiotest.Buffer) { r.rx[r.drv.Rings[queueRX].Add(b)] = b }

func (r *rig) addEvents(n int) {
	for range n {
		b := r.drv.Mem.In(eventSize)
		r.events[r.drv.Rings[queueEvent].Add(b)] = b
	}
	r.drv.Kick(queueEvent)
}

// hdr is the header of a packet from the guest's port to the host's.
func hdr(op uint16, guestPort, hostPort uint32) header {
	return header{
		srcCID: 3, dstCID: HostCID, srcPort: guestPort, dstPort: hostPort,
		typ: typeStream, op: op, bufAlloc: 256 << 10,
	}
}

// send queues a TX packet and notifies. It tells whether there was room.
func (r *rig) send(h header, payload []byte) bool {
	r.reap()
	if len(r.txFree) == 0 {
		return false
	}
	h.len = uint32(len(payload))
	var b [headerSize]byte
	h.encode(&b)
	r.sendRaw(b[:], payload)
	return true
}

// sendRaw queues any bytes. There must be room.
func (r *rig) sendRaw(head, payload []byte) {
	s := r.txFree[len(r.txFree)-1]
	r.txFree = r.txFree[:len(r.txFree)-1]
	ram := r.drv.Mem.RAM()
	copy(ram[s.header.GPA:], head)
	copy(ram[s.payload.GPA:], payload)
	bufs := []virtiotest.Buffer{{GPA: s.header.GPA, Len: uint32(len(head))}}
	if len(payload) > 0 {
		bufs = append(bufs, virtiotest.Buffer{GPA: s.payload.GPA, Len: uint32(len(payload))})
	}
	r.txBusy[r.drv.Rings[queueTX].Add(bufs...)] = s
	r.drv.Kick(queueTX)
}

// reap takes back the TX packets that the device has consumed.
func (r *rig) reap() {
	for {
		u, ok := r.drv.Rings[queueTX].Take()
		if !ok {
			return
		}
		r.txFree = append(r.txFree, r.txBusy[u.Head])
		delete(r.txBusy, u.Head)
	}
}

// take takes an RX packet without giving the buffer back.
func (r *rig) take() (h header, payload []byte, b virtiotest.Buffer, ok bool) {
	u, ok := r.drv.Rings[queueRX].Take()
	if !ok {
		return h, nil, b, false
	}
	b = r.rx[u.Head]
	delete(r.rx, u.Head)
	if len(u.In) < headerSize {
		return h, nil, b, true
	}
	h.decode((*[headerSize]byte)(u.In))
	return h, u.In[headerSize:], b, true
}

// recv takes an RX packet and gives its buffer back.
func (r *rig) recv() (h header, payload []byte, ok bool) {
	h, payload, b, ok := r.take()
	if ok {
		r.offerRX(b)
		r.drv.Kick(queueRX)
	}
	return h, payload, ok
}

// want takes an RX packet, which must be there and have op.
func (r *rig) want(t testing.TB, op uint16) (header, []byte) {
	t.Helper()
	h, payload, ok := r.recv()
	if !ok {
		t.Fatalf("no packet, want op %d", op)
	}
	if h.op != op {
		t.Fatalf("packet %+v, want op %d", h, op)
	}
	if h.len != uint32(len(payload)) {
		t.Fatalf("packet %+v with %d bytes", h, len(payload))
	}
	if h.dstCID != 3 || h.srcCID != HostCID || h.typ != typeStream {
		t.Fatalf("packet %+v: wrong addresses or type", h)
	}
	return h, payload
}

// wantNone fails if there is an RX packet.
func (r *rig) wantNone(t testing.TB) {
	t.Helper()
	if h, _, ok := r.recv(); ok {
		t.Fatalf("packet %+v, want none", h)
	}
}

// takeEvent takes an event without giving the buffer back.
func (r *rig) takeEvent() (id uint32, b virtiotest.Buffer, ok bool) {
	u, ok := r.drv.Rings[queueEvent].Take()
	if !ok {
		return 0, b, false
	}
	b = r.events[u.Head]
	delete(r.events, u.Head)
	return binary.LittleEndian.Uint32(u.In), b, true
}

// offerEvent gives an event buffer to the device.
func (r *rig) offerEvent(b virtiotest.Buffer) {
	r.events[r.drv.Rings[queueEvent].Add(b)] = b
	r.drv.Kick(queueEvent)
}

// fork captures the quiet device and restores a child. Nothing else may use r
// meanwhile.
func (r *rig) fork(t testing.TB) *rig {
	t.Helper()
	st, ms := r.dev.Save(), r.mmio.State()
	dev, err := Restore(r.dev.cfg, st)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	mem, irq := r.drv.Mem.Fork(), virtiotest.NewInterrupt()
	mmio, err := virtio.RestoreMMIO(dev, mem, irq, ms)
	if err != nil {
		t.Fatal(err)
	}
	c := &rig{
		dev: dev, mmio: mmio, irq: irq, drv: r.drv.Fork(mmio, mem),
		rx: clone(r.rx), events: clone(r.events), txBusy: clone(r.txBusy),
		txFree: append([]slot(nil), r.txFree...),
	}
	return c
}

func clone[K comparable, V any](m map[K]V) map[K]V {
	c := make(map[K]V, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}
