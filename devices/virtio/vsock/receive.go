package vsock

import (
	"syscall"

	"github.com/forkvm/forkvm/devices/virtio"
)

// receive handles one TX packet. Its header is copied before it is looked at;
// the payload is copied once, to where it is read from.
func (d *Device) receive(chain *virtio.Chain) {
	var h header
	if _, err := chain.ReadAt(d.scratch[:], 0); err != nil {
		d.stats.Malformed++
		return
	}
	h.decode(&d.scratch)
	if uint64(h.len) > uint64(chain.ReadableLen()-headerSize) || h.srcCID != d.cfg.CID {
		d.stats.Malformed++
		return
	}
	d.stats.PacketsFromGuest++
	d.stats.BytesFromGuest += uint64(h.len)
	if h.op == opReset {
		d.stats.ResetsReceived++
	}

	c := d.conns[ports{guest: h.srcPort, host: h.dstPort}]
	switch {
	case h.dstCID != HostCID || h.typ != typeStream:
		d.refuse(h)
	case c != nil:
		c.receive(h, chain)
	case h.op == opRequest:
		d.accept(h)
	default:
		d.refuse(h)
	}
}

// refuse answers a packet that belongs to no connection with RST, unless it is
// one. The RST looks as if it came from where the packet was sent to, with the
// packet's type, or the driver would not find the socket.
func (d *Device) refuse(h header) {
	if h.op == opReset {
		return
	}
	d.replies = append(d.replies, Reset{HostCID: h.dstCID, HostPort: h.dstPort, GuestPort: h.srcPort, Type: h.typ})
}

// accept handles a request of the guest for a new connection.
func (d *Device) accept(h header) {
	l := d.listeners[h.dstPort]
	if l == nil || len(l.backlog) >= d.cfg.Backlog || len(d.conns) >= d.cfg.MaxConns {
		d.refuse(h)
		return
	}
	c := d.newConn(ports{guest: h.srcPort, host: h.dstPort})
	c.phase = open
	c.peerAlloc, c.peerFwd = h.bufAlloc, h.fwdCnt
	c.owe(oweResponse)
	l.backlog = append(l.backlog, c)
	l.arrived.Signal()
}

// receive handles a packet from the guest's end of c.
func (c *Conn) receive(h header, chain *virtio.Chain) {
	if c.phase == dead {
		return // an RST is on its way and answers everything
	}
	c.peerAlloc, c.peerFwd = h.bufAlloc, h.fwdCnt // in every packet, section 5.10.6.3
	switch {
	case h.op == opReset:
		c.receiveReset()
	case c.phase == dialing && h.op == opResponse:
		c.phase = open
		c.readable.Broadcast()
	case c.phase == dialing:
		c.violate()
	case h.op == opRW:
		c.receiveData(h, chain)
	case h.op == opShutdown:
		c.receiveShutdown(h.flags)
	case h.op == opCreditRequest:
		c.owe(oweCredit)
	case h.op == opCreditUpdate:
	default:
		c.violate()
	}
	if c.phase == open {
		c.updateCredit() // the window may have shrunk
		c.dev.schedule(c)
	}
}

// receiveData queues the payload. The guest may send what fits the buffer.
func (c *Conn) receiveData(h header, chain *virtio.Chain) {
	if c.peerShut&shutSend != 0 || uint64(c.in.len())+uint64(h.len) > uint64(c.dev.cfg.Buffer) {
		c.violate()
		return
	}
	if c.shut&shutReceive != 0 {
		c.fwdCnt += h.len
		c.dev.stats.Dropped += uint64(h.len)
		return
	}
	skip, left := headerSize, int(h.len)
	for _, b := range chain.Readable {
		k := min(skip, len(b))
		skip, b = skip-k, b[k:]
		b = b[:min(left, len(b))]
		left -= len(b)
		c.in.write(b)
	}
	c.readable.Signal()
}

// receiveShutdown notes that the guest sends or receives no more. When it does
// neither, the answer is RST (section 5.10.6.5): what it sent is here already.
func (c *Conn) receiveShutdown(flags uint32) {
	c.peerShut |= flags & shutBoth
	if c.peerShut == shutBoth {
		c.die(nil, true)
		return
	}
	c.readable.Broadcast()
	c.writable.Broadcast()
}

// receiveReset ends the connection. It is the expected end if both directions
// were shut down from here.
func (c *Conn) receiveReset() {
	switch {
	case c.phase == dialing:
		c.die(syscall.ECONNREFUSED, false)
	case c.shut == shutBoth:
		c.die(nil, false)
	default:
		c.die(syscall.ECONNRESET, false)
	}
}

// violate resets the connection because the guest broke the protocol.
func (c *Conn) violate() {
	c.dev.stats.Malformed++
	c.die(syscall.ECONNRESET, true)
}
