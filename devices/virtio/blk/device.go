package blk

import (
	"errors"
	"fmt"
	"sync"

	"github.com/forkvm/forkvm/devices/virtio"
)

// Env is what a device works with.
type Env struct {
	// Backend holds the bytes of the disk. It outlives the device's service,
	// and is used by nobody else meanwhile in a way that changes them.
	Backend Backend
}

// State is the state of the device, which has none: a quiet device has no
// request in flight, the queues belong to the transport, and the bytes to the
// backend.
type State struct{}

// Stats counts requests that were answered, from the making of a device on.
type Stats struct {
	Reads, Writes, Flushes, Discards, Zeroes uint64 // that succeeded

	ReadBytes, WrittenBytes uint64 // of reads and writes that succeeded

	Failed  uint64 // requests that the backend failed
	Refused uint64 // requests against the rules, and queues that broke them
}

func (s *Stats) add(o Stats) {
	s.Reads += o.Reads
	s.Writes += o.Writes
	s.Flushes += o.Flushes
	s.Discards += o.Discards
	s.Zeroes += o.Zeroes
	s.ReadBytes += o.ReadBytes
	s.WrittenBytes += o.WrittenBytes
	s.Failed += o.Failed
	s.Refused += o.Refused
}

// Device is a virtio block device. It implements [virtio.Device]; all methods
// are safe for concurrent use.
type Device struct {
	cfg     Config
	backend Backend
	sectors uint64 // of backend
	trier   Trier  // backend, if it is one

	volatile bool // it has nothing to flush

	mu       sync.Mutex // guards all below; not held while the backend works
	act      virtio.Activation
	queues   []*virtio.Queue // those in service; nil where there is none
	turn     int             // queue to look at first
	active   bool            // between Activate and Reset
	quiet    bool            // between Quiesce and Resume
	workers  int             // goroutines that serve requests, and vCPUs that do
	starting bool            // one of these has not looked for a request yet
	asked    int             // notifications that could be served promptly
	burst    int             // requests popped since no goroutine served any
	deep     bool            // of the last goroutines that served: more than one request
	inFlight int             // requests popped and not done with, interrupt included
	idle     sync.Cond       // inFlight has become 0, or Quiesce was taken back
	stats    Stats
	failure  error // of the backend, the latest
}

var _ virtio.Device = (*Device)(nil)

// New makes a cold device.
func New(cfg Config, env Env) (*Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if env.Backend == nil {
		return nil, errors.New("blk: no backend")
	}
	size := env.Backend.Size()
	if size <= 0 || size%SectorSize != 0 {
		return nil, fmt.Errorf("blk: disk of %d bytes: not whole sectors of %d", size, SectorSize)
	}
	d := &Device{
		cfg:     cfg,
		backend: env.Backend,
		sectors: uint64(size) / SectorSize,
		queues:  make([]*virtio.Queue, cfg.Queues),
	}
	d.trier, _ = env.Backend.(Trier)
	_, d.volatile = env.Backend.(Volatile)
	d.idle.L = &d.mu
	return d, nil
}

// Restore makes a device from the state of another, for a disk that has the
// bytes that the other's had when its state was taken. It is quiet until
// Resume.
func Restore(cfg Config, env Env, _ State) (*Device, error) {
	d, err := New(cfg, env)
	if err != nil {
		return nil, err
	}
	d.quiet = true
	return d, nil
}

// Save returns the state of the device, which must be quiet.
func (d *Device) Save() State { return State{} }

// Stats returns the counters. They begin at zero in a restored device.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

// Failure is the latest error of the backend, or nil if there never was one.
// The driver is told no more than that its request failed.
func (d *Device) Failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure
}

// Type implements [virtio.Device].
func (d *Device) Type() uint32 { return virtio.TypeBlock }

// QueueSizes implements [virtio.Device].
func (d *Device) QueueSizes() []uint16 {
	sizes := make([]uint16, d.cfg.Queues)
	for i := range sizes {
		sizes[i] = queueSize
	}
	return sizes
}

// Activate implements [virtio.Device]. The driver may leave out any queues but
// not all.
func (d *Device) Activate(a virtio.Activation) error {
	ready := 0
	for _, q := range a.Queues {
		if q != nil {
			ready++
		}
	}
	if ready == 0 || len(a.Queues) != d.cfg.Queues {
		return fmt.Errorf("blk: activate: %d of %d queues are ready, the device has %d", ready, len(a.Queues), d.cfg.Queues)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.act, d.active = a, true
	copy(d.queues, a.Queues)
	d.look()
	return nil
}

// Reset implements [virtio.Device]. It waits for the backend to have done with
// what is in flight.
func (d *Device) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.active = false
	for d.inFlight > 0 {
		d.idle.Wait()
	}
	d.act = virtio.Activation{}
	clear(d.queues)
}

// Quiesce implements [virtio.Device]. It waits for the backend to have done
// with what is in flight, unless Resume comes first.
func (d *Device) Quiesce() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quiet = true
	for d.quiet && d.inFlight > 0 {
		d.idle.Wait()
	}
}

// Resume implements [virtio.Device].
func (d *Device) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quiet = false
	d.idle.Broadcast()
	d.look()
}

// Notify implements [virtio.Device]. It never waits for the backend.
func (d *Device) Notify(int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.prompt() {
		d.servePromptly()
	}
	d.look()
}

// running tells whether queues may be looked at.
func (d *Device) running() bool { return d.active && !d.quiet }
