package serial

// Offsets. With the divisor latch bit set, the first two are the latch.
const (
	regData = 0 // RBR when read, THR when written, DLL
	regIER  = 1 // interrupt enable, DLM
	regIIR  = 2 // interrupt identification when read, FIFO control when written
	regLCR  = 3 // line control
	regMCR  = 4 // modem control
	regLSR  = 5 // line status
	regMSR  = 6 // modem status
	regSCR  = 7 // scratch
)

// Bits, PC16550D data sheet, table II.
const (
	ierReceived    = 0x01
	ierTransmitter = 0x02
	ierLineStatus  = 0x04
	ierModemStatus = 0x08
	ierMask        = 0x0f

	// Interrupt identification, highest priority first.
	iirLineStatus  = 0x06
	iirReceived    = 0x04
	iirTimeout     = 0x0c // bytes wait, fewer than the trigger level
	iirTransmitter = 0x02
	iirModemStatus = 0x00
	iirNone        = 0x01
	iirFIFO        = 0xc0

	fcrEnable  = 0x01
	fcrClearRx = 0x02
	fcrTrigger = 0xc0

	lcrDivisor = 0x80

	mcrDTR  = 0x01
	mcrRTS  = 0x02
	mcrOUT1 = 0x04
	mcrOUT2 = 0x08
	mcrLoop = 0x10
	mcrMask = 0x1f

	lsrReady            = 0x01
	lsrOverrun          = 0x02
	lsrTransmitterEmpty = 0x60 // THRE and TEMT

	msrDeltaCTS   = 0x01
	msrDeltaDSR   = 0x02
	msrTrailingRI = 0x04
	msrDeltaDCD   = 0x08
	msrDeltas     = 0x0f
	msrCTS        = 0x10
	msrDSR        = 0x20
	msrRI         = 0x40
	msrDCD        = 0x80
	msrPeer       = msrCTS | msrDSR | msrDCD // somebody is always there
)

// triggerLevels are the receive FIFO levels that FCR bits 6 and 7 select.
var triggerLevels = [4]int{1, 4, 8, 14}

// registers is the chip. It knows neither host nor locks.
type registers struct {
	ier, fcr, lcr, mcr, scr uint8
	dll, dlm                uint8
	overrun                 bool
	deltas                  uint8 // of the modem status
	thre                    bool  // a transmitter-empty interrupt is due
	rx                      fifo
}

// fifo is the receive FIFO.
type fifo struct {
	buf  [fifoSize]byte
	n    int
	head int
}

func (f *fifo) len() int { return f.n }

func (f *fifo) push(v byte) {
	f.buf[(f.head+f.n)%fifoSize] = v
	f.n++
}

func (f *fifo) pop() byte {
	v := f.buf[f.head]
	f.head = (f.head + 1) % fifoSize
	f.n--
	return v
}

func (r *registers) loopback() bool { return r.mcr&mcrLoop != 0 }

// rxDepth is how many received bytes the chip holds in its present mode.
func (r *registers) rxDepth() int {
	if r.fcr&fcrEnable != 0 {
		return fifoSize
	}
	return 1
}

// pending returns the identification of the most urgent interrupt, iirNone if
// there is none. The pin is high exactly if there is one.
func (r *registers) pending() uint8 {
	switch {
	case r.ier&ierLineStatus != 0 && r.overrun:
		return iirLineStatus
	case r.ier&ierReceived != 0 && r.rx.len() > 0:
		// The chip waits four character times before it reports a level below
		// the trigger. Characters take no time here.
		if r.fcr&fcrEnable != 0 && r.rx.len() < triggerLevels[r.fcr>>6] {
			return iirTimeout
		}
		return iirReceived
	case r.ier&ierTransmitter != 0 && r.thre:
		return iirTransmitter
	case r.ier&ierModemStatus != 0 && r.deltas != 0:
		return iirModemStatus
	}
	return iirNone
}

