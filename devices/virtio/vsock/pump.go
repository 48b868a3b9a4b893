package vsock

import (
	"time"

	"github.com/forkvm/forkvm/devices/virtio"
)

// pump makes one pass over the queues. If that was not enough, a goroutine
// makes more, so that neither a vCPU nor a caller on the host works for others
// without end.
func (d *Device) pump() {
	if d.pass() && !d.carrying {
		d.carrying = true
		go d.carryOn()
	}
}

// carryOn makes passes until nothing is left or the device is quiet, and lets
// others have the lock in between.
func (d *Device) carryOn() {
	for more := true; more; {
		d.mu.Lock()
		more = d.pass()
		d.carrying = more
		d.mu.Unlock()
	}
}

// pass moves up to a queue full of packets each way and interrupts at most
// once. It tells whether there may be more to do now.
func (d *Device) pass() (more bool) {
	if !d.running() {
		return false
	}
	settled := d.settleReset()
	more = d.consume()
	if settled {
		more = d.produce() || more
	}
	d.interrupt()
	// There may be room again for the replies that TX waits for.
	more = more || !d.txArmed && len(d.replies) < maxReplies
	return more && !d.broken
}

// consume handles TX packets. It stops while too many replies wait: the driver
// has then to take RX packets first (section 5.10.6.1.2).
func (d *Device) consume() (more bool) {
	if d.broken {
		return false
	}
	if d.txArmed && d.tx.Empty() {
		return false
	}
	d.tx.SetNotify(false)
	d.txArmed = false
	for range queueSize {
		if d.broken || len(d.replies) >= maxReplies {
			return false
		}
		c, err := d.tx.Pop()
		if err != nil {
			d.fail()
			return false
		}
		if c == nil {
			d.txArmed = true
			if !d.tx.SetNotify(true) {
				return false
			}
			d.txArmed = false
			continue
		}
		d.receive(c)
		d.push(queueTX, c.Head, 0)
		d.lazy++
	}
	return true
}

// produce fills RX buffers: first with replies, then in turn with one packet
// of each connection that has one.
func (d *Device) produce() (more bool) {
	if d.broken {
		return false
	}
	for range queueSize {
		c := d.ready.next()
		if c == nil && len(d.replies) == 0 {
			return false
		}
		chain, err := d.rx.Pop()
		if err != nil {
			d.fail()
			return false
		}
		if chain == nil {
			d.rxArmed = true
			if !d.rx.SetNotify(true) {
				return false
			}
			continue
		}
		if d.rxArmed {
			d.rxArmed = false
			d.rx.SetNotify(false)
		}
		d.push(queueRX, chain.Head, d.fill(chain, c))
	}
	return true
}

// fill writes one packet to chain, a reply or else one of c, and returns its
// size. It is 0 if the buffer is of no use.
func (d *Device) fill(chain *virtio.Chain, c *Conn) uint32 {
	room := chain.WritableLen() - headerSize
	if room < 0 {
		d.stats.Malformed++
		return 0
	}
	if len(d.replies) > 0 {
		r := d.replies[0]
		d.replies = d.replies[1:]
		d.write(chain, header{
			srcCID: r.HostCID, dstCID: d.cfg.CID,
			srcPort: r.HostPort, dstPort: r.GuestPort,
			typ: r.Type, op: opReset,
		}, nil)
		return headerSize
	}
	h, payload := c.packet(room)
	if h.op == opRW && len(payload) == 0 {
		d.stats.Malformed++ // a buffer of just a header
		return 0
	}
	d.write(chain, h, payload)
	c.sent(h.op, len(payload))
	d.ready.pop()
	d.schedule(c)
	return headerSize + uint32(len(payload))
}

func (d *Device) write(chain *virtio.Chain, h header, payload []byte) {
	h.len = uint32(len(payload))
	h.encode(&d.scratch)
	chain.WriteAt(d.scratch[:], 0)
	chain.WriteAt(payload, headerSize)
	d.stats.PacketsToGuest++
	d.stats.BytesToGuest += uint64(len(payload))
	if h.op == opReset {
		d.stats.ResetsSent++
	}
}

// push gives a chain back.
func (d *Device) push(queue int, head uint16, written uint32) {
	q := [numQueues]*virtio.Queue{d.rx, d.tx, d.event}[queue]
	if err := q.Push(head, written); err != nil {
		d.fail()
		return
	}
	d.used[queue] = true
}

// interrupt raises the interrupt if the driver wants one for what was pushed.
// If it is only for TX packets that were taken, it can wait for another: in a
// conversation there soon is one, and each costs the guest more than a packet.
func (d *Device) interrupt() {
	if d.used[queueRX] || d.used[queueEvent] || d.lazy >= maxLazy || d.lazyFor == 0 {
		d.interruptNow()
		return
	}
	if !d.used[queueTX] || d.waiting {
		return
	}
	d.waiting = true
	if d.hurry == nil {
		d.hurry = time.AfterFunc(d.lazyFor, d.waited)
	} else {
		d.hurry.Reset(d.lazyFor)
	}
}

// waited raises an interrupt that waited long enough. If there was another
// meanwhile, or the device is quiet, there is none to raise.
func (d *Device) waited() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = false
	if d.running() {
		d.interruptNow()
	}
}

func (d *Device) interruptNow() {
	need := false
	for i, q := range [numQueues]*virtio.Queue{d.rx, d.tx, d.event} {
		if d.used[i] {
			d.used[i] = false
			need = q.NeedInterrupt() || need
		}
	}
	d.lazy = 0
	if need {
		d.irq.Trigger()
	}
}

// schedule makes sure that what c has to send is sent in turn.
func (d *Device) schedule(c *Conn) {
	if !c.queued && c.pending() {
		d.ready.push(c)
	}
}

// fifo is a queue of connections. Each is in it at most once.
type fifo struct{ head, tail *Conn }

func (f *fifo) push(c *Conn) {
	c.queued, c.behind = true, nil
	if f.tail == nil {
		f.head = c
	} else {
		f.tail.behind = c
	}
	f.tail = c
}

func (f *fifo) pop() {
	c := f.head
	f.head = c.behind
	if f.head == nil {
		f.tail = nil
	}
	c.queued, c.behind = false, nil
}

// next is the first connection that has still something to send, or nil. It
// stays in the queue.
func (f *fifo) next() *Conn {
	for f.head != nil && !f.head.pending() {
		f.pop()
	}
	return f.head
}
