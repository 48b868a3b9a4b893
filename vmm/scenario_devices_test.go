package vmm

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// handDriver drives a virtio device of a machine from the host, in the guest's
// memory and in the guest's place. Its queues are those of section 2.7 of the
// virtio specification, of 8 entries each.
type handDriver struct {
	t    *testing.T
	vm   *VM
	slot int
}

const (
	handQueueSize = 8
	handQueues    = 0x1000000 // a page for each queue of each device
	handAvail     = 0x100     // offsets into it
	handUsed      = 0x200
	handBuffers   = 0x1100000 // a page for each queue of each device
)

func (d handDriver) queue(q int) uint64  { return handQueues + uint64(d.slot*8+q)*pageSize }
func (d handDriver) buffer(q int) uint64 { return handBuffers + uint64(d.slot*8+q)*pageSize }

func (d handDriver) write(register uint64, v uint32) {
	d.vm.mmio.Write(virtioAddr(d.slot)+register, binary.LittleEndian.AppendUint32(nil, v))
}

func (d handDriver) read(register uint64) uint32 {
	var p [4]byte
	d.vm.mmio.Read(virtioAddr(d.slot)+register, p[:])
	return binary.LittleEndian.Uint32(p[:])
}

// start brings the device up with the queues given and no others.
func (d handDriver) start(queues ...int) {
	d.t.Helper()
	status := uint32(0)
	set := func(bit uint32) {
		d.t.Helper()
		status |= bit
		d.write(virtiotest.RegStatus, status)
		if got := d.read(virtiotest.RegStatus); got != status {
			d.t.Fatalf("device %d: status %#x, want %#x", d.slot, got, status)
		}
	}
	d.write(virtiotest.RegStatus, 0)
	set(virtiotest.StatusAcknowledge)
	set(virtiotest.StatusDriver)
	d.write(virtiotest.RegDriverFeaturesSel, 1)
	d.write(virtiotest.RegDriverFeatures, uint32(virtio.FeatureVersion1>>32))
	set(virtiotest.StatusFeaturesOK)
	for _, q := range queues {
		d.write(virtiotest.RegQueueSel, uint32(q))
		d.write(virtiotest.RegQueueNum, handQueueSize)
		for register, at := range map[uint64]uint64{
			virtiotest.RegQueueDesc: 0, virtiotest.RegQueueDriver: handAvail, virtiotest.RegQueueDevice: handUsed,
		} {
			d.write(register, uint32(d.queue(q)+at))
			d.write(register+4, 0)
		}
		d.write(virtiotest.RegQueueReady, 1)
	}
	set(virtiotest.StatusDriverOK)
}

// offer gives the device its nth buffer of that queue, to write n bytes to.
func (d handDriver) offer(q, nth int, n uint32) {
	d.t.Helper()
	le := binary.LittleEndian
	ring, err := d.vm.mem.Slice(d.queue(q), pageSize)
	if err != nil {
		d.t.Fatal(err)
	}
	i := nth % handQueueSize
	desc := ring[16*i:]
	le.PutUint64(desc, d.buffer(q))
	le.PutUint32(desc[8:], n)
	le.PutUint16(desc[12:], virtiotest.DescWrite)
	avail := ring[handAvail:]
	le.PutUint16(avail[4+2*i:], uint16(i))
	le.PutUint16(avail[2:], uint16(nth+1))
	d.write(virtiotest.RegQueueNotify, uint32(q))
}

// used is how many buffers of a queue the device of a machine gave back, and
// what is in the buffer.
func (d handDriver) used(vm *VM, q int) (n uint16, buffer []byte) {
	d.t.Helper()
	p, err := vm.mem.Slice(d.queue(q)+handUsed, 4)
	if err != nil {
		d.t.Fatal(err)
	}
	if buffer, err = vm.mem.Slice(d.buffer(q), pageSize); err != nil {
		d.t.Fatal(err)
	}
	return binary.LittleEndian.Uint16(p[2:]), buffer
}

