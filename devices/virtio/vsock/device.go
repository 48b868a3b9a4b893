package vsock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/forkvm/forkvm/devices"
	"github.com/forkvm/forkvm/devices/virtio"
)

const (
	// queueSize is that of RX and TX, in entries. Linux fills RX with
	// buffers of 4 KiB, all of which get dirty in turn: more would make
	// captures larger and bulk data no faster.
	queueSize = 128
	// eventQueueSize leaves room for the eight buffers of Linux.
	eventQueueSize = 16

	// The driver wants an interrupt for every TX packet that was taken, though
	// only to free its memory. lazyTime is how long it has to wait for one
	// that says nothing else, and maxLazy how many packets it has to wait for.
	lazyTime = 5 * time.Millisecond
	maxLazy  = queueSize / 4

	// maxReplies is how many RST without a connection wait for RX buffers
	// before TX is not consumed any more: as many as a driver must be able
	// to take beside its own (section 5.10.6.1.2).
	maxReplies = queueSize
)

// Config says what the guest sees and how much a guest can make the host
// hold. The zero value has the defaults.
type Config struct {
	// CID is the guest's context identifier: 3, the default, to 2³²-2.
	CID uint64
	// MaxConns bounds the connections of both directions together, with
	// those that are being closed. The default is 4096.
	MaxConns int
	// Buffer is what each connection buffers of data from the guest, in
	// bytes: 4 KiB to 64 MiB. The default is 256 KiB. Memory is allocated as
	// it fills.
	Buffer int
	// Backlog bounds the connections that wait in one listener to be
	// accepted. The default is 128.
	Backlog int
}

func (c Config) withDefaults() (Config, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if c.CID == 0 {
		c.CID = HostCID + 1
	}
	def(&c.MaxConns, 4096)
	def(&c.Buffer, 256<<10)
	def(&c.Backlog, 128)
	switch {
	case c.CID <= HostCID || c.CID >= 1<<32-1:
		return c, fmt.Errorf("vsock: CID %d: reserved", c.CID)
	case c.MaxConns < 0:
		return c, fmt.Errorf("vsock: at most %d connections: negative", c.MaxConns)
	case c.Buffer < minBuffer || c.Buffer > 64<<20:
		return c, fmt.Errorf("vsock: buffer of %d bytes: not between 4 KiB and 64 MiB", c.Buffer)
	case c.Backlog < 0:
		return c, fmt.Errorf("vsock: backlog of %d: negative", c.Backlog)
	}
	return c, nil
}

// ports names a connection: there is one guest and one host.
type ports struct{ guest, host uint32 }

// Device is the device and the host's end of its connections. All methods are
// safe for concurrent use.
type Device struct {
	cfg Config

	// mu guards everything below and all connections and listeners. Nothing
	// is locked under it.
	mu sync.Mutex

	active bool // between Activate and Reset
	unborn bool // restored from an active device, and not activated yet
	quiet  bool // between Quiesce and Resume
	broken bool // the driver broke a queue and has yet to reset the device
	closed bool

	rx, tx, event *virtio.Queue // set while active; event may be nil
	irq           devices.Interrupt
	used          [numQueues]bool // pushed to since the last interrupt
	lazy          int             // TX packets taken since then
	lazyFor       time.Duration   // lazyTime, but in tests
	waiting       bool            // hurry runs
	hurry         *time.Timer     // until the interrupt for them; nil before the first
	txArmed       bool            // the driver is to notify TX
	rxArmed       bool            // the driver is to notify RX
	carrying      bool            // a goroutine makes further passes

	resetting resetPhase // of the transport reset of a restored device
	unhandled int        // event buffers beside that of the reset

	changed sync.Cond // the device began or ended service

	conns     map[ports]*Conn
	inherited []*Conn // of these, those that nobody has asked for
	ready     fifo    // connections with a packet to send
	replies   []Reset
	listeners map[uint32]*listener
	nextPort  uint32 // where the search for a host port begins

	stats   Stats
	scratch [headerSize]byte
}

