package virtiotest

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Registers is the register window of a transport, such as a virtio.MMIO.
type Registers interface {
	Read(off uint64, p []byte)
	Write(off uint64, p []byte)
}

// Registers of the memory-mapped transport that tests use by name, section
// 4.2.2.
const (
	RegMagic             = 0x000
	RegDeviceID          = 0x008
	RegDeviceFeatures    = 0x010
	RegDeviceFeaturesSel = 0x014
	RegDriverFeatures    = 0x020
	RegDriverFeaturesSel = 0x024
	RegQueueSel          = 0x030
	RegQueueNumMax       = 0x034
	RegQueueNum          = 0x038
	RegQueueReady        = 0x044
	RegQueueNotify       = 0x050
	RegInterruptStatus   = 0x060
	RegInterruptACK      = 0x064
	RegStatus            = 0x070
	RegQueueDesc         = 0x080
	RegQueueDriver       = 0x090
	RegQueueDevice       = 0x0a0
	RegConfigGeneration  = 0x0fc
	RegConfig            = 0x100
)

// Device status bits, section 2.1.
const (
	StatusAcknowledge = 1
	StatusDriver      = 2
	StatusDriverOK    = 4
	StatusFeaturesOK  = 8
	StatusNeedsReset  = 64
	StatusFailed      = 128
)

// Driver drives a device through the registers of its transport, as a guest's
// driver does. It is used by one goroutine.
type Driver struct {
	Mem      *Memory
	Rings    []*Ring // by queue; nil where the driver left one out
	Features uint64  // as negotiated

	regs Registers
}

// NewDriver makes the driver of a device that was not touched yet.
func NewDriver(regs Registers, mem *Memory) *Driver {
	return &Driver{Mem: mem, regs: regs}
}

// Fork returns the driver in the same state, in a machine whose memory is mem,
// a fork of d.Mem, and whose transport is regs.
func (d *Driver) Fork(regs Registers, mem *Memory) *Driver {
	c := &Driver{Mem: mem, Rings: make([]*Ring, len(d.Rings)), Features: d.Features, regs: regs}
	for i, r := range d.Rings {
		if r != nil {
			c.Rings[i] = r.Fork(mem)
		}
	}
	return c
}

// Read reads a register.
func (d *Driver) Read(off uint64) uint32 {
	var b [4]byte
	d.regs.Read(off, b[:])
	return binary.LittleEndian.Uint32(b[:])
}

// Write writes a register.
func (d *Driver) Write(off uint64, v uint32) {
	d.regs.Write(off, binary.LittleEndian.AppendUint32(nil, v))
}

// Config reads n bytes of configuration space at off.
func (d *Driver) Config(off uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		d.regs.Read(RegConfig+off+uint64(i), b[i:i+1])
	}
	return b
}

// Offered is the set of features that the device offers.
func (d *Driver) Offered() uint64 {
	d.Write(RegDeviceFeaturesSel, 0)
	low := d.Read(RegDeviceFeatures)
	d.Write(RegDeviceFeaturesSel, 1)
	return uint64(d.Read(RegDeviceFeatures))<<32 | uint64(low)
}

// Start resets the device and brings it up: it accepts those of features that
// are offered, makes rings of at most 64 entries for the queues given, or for
// all of them if none is, and sets DRIVER_OK. It fails if the device does not
// go along.
func (d *Driver) Start(features uint64, queues ...int) error {
	d.Reset()
	if err := d.Negotiate(features); err != nil {
		return err
	}
	d.SetUpQueues(queues...)
	return d.SetStatus(StatusDriverOK)
}

// Negotiate goes as far as FEATURES_OK.
func (d *Driver) Negotiate(features uint64) error {
	if err := d.SetStatus(StatusAcknowledge); err != nil {
		return err
	}
	if err := d.SetStatus(StatusDriver); err != nil {
		return err
	}
	d.Features = features & d.Offered()
	d.WriteFeatures(d.Features)
	return d.SetStatus(StatusFeaturesOK)
}

// WriteFeatures writes what the driver accepts, right or wrong.
func (d *Driver) WriteFeatures(features uint64) {
	for sel := range uint32(2) {
		d.Write(RegDriverFeaturesSel, sel)
		d.Write(RegDriverFeatures, uint32(features>>(32*sel)))
	}
}

// SetStatus adds a bit to the status and fails unless the device keeps it
// without asking for a reset.
func (d *Driver) SetStatus(bit uint32) error {
	d.Write(RegStatus, d.Read(RegStatus)|bit)
	if s := d.Read(RegStatus); s&bit == 0 || s&StatusNeedsReset != 0 {
		return fmt.Errorf("virtiotest: status %#x after setting %#x", s, bit)
	}
	return nil
}

// SetUpQueues makes rings for the queues given, or for all if none is.
func (d *Driver) SetUpQueues(queues ...int) {
	d.Rings = nil
	for q := 0; ; q++ {
		d.Write(RegQueueSel, uint32(q))
		n := d.Read(RegQueueNumMax)
		if n == 0 {
			return
		}
		d.Rings = append(d.Rings, nil)
		if len(queues) > 0 && !slices.Contains(queues, q) {
			continue
		}
		d.Rings[q] = NewRing(d.Mem, int(min(n, 64)), d.Features)
		d.SetUpQueue(q, d.Rings[q])
	}
}

// SetUpQueue tells the device that queue q is r.
func (d *Driver) SetUpQueue(q int, r *Ring) {
	d.Write(RegQueueSel, uint32(q))
	d.Write(RegQueueNum, uint32(r.size))
	d.write64(RegQueueDesc, r.desc)
	d.write64(RegQueueDriver, r.avail)
	d.write64(RegQueueDevice, r.used)
	d.Write(RegQueueReady, 1)
}

func (d *Driver) write64(off, v uint64) {
	d.Write(off, uint32(v))
	d.Write(off+4, uint32(v>>32))
}

// Notify notifies the device of queue q.
func (d *Driver) Notify(q int) { d.Write(RegQueueNotify, uint32(q)) }

// Kick notifies the device of queue q if the device wants it.
func (d *Driver) Kick(q int) {
	if d.Rings[q].NeedsNotify() {
		d.Notify(q)
	}
}

// AckInterrupt reads the interrupt status and acknowledges it.
func (d *Driver) AckInterrupt() uint32 {
	s := d.Read(RegInterruptStatus)
	d.Write(RegInterruptACK, s)
	return s
}

// Reset resets the device and forgets its rings.
func (d *Driver) Reset() {
	d.Write(RegStatus, 0)
	d.Rings, d.Features = nil, 0
}