// Queues of the socket device, section 5.10.2, and of the balloon, 5.5.2.
const (
	vsockRX, vsockTX, vsockEvent = 0, 1, 2
	balloonInflate               = 0
	balloonReport                = 2
)

// TestScenarioM18ResetReachesTheRightQueue looks at what a restored socket
// device tells a driver: that its connections are gone, in the event queue, by
// an interrupt that the restored controllers see. The parent is told nothing,
// nor is a driver without that queue.
func TestScenarioM18ResetReachesTheRightQueue(t *testing.T) {
	vm := startMicro(t, guestCounter, withoutSpare)
	awaitCounter(t, vm, 1)
	pause(t, vm)
	d := handDriver{t, vm, slotVsock}
	for _, withEvents := range []bool{true, false} {
		queues := []int{vsockRX, vsockTX}
		if withEvents {
			queues = append(queues, vsockEvent)
		}
		d.start(queues...)
		_, event := d.used(vm, vsockEvent)
		copy(event, "unwritten")
		d.offer(vsockRX, 0, 256)
		if withEvents {
			d.offer(vsockEvent, 0, 8)
		}
		var child *VM
		r := traceDuring(t, func(r *ioctlTrace) {
			child = forks(t, vm, 1)[0]
			r.awaitCall(t, child, entry)
		})
		pause(t, child)
		raised := first(r.of(child), callWith("KVM_IRQ_LINE", virtioGSI(slotVsock)))
		if n, p := d.used(child, vsockEvent); withEvents && (n != 1 || binary.LittleEndian.Uint32(p) != 0) {
			t.Errorf("the child's event queue has %d events, the first % x; want VIRTIO_VSOCK_EVENT_TRANSPORT_RESET", n, p[:8])
		}
		if chips := last(r.of(child), call("KVM_SET_IRQCHIP")); withEvents && raised < chips {
			t.Errorf("the interrupt is number %d, the interrupt controllers are set at %d", raised, chips)
		}
		if !withEvents && raised >= 0 {
			t.Error("an interrupt for a driver without an event queue")
		}
		for _, q := range []int{vsockRX, vsockTX} {
			if n, _ := d.used(child, q); n != 0 {
				t.Errorf("the child's queue %d has %d buffers", q, n)
			}
		}
		if n, p := d.used(vm, vsockEvent); n != 0 || !bytes.HasPrefix(p, []byte("unwritten")) {
			t.Errorf("the parent is told of a reset: %d events, % x", n, p[:8])
		}
	}
}

// TestScenarioM18SparseQueues has drivers that use some queues of the balloon
// and not those before. A request in the last is served there by the device of
// a child, which was not told of it.
func TestScenarioM18SparseQueues(t *testing.T) {
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 1)
	pause(t, vm)
	d := handDriver{t, vm, slotBalloon}
	for _, queues := range [][]int{{balloonReport}, {balloonInflate, balloonReport}} {
		d.start(queues...)
		d.offer(balloonReport, 0, pageSize)
		child := forks(t, vm, 1)[0]
		awaitMemory(t, child, func() bool { n, _ := d.used(child, balloonReport); return n == 1 })
		if n, _ := d.used(child, balloonInflate); n != 0 {
			t.Errorf("queues %v: %d buffers of another queue came back", queues, n)
		}
	}
}

