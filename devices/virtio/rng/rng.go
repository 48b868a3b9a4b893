// Package rng is the virtio entropy device (section 5.4): a guest's source of
// randomness from the host's.
package rng

import (
	"crypto/rand"
	"sync"
	"sync/atomic"

	"github.com/forkvm/forkvm/devices/virtio"
)

const (
	// queueSize is enough for any driver: Linux has one request in flight.
	queueSize = 64

	// maxRequest is how many bytes one request gets at most. A driver copes
	// with less than it asked for (section 5.4.6.1).
	maxRequest = 64 << 10

	// burst is how many requests are served on the thread of the vCPU that
	// notified.
	burst = 4
)

// Config is the configuration of the device: there is nothing to configure.
type Config struct{}

// State is the state of the device, which has none: what is not in the
// transport is in the host's random number generator, and nothing of that may
// ever be handed out twice.
type State struct{}

// Device is a virtio entropy device. It implements [virtio.Device].
type Device struct {
	faults atomic.Uint64

	mu       sync.Mutex // guards all below; held while a request is served
	queue    *virtio.Queue
	act      virtio.Activation
	quiet    bool
	draining bool // a goroutine serves what did not fit in a burst
}

var _ virtio.Device = (*Device)(nil)

// New makes a cold device.
func New(Config) *Device { return &Device{} }

// Restore makes a device from the state of another. It is quiet until Resume.
func Restore(Config, State) *Device { return &Device{quiet: true} }

// Save returns the state of the device, which must be quiet.
func (d *Device) Save() State { return State{} }

// Faults is the number of times a driver broke the rules.
func (d *Device) Faults() uint64 { return d.faults.Load() }

// Type implements [virtio.Device].
func (d *Device) Type() uint32 { return virtio.TypeEntropy }

// Features implements [virtio.Device]: the entropy device has none.
func (d *Device) Features() uint64 { return 0 }

// QueueSizes implements [virtio.Device]: one queue, requestq.
func (d *Device) QueueSizes() []uint16 { return []uint16{queueSize} }

// ReadConfig implements [virtio.Device]: there is no configuration space.
func (d *Device) ReadConfig(_ uint64, p []byte) { clear(p) }

// Activate implements [virtio.Device].
func (d *Device) Activate(a virtio.Activation) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.act, d.queue = a, a.Queues[0]
	return nil
}

// Reset implements [virtio.Device].
func (d *Device) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.act, d.queue = virtio.Activation{}, nil
}

// Quiesce implements [virtio.Device].
func (d *Device) Quiesce() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quiet = true
}

// Resume implements [virtio.Device].
func (d *Device) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quiet = false
	d.serveBurst()
}

// Notify implements [virtio.Device].
func (d *Device) Notify(int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.serveBurst()
}

// serveBurst serves a few requests. If there are more a goroutine goes on with
// them, so that a driver that keeps its queue filled keeps no vCPU here.
func (d *Device) serveBurst() {
	for range burst {
		if !d.serve() {
			return
		}
	}
	if !d.draining {
		d.draining = true
		go d.drain()
	}
}

// drain serves requests until there are none or service ends, and lets others
// have the lock in between.
func (d *Device) drain() {
	for more := true; more; {
		d.mu.Lock()
		more = d.serve()
		d.draining = more
		d.mu.Unlock()
	}
}

// serve answers one request and tells whether there may be another.
func (d *Device) serve() bool {
	if d.queue == nil || d.quiet {
		return false
	}
	c, err := d.queue.Pop()
	if err != nil {
		d.faults.Add(1)
		return false
	}
	if c == nil {
		return d.queue.SetNotify(true)
	}
	if len(c.Readable) > 0 || len(c.Writable) == 0 {
		d.faults.Add(1) // section 5.4.6.1; answered as far as it goes
	}
	if err := d.queue.Push(c.Head, fill(c.Writable)); err != nil {
		d.faults.Add(1)
		return false
	}
	if d.queue.NeedInterrupt() {
		d.act.Interrupt.Trigger()
	}
	return true
}

// fill writes random bytes to bufs, maxRequest of them at most, and returns
// how many.
func fill(bufs [][]byte) uint32 {
	n := 0
	for _, b := range bufs {
		b = b[:min(len(b), maxRequest-n)]
		rand.Read(b) // never fails: the process ends before it returns less
		n += len(b)
	}
	return uint32(n)
}
