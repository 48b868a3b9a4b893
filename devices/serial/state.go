package serial

// State is everything about a port that a guest can see. Whatever a State
// holds, a port can be restored from it.
type State struct {
	InterruptEnable uint8 // IER
	FIFOControl     uint8 // FCR without the bits that clear
	LineControl     uint8 // LCR
	ModemControl    uint8 // MCR
	ModemDeltas     uint8 // MSR bits 0 to 3
	Scratch         uint8
	DivisorLow      uint8
	DivisorHigh     uint8
	Overrun         bool // LSR bit 1

	// TransmitterDue says that the guest has not yet been told that the
	// transmitter is empty. Without it a guest captured in the middle of its
	// output would wait for that interrupt for ever.
	TransmitterDue bool

	// Received is the receive FIFO, at most 16 bytes.
	Received []byte
	// Input is what the host sent and the chip has not received yet. A fork
	// may leave it out: the child's console is another one.
	Input []byte
}

// Save returns the state of the port. What the guest has sent is not part of
// it; that has left the machine.
func (d *Device) Save() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &d.regs
	s := State{
		InterruptEnable: r.ier,
		FIFOControl:     r.fcr,
		LineControl:     r.lcr,
		ModemControl:    r.mcr,
		ModemDeltas:     r.deltas,
		Scratch:         r.scr,
		DivisorLow:      r.dll,
		DivisorHigh:     r.dlm,
		Overrun:         r.overrun,
		TransmitterDue:  r.thre,
		Input:           d.input.bytes(),
	}
	for rx := r.rx; rx.len() > 0; {
		s.Received = append(s.Received, rx.pop())
	}
	return s
}

// Restore returns a port that goes on from state. It raises no interrupt: what
// the original raised is in the interrupt controllers. See [Device.Resume].
// Bits that do not exist and bytes that do not fit are left out.
func Restore(cfg Config, env Env, state State) *Device {
	d := &Device{
		interrupt: env.Interrupt,
		output:    env.Output,
		closed:    make(chan struct{}),
		input:     ring{size: bufferSize(cfg.InputBuffer)},
		out:       ring{size: bufferSize(cfg.OutputBuffer)},
		regs:      restoreRegisters(state),
	}
	d.drain = d.writeOutput
	d.input.write(state.Input)
	d.receive()
	d.line = d.regs.pending() != iirNone
	return d
}

func restoreRegisters(s State) registers {
	r := registers{
		ier:     s.InterruptEnable & ierMask,
		lcr:     s.LineControl,
		mcr:     s.ModemControl & mcrMask,
		deltas:  s.ModemDeltas & msrDeltas,
		scr:     s.Scratch,
		dll:     s.DivisorLow,
		dlm:     s.DivisorHigh,
		overrun: s.Overrun,
		thre:    s.TransmitterDue,
	}
	r.writeFCR(s.FIFOControl)
	for _, v := range s.Received[:min(len(s.Received), r.rxDepth())] {
		r.rx.push(v)
	}
	return r
}

func bufferSize(n int) int {
	if n <= 0 {
		return defaultBuffer
	}
	return n
}