func (r *registers) read(reg uint8) uint8 {
	switch reg {
	case regData:
		return r.readData()
	case regIER:
		if r.lcr&lcrDivisor != 0 {
			return r.dlm
		}
		return r.ier
	case regIIR:
		return r.readIIR()
	case regLCR:
		return r.lcr
	case regMCR:
		return r.mcr
	case regLSR:
		return r.readLSR()
	case regMSR:
		v := r.modemStatus() | r.deltas
		r.deltas = 0
		return v
	default:
		return r.scr
	}
}

func (r *registers) readData() uint8 {
	switch {
	case r.lcr&lcrDivisor != 0:
		return r.dll
	case r.rx.len() == 0:
		return 0
	}
	return r.rx.pop()
}

// readIIR acknowledges the transmitter interrupt if that is what it reports.
func (r *registers) readIIR() uint8 {
	id := r.pending()
	if id == iirTransmitter {
		r.thre = false
	}
	if r.fcr&fcrEnable != 0 {
		id |= iirFIFO
	}
	return id
}

// readLSR acknowledges a line status interrupt.
func (r *registers) readLSR() uint8 {
	v := uint8(lsrTransmitterEmpty)
	if r.rx.len() > 0 {
		v |= lsrReady
	}
	if r.overrun {
		v |= lsrOverrun
		r.overrun = false
	}
	return v
}

// modemStatus is the state of the four input lines: those of the peer, or in
// loopback the chip's own output lines.
func (r *registers) modemStatus() uint8 {
	if !r.loopback() {
		return msrPeer
	}
	var v uint8
	for _, w := range [...]struct{ out, in uint8 }{
		{mcrRTS, msrCTS}, {mcrDTR, msrDSR}, {mcrOUT1, msrRI}, {mcrOUT2, msrDCD},
	} {
		if r.mcr&w.out != 0 {
			v |= w.in
		}
	}
	return v
}

// write reports whether v is to be transmitted.
func (r *registers) write(reg, v uint8) (transmit bool) {
	switch reg {
	case regData:
		return r.writeData(v)
	case regIER:
		r.writeIER(v)
	case regIIR:
		r.writeFCR(v)
	case regLCR:
		r.lcr = v
	case regMCR:
		r.writeMCR(v)
	case regSCR:
		r.scr = v
	}
	return false // LSR and MSR are read-only
}

func (r *registers) writeData(v uint8) (transmit bool) {
	if r.lcr&lcrDivisor != 0 {
		r.dll = v
		return false
	}
	// The byte leaves at once, so the holding register is empty again.
	r.thre = true
	if r.loopback() {
		r.loop(v)
		return false
	}
	return true
}

// loop receives what was transmitted. Only here can the receiver overrun:
// input from outside waits for room.
func (r *registers) loop(v uint8) {
	if r.rx.len() < r.rxDepth() {
		r.rx.push(v)
		return
	}
	r.overrun = true
	if r.fcr&fcrEnable == 0 { // without FIFO the new byte replaces the old
		r.rx.pop()
		r.rx.push(v)
	}
}

func (r *registers) writeIER(v uint8) {
	if r.lcr&lcrDivisor != 0 {
		r.dlm = v
		return
	}
	// The transmitter is empty: enabling its interrupt makes it due, however
	// often it was acknowledged. Drivers start output with this, and Linux
	// tests for it.
	if v&^r.ier&ierTransmitter != 0 {
		r.thre = true
	}
	r.ier = v & ierMask
}

func (r *registers) writeFCR(v uint8) {
	if v&fcrEnable == 0 {
		v = 0 // the other bits count only together with this one
	}
	if v&fcrClearRx != 0 || (v^r.fcr)&fcrEnable != 0 {
		r.rx = fifo{}
	}
	r.fcr = v & (fcrEnable | fcrTrigger)
}

func (r *registers) writeMCR(v uint8) {
	before := r.modemStatus()
	r.mcr = v & mcrMask
	after := r.modemStatus()
	changed := before ^ after
	for _, w := range [...]struct{ line, delta uint8 }{
		{msrCTS, msrDeltaCTS}, {msrDSR, msrDeltaDSR}, {msrDCD, msrDeltaDCD},
	} {
		if changed&w.line != 0 {
			r.deltas |= w.delta
		}
	}
	if before&^after&msrRI != 0 {
		r.deltas |= msrTrailingRI
	}
}
