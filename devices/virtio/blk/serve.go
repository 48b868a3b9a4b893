package blk

import "sync"

// maxInFlight is how many requests of a device are served at a time: enough to
// keep a backend busy that waits for hardware, few enough that thousands of
// devices do not exhaust the host's threads.
const maxInFlight = 8

// requests are those that nobody uses. They are shared by all devices, so that
// an idle one holds none.
var requests = sync.Pool{New: func() any { return new(request) }}

// look has a goroutine serve what is in the queues, and the driver notify of
// what comes later. At any time that a queue has something in it there are
// either as many goroutines as may be, or one that is yet to look: it starts
// the next if it finds something, so that there are never many more of them
// than requests.
func (d *Device) look() {
	if !d.running() || d.starting || d.workers == maxInFlight {
		return
	}
	more := false
	for _, q := range d.queues {
		if q != nil && q.SetNotify(true) {
			more = true
		}
	}
	if more {
		d.workers++
		d.starting = true
		go d.serving()
	}
}

// work serves requests until there are none or service ends.
func (d *Device) work() {
	r := requests.Get().(*request)
	d.mu.Lock()
	d.starting = false
	for d.pop(r) {
		d.look()
		d.mu.Unlock()
		r.serve(d)
		d.mu.Lock()
		d.finish(r)
	}
	d.workers--
	d.look() // what came when all were busy was not notified
	d.mu.Unlock()
	requests.Put(r)
}

// pop takes a request off the queues, each of which has its turn, and tells
// whether there was one.
func (d *Device) pop(r *request) bool {
	if !d.running() {
		return false
	}
	for range d.queues {
		i := d.turn
		d.turn = (d.turn + 1) % len(d.queues)
		q := d.queues[i]
		if q == nil {
			continue
		}
		c, err := q.Pop()
		if err != nil {
			d.stats.Refused++
			d.queues[i] = nil // broken until the driver resets the device
			continue
		}
		if c != nil {
			r.take(q, c, d.act.Features&featureFlush == 0)
			d.inFlight++
			return true
		}
	}
	return false
}

// finish gives a request back to the driver. The interrupt is raised without
// the lock, which a vCPU may be waiting for, and before the request counts as
// done with: after a Quiesce there are none.
func (d *Device) finish(r *request) {
	d.stats.add(r.stats)
	if r.failure != nil {
		d.failure = r.failure
	}
	q := r.queue
	if err := q.Push(r.head, r.written); err != nil {
		d.stats.Refused++
	}
	r.clear()
	if q.NeedInterrupt() {
		irq := d.act.Interrupt
		d.mu.Unlock()
		irq.Trigger()
		d.mu.Lock()
	}
	d.inFlight--
	if d.inFlight == 0 {
		d.idle.Broadcast()
	}
}
