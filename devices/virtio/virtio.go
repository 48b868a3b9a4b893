// Package virtio implements the device side of virtio 1.2: the split
// virtqueue ([Queue]), the memory-mapped transport, version 2 ([MMIO]), and
// the interface between a transport and the devices in the folders below.
//
// Section numbers in comments are those of "Virtual I/O Device (VIRTIO)
// Version 1.2", OASIS.
package virtio

import "github.com/forkvm/forkvm/devices"

// Device types, section 5.
const (
	TypeNet     = 1
	TypeBlock   = 2
	TypeEntropy = 4
	TypeBalloon = 5
	TypeVsock   = 19
)

// Feature bits that belong to the transport and the queues, section 6.
const (
	FeatureIndirectDesc = 1 << 28 // VIRTIO_F_INDIRECT_DESC
	FeatureEventIdx     = 1 << 29 // VIRTIO_F_EVENT_IDX
	FeatureVersion1     = 1 << 32 // VIRTIO_F_VERSION_1
)

// Device is the part of a virtio device that is independent of its transport.
//
// The transport calls the methods in this order, which is also the order in
// which a device may be captured:
//
//	cold ──Activate──▶ active ──Quiesce──▶ quiet ──Resume──▶ active
//	  ▲                   │                  │
//	  └───────Reset───────┴──────────────────┘
//
// A device made by its Restore from the state of an active one is quiet: the
// transport calls Activate with the restored queues, then Resume. Quiesce and
// Resume are idempotent and may come in any state.
//
// All methods are safe for concurrent use and none blocks on the guest.
type Device interface {
	// Type is the device type of section 5.
	Type() uint32

	// Features is the set of device-specific feature bits offered. The
	// transport adds those of the queues and VIRTIO_F_VERSION_1.
	Features() uint64

	// QueueSizes is the largest size of each virtqueue, in entries, each a
	// power of two of at most 32768.
	QueueSizes() []uint16

	// ReadConfig fills p from the device's configuration space at off.
	// Bytes beyond the space read as zero.
	ReadConfig(off uint64, p []byte)

	// Activate begins service. The transport calls it when the driver sets
	// DRIVER_OK. An error makes the transport set DEVICE_NEEDS_RESET.
	Activate(Activation) error

	// Notify tells that the driver made buffers available in queue q. It is
	// called on the thread of a vCPU: what may take long is handed to a
	// goroutine of the device.
	Notify(q int)

	// Reset ends service: no guest memory is touched and no interrupt raised
	// after it returns.
	Reset()

	// Quiesce returns when no request is in flight. Until Resume the device
	// touches no guest memory and raises no interrupt, even if the host side
	// has data for the guest.
	Quiesce()

	// Resume ends a Quiesce and looks at every queue as if the driver had
	// notified it: a notification that the capture swallowed is made good.
	Resume()
}

// ConfigWriter is implemented by devices whose configuration space can be
// written by the driver.
type ConfigWriter interface {
	WriteConfig(off uint64, p []byte)
}

// Activation is what a device gets to work with from DRIVER_OK to reset.
type Activation struct {
	Memory   devices.Memory
	Queues   []*Queue // ready ones; nil where the driver left one out
	Features uint64   // as negotiated
	// Interrupt signals used buffers (section 4.2.2, InterruptStatus bit 0).
	// The device asks Queue.NeedInterrupt first.
	Interrupt devices.Interrupt
	// ConfigChanged tells the driver that the configuration space has changed
	// (section 4.2.2, InterruptStatus bit 1). It raises the same interrupt, so
	// the device calls it under the lock under which it triggers Interrupt.
	ConfigChanged func()
}
