package balloon

import (
	"context"
	"encoding/binary"
)

// Layout of the configuration space, section 5.5.4: four little-endian words.
const (
	configTarget = 0  // num_pages
	configActual = 4  // actual
	configPoison = 12 // poison_val
	configSize   = 16
)

// SetTarget asks the guest to let the balloon have that many pages of
// [PageSize]: more of them to give memory back, fewer to have it again. How
// far the driver goes and when is up to it; see Wait. The target holds for the
// machine's life, whatever drivers come and go.
func (d *Device) SetTarget(pages uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state.Target != pages {
		d.state.Target = pages
		d.changed()
	}
	d.tell()
}

// Target is the size asked for, in pages.
func (d *Device) Target() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.Target
}

// Actual is the size in pages that the driver says the balloon has, true or
// not: what was in fact released is in Stats. It is 0 without a driver.
func (d *Device) Actual() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.Actual
}

// Wait returns nil once the driver says that the balloon has the size of the
// target, or else the error of ctx. A guest without a driver, or short of
// memory, may never get there.
func (d *Device) Wait(ctx context.Context) error {
	for {
		d.mu.Lock()
		there, resized := d.state.Actual == d.state.Target, d.resized
		d.mu.Unlock()
		if there {
			return nil
		}
		select {
		case <-resized:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// changed wakes those who Wait.
func (d *Device) changed() {
	close(d.resized)
	d.resized = make(chan struct{})
}

// tell lets the driver know of a target that it does not know, unless the
// device is quiet: then Resume does, here or in a child.
func (d *Device) tell() {
	if d.running() && d.state.Told != d.state.Target {
		d.state.Told = d.state.Target
		d.act.ConfigChanged()
	}
}

// config is the configuration space.
func (d *Device) config() (space [configSize]byte) {
	le := binary.LittleEndian
	le.PutUint32(space[configTarget:], d.state.Target)
	le.PutUint32(space[configActual:], d.state.Actual)
	le.PutUint32(space[configPoison:], d.state.Poison)
	return space
}

// ReadConfig implements [virtio.Device].
func (d *Device) ReadConfig(off uint64, p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(p)
	if space := d.config(); off < configSize {
		copy(p, space[off:])
	}
}

// WriteConfig implements [virtio.ConfigWriter]. What the driver may not write
// stays as it is.
func (d *Device) WriteConfig(off uint64, p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if off >= configSize || uint64(len(p)) > configSize-off {
		d.stats.Refused++
		return
	}
	space, before := d.config(), d.state.Actual
	copy(space[off:], p)
	d.state.Actual = binary.LittleEndian.Uint32(space[configActual:])
	d.state.Poison = binary.LittleEndian.Uint32(space[configPoison:])
	if d.state.Actual != before {
		d.changed()
	}
}