// TestScenarioM21DevicesWriteTheMemoryThatIsCaptured has a device write to
// guest memory before each of a number of captures: the first, which finds all
// of memory new, and later ones, which look for what was written since.
func TestScenarioM21DevicesWriteTheMemoryThatIsCaptured(t *testing.T) {
	vm := startMicro(t, guestHalt)
	d := handDriver{t, vm, slotRNG}
	d.start(0)
	var before []byte
	for nth := range 5 {
		d.offer(0, nth, 64)
		n, now := d.used(vm, 0)
		if n != uint16(nth+1) || bytes.Equal(now[:64], before) {
			t.Fatalf("the device gave %d buffers of %d back: % x", n, nth+1, now[:64])
		}
		before = bytes.Clone(now[:64])
		child := forks(t, vm, 1)[0]
		if n, got := d.used(child, 0); n != uint16(nth+1) || !bytes.Equal(got[:64], before) {
			t.Errorf("capture %d: the child's ring has %d buffers, the device's bytes are % x, want % x", nth, n, got[:64], before)
		}
		vm = child
		d.vm = child
	}
}

// TestScenarioM15UnconsumedBuffersAreSeen leaves a buffer in a queue of which
// the device was not told, as a guest stopped between the two does. A child's
// device finds it.
func TestScenarioM15UnconsumedBuffersAreSeen(t *testing.T) {
	vm := startMicro(t, guestHalt)
	d := handDriver{t, vm, slotRNG}
	d.start(0)
	pause(t, vm) // the device is quiet: it does not look
	d.offer(0, 0, 64)
	if n, _ := d.used(vm, 0); n != 0 {
		t.Fatal("a paused device served a request")
	}
	child := forks(t, vm, 1)[0]
	awaitMemory(t, child, func() bool { n, _ := d.used(child, 0); return n == 1 })
	if n, _ := d.used(vm, 0); n != 0 {
		t.Error("the paused parent's device served a request")
	}
	resume(t, vm)
	awaitMemory(t, vm, func() bool { n, _ := d.used(vm, 0); return n == 1 })
	_, one := d.used(vm, 0)
	_, other := d.used(child, 0)
	if bytes.Equal(one[:64], other[:64]) {
		t.Error("parent and child got the same random bytes")
	}
}

// TestScenarioP03ClockChipTellsTheTime reads the clock that kernels with a CMOS
// driver wait for.
func TestScenarioP03ClockChipTellsTheTime(t *testing.T) {
	vm := startMicro(t, guestHalt)
	for name, m := range map[string]*VM{"parent": vm, "child": forks(t, vm, 1)[0]} {
		register := func(index byte) int {
			m.pio.Write(rtcPort, []byte{index})
			var p [1]byte
			m.pio.Read(rtcPort+1, p[:])
			return int(p[0]>>4)*10 + int(p[0]&15) // BCD
		}
		read := func() time.Time {
			return time.Date(2000+register(9), time.Month(register(8)), register(7), register(4), register(2), register(0), 0, time.UTC)
		}
		before := time.Now().UTC().Truncate(time.Second)
		now := read()
		for again := read(); again != now; now, again = again, read() { // a second passed between two registers
		}
		if after := time.Now(); now.Before(before) || now.After(after) {
			t.Errorf("%s: the clock says %v, between %v and %v", name, now, before, after)
		}
	}
}

// TestInterruptsAtOnceAreEdges triggers one line from several goroutines. Each
// interrupt is an edge of its own: a device that serves several requests at a
// time would lose one otherwise, and its guest wait for ever.
func TestInterruptsAtOnceAreEdges(t *testing.T) {
	vm := startMicro(t, guestCounter)
	line := vm.env().line(virtioGSI(slotRNG))
	const goroutines, each = 4, 200
	r := traceDuring(t, func(*ioctlTrace) {
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				for range each {
					line.Trigger()
				}
			})
		}
		wg.Wait()
	})
	n := 0
	for _, c := range r.of(vm) {
		if !callWith("KVM_IRQ_LINE", virtioGSI(slotRNG)).matches(c) {
			continue
		}
		if want := uint64(1 - n%2); c.Arg>>32 != want {
			t.Fatalf("call %d sets the line to %d, want %d", n, c.Arg>>32, want)
		}
		n++
	}
	if n != 2*goroutines*each {
		t.Errorf("%d calls, want %d", n, 2*goroutines*each)
	}
}
