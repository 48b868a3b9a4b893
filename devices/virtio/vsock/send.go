package vsock

// owe adds to the control packets that c has to send.
func (c *Conn) owe(what int) {
	c.owes |= what
	c.dev.schedule(c)
}

// credit is how many bytes of payload the guest can take now (section
// 5.10.6.3). What it claims to have forwarded without having got it counts as
// nothing forwarded.
func (c *Conn) credit() int {
	inFlight := c.txCnt - c.peerFwd
	if inFlight >= c.peerAlloc {
		return 0
	}
	return int(c.peerAlloc - inFlight)
}

// sendable tells whether a data packet can be sent.
func (c *Conn) sendable() bool {
	return c.phase == open && len(c.out) > 0 && c.shut&shutSend == 0 &&
		c.peerShut&shutReceive == 0 && c.credit() > 0
}

// pending tells whether c has a packet to send.
func (c *Conn) pending() bool { return c.owes != 0 || c.sendable() }

// packet is the next packet to send, with at most room bytes of payload. There
// is one: see pending. A connection is begun before it carries data, and data
// goes before the end of the stream.
func (c *Conn) packet(room int) (h header, payload []byte) {
	h = header{
		srcCID: HostCID, dstCID: c.dev.cfg.CID,
		srcPort: c.ports.host, dstPort: c.ports.guest,
		typ:      typeStream,
		bufAlloc: uint32(c.dev.cfg.Buffer), fwdCnt: c.fwdCnt,
	}
	switch {
	case c.owes&oweReset != 0:
		h.op = opReset
	case c.owes&oweRequest != 0:
		h.op = opRequest
	case c.owes&oweResponse != 0:
		h.op = opResponse
	case c.sendable():
		h.op = opRW
		payload = c.out[:min(len(c.out), c.credit(), room, maxPayload)]
	case c.owes&oweShutdown != 0:
		h.op, h.flags = opShutdown, c.shut
	default:
		h.op = opCreditUpdate
	}
	return h, payload
}

// sent notes that the packet that was next is in guest memory.
func (c *Conn) sent(op uint16, n int) {
	c.fwdTold = c.fwdCnt
	c.owes &^= oweCredit // every packet carries it
	switch op {
	case opReset:
		c.owes = 0
		delete(c.dev.conns, c.ports)
	case opRequest:
		c.owes &^= oweRequest
	case opResponse:
		c.owes &^= oweResponse
	case opShutdown:
		c.owes &^= oweShutdown
	case opRW:
		c.txCnt += uint32(n)
		if c.out = c.out[n:]; len(c.out) == 0 {
			c.writable.Broadcast()
		}
	}
}

// updateCredit makes the guest hear of free space once half of what it can use
// is free without its knowing. Linux limits what it has under way to its own
// buffer size as well, which can be smaller than ours: with a larger threshold
// it would wait for us and we for it.
func (c *Conn) updateCredit() {
	untold := c.fwdCnt - c.fwdTold
	window := min(uint32(c.dev.cfg.Buffer), c.peerAlloc)
	if untold > 0 && untold >= window/2 && c.shut&shutReceive == 0 {
		c.owe(oweCredit)
	}
}