var _ virtio.Device = (*Device)(nil)

// New makes a cold device.
func New(cfg Config) (*Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Device{
		cfg:       cfg,
		conns:     make(map[ports]*Conn),
		listeners: make(map[uint32]*listener),
		nextPort:  firstPort,
		lazyFor:   lazyTime,
	}
	d.changed.L = &d.mu
	return d, nil
}

// Type is that of section 5.10.1.
func (d *Device) Type() uint32 { return virtio.TypeVsock }

// Features is empty: without any, only stream sockets exist (section
// 5.10.3.2), which is all there is.
func (d *Device) Features() uint64 { return 0 }

// QueueSizes are those of RX, TX and event queue (section 5.10.2).
func (d *Device) QueueSizes() []uint16 {
	return []uint16{queueRX: queueSize, queueTX: queueSize, queueEvent: eventQueueSize}
}

// ReadConfig reads the guest's CID (section 5.10.4).
func (d *Device) ReadConfig(off uint64, p []byte) {
	var space [8]byte
	binary.LittleEndian.PutUint64(space[:], d.cfg.CID)
	clear(p)
	if off < uint64(len(space)) {
		copy(p, space[off:])
	}
}

// Activate implements [virtio.Device]. The driver may leave out the event
// queue, at the price of hearing of no transport reset.
func (d *Device) Activate(a virtio.Activation) error {
	if len(a.Queues) != numQueues || a.Queues[queueRX] == nil || a.Queues[queueTX] == nil {
		return errors.New("vsock: activate: RX or TX queue is missing")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rx, d.tx, d.event = a.Queues[queueRX], a.Queues[queueTX], a.Queues[queueEvent]
	d.irq = a.Interrupt
	d.active, d.unborn, d.broken = true, false, false
	d.txArmed, d.rxArmed = false, true // unknown: the side that costs nothing
	d.used, d.lazy = [numQueues]bool{}, 0
	d.changed.Broadcast()
	d.pump()
	return nil
}

// Notify implements [virtio.Device]. It moves what is there and never blocks.
func (d *Device) Notify(int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pump()
}

// Reset implements [virtio.Device]. All connections end with ECONNRESET;
// listeners stay.
func (d *Device) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropAll(syscall.ECONNRESET)
	d.active, d.unborn, d.broken = false, false, false
	d.rx, d.tx, d.event, d.irq = nil, nil, nil, nil
	d.resetting = resetNone
	d.changed.Broadcast()
}

// Quiesce implements [virtio.Device]. Reads of what has arrived go on; writes
// block until Resume.
func (d *Device) Quiesce() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running() {
		d.interruptNow() // a restored device would not know that it owes one
	}
	d.quiet = true
}

// Resume implements [virtio.Device].
func (d *Device) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quiet = false
	d.pump()
}

// Close ends all connections, listeners and calls of Dial with
// [net.ErrClosed]. The guest is told nothing, and the device does nothing from
// then on.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.dropAll(net.ErrClosed)
	for _, l := range d.listeners {
		l.shut()
	}
	d.changed.Broadcast()
	return nil
}

// dropAll forgets all connections, which see err, and all that the guest was
// to be told.
func (d *Device) dropAll(err error) {
	for _, c := range d.conns {
		c.die(err, false)
	}
	for _, l := range d.listeners {
		l.backlog = nil
	}
	d.ready = fifo{}
	d.replies = nil
}

// fail stops service after the driver broke a queue. The transport has asked
// the driver for a reset.
func (d *Device) fail() {
	d.broken = true
	d.dropAll(syscall.ECONNRESET)
}

// running tells whether the queues may be touched.
func (d *Device) running() bool {
	return d.active && !d.quiet && !d.broken && !d.closed
}

// accepting tells whether a new connection can be begun, though its packets
// may have to wait for Resume or a transport reset.
func (d *Device) accepting() bool {
	return d.active && !d.broken
}
