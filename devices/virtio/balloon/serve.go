package balloon

import (
	"encoding/binary"
	"time"

	"github.com/forkvm/forkvm/devices/virtio"
)

const (
	pfnSize = 4
	// maxPFNs is how many page numbers of one request are looked at. Linux
	// sends 256.
	maxPFNs = 1024
)

// wake does what is to be done for the driver. A goroutine serves the queues: to
// release memory takes too long for the thread of a vCPU.
func (d *Device) wake() {
	d.tell()
	if d.running() && !d.draining {
		d.draining = true
		go d.drain()
	}
}

// drain serves requests until there are none or service ends, and lets others
// have the lock in between.
func (d *Device) drain() {
	for more := true; more; {
		d.mu.Lock()
		more = d.running() && d.mayServe() && d.serve()
		d.draining = more
		d.mu.Unlock()
	}
}

// mayServe tells whether the driver has earned a request. If not it sees to it
// that the queues are served when it has.
func (d *Device) mayServe() bool {
	wait := d.pace.wait(time.Now())
	if wait <= 0 {
		return true
	}
	if d.again != nil {
		d.again.Stop()
	}
	d.again = time.AfterFunc(wait, func() { d.Notify(0) })
	return false
}

// serve answers one request and tells whether there may be another.
func (d *Device) serve() bool {
	for i, q := range d.queues {
		if q == nil {
			continue
		}
		c, err := q.Pop()
		switch {
		case err != nil:
			d.stats.Refused++
			d.queues[i] = nil // broken until the driver resets the device
		case c != nil:
			d.answer(i, q, c)
			return true
		case q.SetNotify(true):
			return true
		}
	}
	return false
}

// answer serves the request c of queue i. That pages leave the balloon is good
// to know and nothing else: they could be used all the time.
func (d *Device) answer(i int, q *virtio.Queue, c *virtio.Chain) {
	d.stats.Requests++
	d.ranges = d.ranges[:0]
	switch i {
	case queueInflate:
		d.addPages(c)
	case queueReport:
		d.addBuffers(c)
	}
	released := d.release()
	d.pace.spend(time.Now(), 1+released)
	if err := q.Push(c.Head, 0); err != nil {
		d.stats.Refused++
		return
	}
	if q.NeedInterrupt() {
		d.act.Interrupt.Trigger()
	}
}

// addPages collects the pages whose numbers c lists (section 5.5.6).
func (d *Device) addPages(c *virtio.Chain) {
	n, _ := c.ReadAt(d.scratch[:], 0) // fewer is what there is
	if n == 0 || n%pfnSize != 0 || n < c.ReadableLen() || len(c.Writable) > 0 {
		d.stats.Refused++ // and served as far as it goes
	}
	for b := d.scratch[:n/pfnSize*pfnSize]; len(b) > 0; b = b[pfnSize:] {
		pfn := uint64(binary.LittleEndian.Uint32(b))
		d.ranges = append(d.ranges, Range{GPA: pfn * PageSize, Size: PageSize})
	}
}

// addBuffers collects the buffers of c, which are free pages themselves
// (section 5.5.6.7), unless they are to keep a value that is not zero (section
// 5.5.6.6).
func (d *Device) addBuffers(c *virtio.Chain) {
	if d.act.Features&featureReporting == 0 || len(c.Readable) > 0 || len(c.Writable) == 0 {
		d.stats.Refused++
		return
	}
	if d.act.Features&featurePagePoison != 0 && d.state.Poison != 0 {
		return
	}
	for i, at := range c.WritableAt {
		r := Range{GPA: at, Size: uint64(len(c.Writable[i]))}
		if !r.wellFormed() {
			d.stats.Refused++
			continue
		}
		d.ranges = append(d.ranges, r)
	}
}

// release hands on what was collected and tells how many pieces that was.
func (d *Device) release() int {
	joined, overlaps := join(d.ranges)
	d.stats.Refused += uint64(overlaps)
	good, bytes := joined[:0], uint64(0)
	for _, r := range joined {
		switch {
		case r.Size < d.cfg.MinRange:
			d.stats.Small++
		case !d.mayRelease(r):
			d.stats.Refused++
		default:
			good = append(good, r)
			bytes += r.Size
		}
	}
	if len(good) == 0 {
		return 0
	}
	if err := d.env.Release(good); err != nil {
		d.stats.Failed++
		return len(good)
	}
	d.stats.Ranges += uint64(len(good))
	d.stats.Released += bytes
	return len(good)
}

// mayRelease tells whether r is RAM and none of this device's rings, which it
// goes on to touch.
func (d *Device) mayRelease(r Range) bool {
	if r.overlaps(d.rings) {
		return false
	}
	_, err := d.act.Memory.Slice(r.GPA, r.Size)
	return err == nil
}
