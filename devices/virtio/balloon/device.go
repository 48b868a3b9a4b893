package balloon

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forkvm/forkvm/devices/virtio"
)

// PageSize is the unit of a balloon's size and the granularity of a release,
// in bytes.
const PageSize = 4096

// The queues. Those of features that are not offered have no index (section
// 5.5.2 counts all that exist anywhere, drivers count those that are there).
const (
	queueInflate = iota
	queueDeflate
	queueReport
	numQueues
)

// queueSize is at least what Linux puts in one report: 32 pieces, without
// indirect descriptors.
const queueSize = 64

// Device-specific feature bits, section 5.5.3.
const (
	featureDeflateOnOOM = 1 << 2
	featurePagePoison   = 1 << 4
	featureReporting    = 1 << 5
)

// Config is the configuration of a device. The zero value has the defaults.
type Config struct {
	// MinRange is the smallest piece of memory that is released, in bytes, a
	// multiple of PageSize. Each piece may cost the host a mapping. The
	// default is 64 KiB.
	MinRange uint64
}

func (c Config) withDefaults() (Config, error) {
	c.MinRange = cmp.Or(c.MinRange, 64<<10)
	if c.MinRange%PageSize != 0 {
		return c, fmt.Errorf("balloon: smallest piece of %d bytes: not whole pages", c.MinRange)
	}
	return c, nil
}

// Env is what a device may do to its machine.
type Env struct {
	// Release tells that the guest has no use for what is in these pieces of
	// RAM: until it writes to a page it may read either what was there or
	// zeros. They are sorted, whole pages, and apart from each other; each is
	// contiguous RAM. ranges is valid during the call.
	//
	// Release is never called while the device is quiet, nor twice at a time.
	// It must not call the device. An error means that something was not
	// released, which nobody but the host minds; it is counted.
	Release func(ranges []Range) error
}

// State is the state of a device that is not in guest memory.
type State struct {
	Target uint32 // size that the host wants, in pages
	Told   uint32 // size that the driver was told of last
	Actual uint32 // size that the driver says the balloon has
	Poison uint32 // what the driver says it fills free pages with
}

// Stats counts what the driver gave back.
type Stats struct {
	Requests uint64 // answered, of all queues
	Released uint64 // bytes handed to Release, which did not fail
	Ranges   uint64 // pieces of these
	Small    uint64 // pieces below Config.MinRange, not released
	Refused  uint64 // pieces, requests and accesses against the rules
	Failed   uint64 // calls of Release that failed
}

// Device is a memory balloon. It implements [virtio.Device] and
// [virtio.ConfigWriter]; all methods are safe for concurrent use.
type Device struct {
	cfg Config
	env Env

	mu       sync.Mutex // guards all below; held while a request is served
	state    State
	stats    Stats
	queues   [numQueues]*virtio.Queue // those in service
	rings    []Range                  // where these lie
	act      virtio.Activation
	active   bool // between Activate and Reset
	quiet    bool
	draining bool // a goroutine serves the queues
	pace     pace
	again    *time.Timer   // serves the queues when pace allows
	resized  chan struct{} // closed when Target or Actual changes

	scratch [maxPFNs * pfnSize]byte
	ranges  []Range // of the request that is served
}

var (
	_ virtio.Device       = (*Device)(nil)
	_ virtio.ConfigWriter = (*Device)(nil)
)

// New makes a cold device with an empty balloon.
func New(cfg Config, env Env) (*Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if env.Release == nil {
		return nil, errors.New("balloon: nothing to release memory with")
	}
	return &Device{cfg: cfg, env: env, resized: make(chan struct{})}, nil
}

// Restore makes a device from the state of another, which may come from a
// file. It is quiet until Resume. The balloon has the size it had, and a
// target that the other's driver was not told of is made known.
func Restore(cfg Config, env Env, st State) (*Device, error) {
	d, err := New(cfg, env)
	if err != nil {
		return nil, err
	}
	d.state, d.quiet = st, true
	return d, nil
}

// Save returns the state of the device, which must be quiet.
func (d *Device) Save() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// Stats returns the counters. They begin at zero in a restored device.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

// Type implements [virtio.Device].
func (d *Device) Type() uint32 { return virtio.TypeBalloon }

// Features implements [virtio.Device].
//
// Without VIRTIO_BALLOON_F_PAGE_POISON a driver that wants zeros in its free
// pages would not report any, though zeros is what it gets.
// VIRTIO_BALLOON_F_MUST_TELL_HOST is not offered: a page of the balloon can be
// used at any time.
func (d *Device) Features() uint64 {
	return featureDeflateOnOOM | featurePagePoison | featureReporting
}

// QueueSizes implements [virtio.Device].
func (d *Device) QueueSizes() []uint16 {
	return []uint16{queueInflate: queueSize, queueDeflate: queueSize, queueReport: queueSize}
}

// Activate implements [virtio.Device]. The driver may leave out any queue.
func (d *Device) Activate(a virtio.Activation) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.act, d.active = a, true
	d.rings = d.rings[:0]
	for i, q := range a.Queues {
		d.queues[i] = q
		if q != nil {
			d.rings = append(d.rings, ringsOf(q.State())...)
		}
	}
	d.wake()
	return nil
}

// Reset implements [virtio.Device]. The target stays; the balloon is empty.
func (d *Device) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.act, d.active = virtio.Activation{}, false
	d.queues = [numQueues]*virtio.Queue{}
	d.state = State{Target: d.state.Target}
	d.changed()
	if d.again != nil {
		d.again.Stop()
	}
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
	d.wake()
}

// Notify implements [virtio.Device].
func (d *Device) Notify(int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wake()
}

// running tells whether queues may be touched and interrupts raised.
func (d *Device) running() bool { return d.active && !d.quiet }
