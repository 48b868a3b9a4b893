package blk

import "sync"

const (
	// maxInFlight is how many requests of a device are served at a time: enough
	// to keep a backend busy that waits for hardware, few enough that thousands
	// of devices do not exhaust the host's threads.
	maxInFlight = 8

	// promptBytes and promptRequests are what is served at most on the thread of
	// a vCPU that notified, if the backend need not wait: about what is done in
	// the time that another thread takes to wake.
	promptBytes    = 128 << 10
	promptRequests = 32

	// probeEvery is how many notifications are served promptly before a
	// goroutine is left to look how many requests gather meanwhile.
	probeEvery = 64
)

// waiting has an element for each request of the process whose backend may wait,
// which then takes a thread. A Go program that has too many of them is ended.
var waiting = make(chan struct{}, 512)

// requests are those that nobody uses. They are shared by all devices, so that
// an idle one holds none.
var requests sync.Pool

// look has the driver notify of what comes from now on, and a goroutine serve
// what is there. It is called before anything that may wait and before a
// goroutine ends, so that whenever a queue has something in it there is
// somebody who will look, or as many requests in flight as may be. A goroutine
// that is started looks in its turn before it waits: there are never many more
// of them than requests.
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
		if d.workers == 0 {
			d.burst = 0
		}
		d.workers++
		d.starting = true
		go d.newRequest().run()
	}
}

func (d *Device) newRequest() *request {
	r, ok := requests.Get().(*request)
	if !ok {
		r = new(request)
		r.run = func() { r.dev.work(r) }
	}
	r.dev = d
	return r
}

// free ends the use of r, which is no request.
func (r *request) free() {
	r.dev = nil
	requests.Put(r)
}

// work serves requests until there are none or service ends. It begins with r
// if that is one that was popped already.
func (d *Device) work(r *request) {
	d.mu.Lock()
	if !r.popped() {
		d.starting = false
	}
	for r.popped() || d.pop(r) {
		d.mu.Unlock()
		if !r.try(anySize) {
			d.mu.Lock()
			d.look()
			d.mu.Unlock()
			waiting <- struct{}{}
			r.serve()
			<-waiting
		}
		d.mu.Lock()
		d.finish(r)
	}
	d.workers--
	if d.workers == 0 {
		d.deep = d.burst > 1
	}
	d.look()
	d.mu.Unlock()
	r.free()
}

// prompt tells whether to serve on the thread that notifies. A driver with one
// request at a time waits for each, so that the sooner it has the answer the
// better. One with several has more for us if it may go on, and then needs to
// notify once and be interrupted once for all of them. Which one it is shows
// only if it may go on, so that is tried now and then.
func (d *Device) prompt() bool {
	if d.trier == nil || d.deep {
		return false
	}
	d.asked++
	return d.asked%probeEvery != 0
}

// servePromptly serves a few requests on the thread of a vCPU, as long as the
// backend need not wait. One for which it must goes to a goroutine.
func (d *Device) servePromptly() {
	left := uint64(promptBytes)
	for range promptRequests {
		if d.starting || d.workers == maxInFlight || left == 0 {
			return
		}
		r := d.newRequest()
		if !d.pop(r) {
			r.free()
			return
		}
		d.workers++
		d.mu.Unlock()
		done := r.try(left)
		d.mu.Lock()
		if !done {
			d.burst = 1
			go r.run()
			return
		}
		left -= r.stats.ReadBytes + r.stats.WrittenBytes
		d.finish(r)
		d.workers--
		r.free()
	}
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
			d.burst++
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
