package virtio

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/forkvm/forkvm/devices"
)

// Registers of the memory-mapped transport, section 4.2.2.
const (
	regMagic             = 0x000
	regVersion           = 0x004
	regDeviceID          = 0x008
	regVendorID          = 0x00c
	regDeviceFeatures    = 0x010
	regDeviceFeaturesSel = 0x014
	regDriverFeatures    = 0x020
	regDriverFeaturesSel = 0x024
	regQueueSel          = 0x030
	regQueueNumMax       = 0x034
	regQueueNum          = 0x038
	regQueueReady        = 0x044
	regQueueNotify       = 0x050
	regInterruptStatus   = 0x060
	regInterruptACK      = 0x064
	regStatus            = 0x070
	regQueueDescLow      = 0x080
	regQueueDescHigh     = 0x084
	regQueueDriverLow    = 0x090
	regQueueDriverHigh   = 0x094
	regQueueDeviceLow    = 0x0a0
	regQueueDeviceHigh   = 0x0a4
	regSHMLenLow         = 0x0b0
	regSHMLenHigh        = 0x0b4
	regSHMBaseLow        = 0x0b8
	regSHMBaseHigh       = 0x0bc
	regConfigGeneration  = 0x0fc
	regConfig            = 0x100
)

// MMIOSize is the length of the register window in bytes: the registers and
// 256 bytes of configuration space, more than any device here has.
const MMIOSize = 0x200

const (
	mmioMagic   = 0x74726976 // "virt"
	mmioVersion = 2
	mmioVendor  = 0x4d564b46 // "FKVM"
)

// Device status bits, section 2.1.
const (
	statusAcknowledge = 1
	statusDriver      = 2
	statusDriverOK    = 4
	statusFeaturesOK  = 8
	statusNeedsReset  = 64
	statusFailed      = 128

	statusAll = statusAcknowledge | statusDriver | statusDriverOK | statusFeaturesOK | statusNeedsReset | statusFailed
)

// Bits of InterruptStatus.
const (
	interruptUsed   = 1
	interruptConfig = 2
)

// transportFeatures are offered for every device.
const transportFeatures = FeatureIndirectDesc | FeatureEventIdx | FeatureVersion1

// MMIO is the memory-mapped transport, version 2 (section 4.2), of one
// device. It is a device of a bus: Read and Write take offsets into its
// window of [MMIOSize] bytes.
//
// A notification is served on the thread of the vCPU that wrote it, not by an
// ioeventfd. Slower by the way through user space, but nothing about it ever
// exists outside guest memory and the device, so that a capture between two
// instructions of a parked vCPU cannot lose one.
//
// All methods are safe for concurrent use.
type MMIO struct {
	dev     Device
	mem     devices.Memory
	irq     devices.Interrupt
	offered uint64
	maxes   []uint16 // largest size of each queue

	// These change by the hand of the device too, which may hold locks of its
	// own: they are not guarded by mu.
	status          atomic.Uint32
	interruptStatus atomic.Uint32
	generation      atomic.Uint32
	faults          atomic.Uint64
	failure         atomic.Pointer[error]

	// mu is held while the device is activated and reset, so that the
	// driver's write returns when that is done. The device must not call the
	// transport in a way that takes it; interrupts do not.
	mu                sync.Mutex
	deviceFeaturesSel uint32
	driverFeaturesSel uint32
	driverFeatures    uint64
	queueSel          uint32
	queues            []QueueState // as the driver configured them
	active            bool
	live              []*Queue // what the device works with, if active
}

// NewMMIO makes the transport of a cold device. irq is its interrupt line.
func NewMMIO(dev Device, mem devices.Memory, irq devices.Interrupt) *MMIO {
	m := &MMIO{
		dev:     dev,
		mem:     mem,
		irq:     irq,
		offered: dev.Features() | transportFeatures,
		maxes:   dev.QueueSizes(),
	}
	m.clear()
	return m
}

// Device is the device behind the transport.
func (m *MMIO) Device() Device { return m.dev }

// Faults is the number of accesses that broke the rules of the transport and
// were ignored.
func (m *MMIO) Faults() uint64 { return m.faults.Load() }

// Failure is why DEVICE_NEEDS_RESET was last set, or nil if it never was.
func (m *MMIO) Failure() error {
	if p := m.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// Reset puts transport and device into the state of power-on, as the driver
// does by writing 0 to the status. When it returns the device touches no guest
// memory and raises no interrupt: it is also how service ends for good.
func (m *MMIO) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reset()
}

// ConfigChanged tells the driver that the configuration space has changed. It
// raises an interrupt: not for a device that is quiet.
func (m *MMIO) ConfigChanged() {
	m.generation.Add(1)
	if m.status.Load()&statusDriverOK != 0 {
		m.interrupt(interruptConfig)
	}
}

func (m *MMIO) interrupt(bit uint32) {
	m.interruptStatus.Or(bit)
	m.irq.Trigger()
}

// fail asks the driver for a reset (section 2.1.2).
func (m *MMIO) fail(err error) {
	m.failure.Store(&err)
	m.status.Or(statusNeedsReset)
	m.interrupt(interruptConfig)
}

// Read answers a read of len(p) bytes at offset off. A register is read by an
// aligned access of 4 bytes; anything else reads as zero and counts as a fault.
func (m *MMIO) Read(off uint64, p []byte) {
	clear(p)
	switch {
	case off >= regConfig:
		m.dev.ReadConfig(off-regConfig, p)
	case len(p) != 4 || off%4 != 0:
		m.faults.Add(1)
	default:
		binary.LittleEndian.PutUint32(p, m.readRegister(off))
	}
}

