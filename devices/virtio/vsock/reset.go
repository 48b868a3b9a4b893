package vsock

import "encoding/binary"

// resetPhase is how far the transport reset of a restored device is (section
// 5.10.6.7).
//
//	owed ──event published──▶ published ──buffer given back──▶ none
type resetPhase int

const (
	resetNone resetPhase = iota
	resetOwed
	resetPublished
)

// settleReset brings the transport reset on and tells whether it is over.
func (d *Device) settleReset() bool {
	if d.resetting != resetNone && d.event == nil {
		d.resetting = resetNone // nobody to tell
	}
	if d.resetting == resetOwed {
		d.publishReset()
	}
	if d.resetting == resetPublished && d.event.Available() > d.unhandled {
		d.resetting = resetNone
	}
	return d.resetting == resetNone && !d.broken
}

// publishReset puts the event in the first buffer there is.
func (d *Device) publishReset() {
	for range eventQueueSize {
		c, err := d.event.Pop()
		switch {
		case err != nil:
			d.fail()
			return
		case c == nil:
			if d.event.SetNotify(true) {
				continue
			}
			return
		case c.WritableLen() < eventSize:
			d.stats.Malformed++
			d.push(queueEvent, c.Head, 0)
			continue
		}
		// What is there beside this buffer was there before the event: one
		// more means that the driver gave this one back.
		d.unhandled = d.event.Available()
		var ev [eventSize]byte
		binary.LittleEndian.PutUint32(ev[:], eventTransportReset)
		c.WriteAt(ev[:], 0)
		d.push(queueEvent, c.Head, eventSize)
		d.resetting = resetPublished
		d.notifyBeyond(d.unhandled)
		return
	}
}

// notifyBeyond asks to be notified when the driver adds an event buffer to the
// n that are there. The queue asks for the one after what was popped.
func (d *Device) notifyBeyond(n int) {
	popped := 0
	for popped < n {
		c, err := d.event.Pop()
		if err != nil {
			d.fail()
			return
		}
		if c == nil {
			break
		}
		popped++
	}
	d.event.SetNotify(true)
	for range popped {
		d.event.Undo()
	}
}