// Write answers a write of p at offset off. A register is written by an
// aligned access of 4 bytes; anything else is ignored and counts as a fault.
func (m *MMIO) Write(off uint64, p []byte) {
	switch {
	case off >= regConfig:
		m.writeConfig(off-regConfig, p)
	case len(p) != 4 || off%4 != 0:
		m.faults.Add(1)
	case off == regQueueNotify:
		m.notify(binary.LittleEndian.Uint32(p))
	default:
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.writeRegister(off, binary.LittleEndian.Uint32(p)) {
			m.faults.Add(1)
		}
	}
}

func (m *MMIO) writeConfig(off uint64, p []byte) {
	if w, ok := m.dev.(ConfigWriter); ok {
		w.WriteConfig(off, p)
		return
	}
	m.faults.Add(1)
}

// notify passes a notification on without holding mu, so that queues are
// served in parallel. The device ignores one that a reset overtakes.
func (m *MMIO) notify(q uint32) {
	m.mu.Lock()
	ok := m.active && uint64(q) < uint64(len(m.live)) && m.live[q] != nil
	m.mu.Unlock()
	if !ok {
		m.faults.Add(1)
		return
	}
	m.dev.Notify(int(q))
}

// readRegister answers reads of control registers. Those that can only be
// written, and those that do not exist, read as zero.
func (m *MMIO) readRegister(off uint64) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch off {
	case regMagic:
		return mmioMagic
	case regVersion:
		return mmioVersion
	case regDeviceID:
		return m.dev.Type()
	case regVendorID:
		return mmioVendor
	case regDeviceFeatures:
		return word32(m.offered, m.deviceFeaturesSel)
	case regQueueNumMax:
		if q := m.queue(); q != nil {
			return uint32(q.MaxSize)
		}
	case regQueueReady:
		if q := m.queue(); q != nil && q.Ready {
			return 1
		}
	case regInterruptStatus:
		return m.interruptStatus.Load()
	case regStatus:
		return m.status.Load()
	case regSHMLenLow, regSHMLenHigh, regSHMBaseLow, regSHMBaseHigh:
		return 0xffffffff // no shared memory region, whatever SHMSel says
	case regConfigGeneration:
		return m.generation.Load()
	}
	return 0
}

// word32 is half sel of v, or 0 if there is no such half.
func word32(v uint64, sel uint32) uint32 {
	if sel > 1 {
		return 0
	}
	return uint32(v >> (32 * sel))
}

// queue is the selected queue, or nil if there is none.
func (m *MMIO) queue() *QueueState {
	if uint64(m.queueSel) >= uint64(len(m.queues)) {
		return nil
	}
	return &m.queues[m.queueSel]
}

// writeRegister tells whether the write was according to the rules. One that
// was not has changed nothing.
func (m *MMIO) writeRegister(off uint64, v uint32) bool {
	switch off {
	case regDeviceFeaturesSel:
		m.deviceFeaturesSel = v
	case regDriverFeaturesSel:
		m.driverFeaturesSel = v
	case regDriverFeatures:
		return m.writeDriverFeatures(v)
	case regQueueSel:
		m.queueSel = v
	case regInterruptACK:
		m.interruptStatus.And(^v)
	case regStatus:
		return m.writeStatus(v)
	case regQueueReady:
		return m.writeQueueReady(v)
	default:
		return m.writeQueue(off, v)
	}
	return true
}

// writeDriverFeatures keeps what the driver accepts until FEATURES_OK, after
// which it must not change its mind (section 3.1.1).
func (m *MMIO) writeDriverFeatures(v uint32) bool {
	if m.status.Load()&statusFeaturesOK != 0 || m.driverFeaturesSel > 1 {
		return false
	}
	shift := 32 * m.driverFeaturesSel
	m.driverFeatures = m.driverFeatures&^(0xffffffff<<shift) | uint64(v)<<shift
	return true
}

// writeQueue configures the selected queue, which the driver may do until the
// queue is ready or the device live. Sizes and addresses are checked together
// by NewQueue when the device goes live.
func (m *MMIO) writeQueue(off uint64, v uint32) bool {
	q := m.queue()
	if q == nil || q.Ready || m.status.Load()&statusDriverOK != 0 {
		return false
	}
	switch off {
	case regQueueNum:
		if v > uint32(q.MaxSize) {
			return false
		}
		q.Size = uint16(v)
	case regQueueDescLow:
		setLow(&q.Desc, v)
	case regQueueDescHigh:
		setHigh(&q.Desc, v)
	case regQueueDriverLow:
		setLow(&q.Avail, v)
	case regQueueDriverHigh:
		setHigh(&q.Avail, v)
	case regQueueDeviceLow:
		setLow(&q.Used, v)
	case regQueueDeviceHigh:
		setHigh(&q.Used, v)
	default:
		return false
	}
	return true
}

func setLow(p *uint64, v uint32)  { *p = *p&^0xffffffff | uint64(v) }
func setHigh(p *uint64, v uint32) { *p = *p&0xffffffff | uint64(v)<<32 }

var errQueueStopped = errors.New("virtio: mmio: driver stopped a queue of a live device")

// writeQueueReady makes the selected queue ready or takes that back. No device
// here can lose a queue while it is live, and without VIRTIO_F_RING_RESET no
// driver may take one away: it loses the device.
func (m *MMIO) writeQueueReady(v uint32) bool {
	q := m.queue()
	if q == nil || v > 1 {
		return false
	}
	live := m.status.Load()&statusDriverOK != 0
	switch {
	case v == 1 && live:
		return q.Ready
	case v == 0 && q.Ready && live:
		m.stop()
		q.Ready = false
		m.fail(errQueueStopped)
		return false
	}
	q.Ready = v == 1
	return true
}
