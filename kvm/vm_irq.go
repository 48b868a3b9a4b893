package kvm

// CreateIRQChip issues KVM_CREATE_IRQCHIP: two PICs, an IOAPIC, and a local
// APIC for each vCPU made afterwards. GSIs 0..15 go to PICs and IOAPIC, 16..23
// to the IOAPIC.
func (v *VM) CreateIRQChip() error {
	_, err := v.fd.call(reqCreateIRQChip, 0)
	return err
}

// CreatePIT2 issues KVM_CREATE_PIT2: an i8254 on GSI 0. It needs the interrupt
// controllers.
func (v *VM) CreatePIT2(c PITConfig) error {
	_, err := exchange(&v.fd, reqCreatePIT2, &c)
	return err
}

// IRQLine issues KVM_IRQ_LINE: it sets the level, 0 or 1, of an input of the
// interrupt controllers. An edge is a 1 followed by a 0.
func (v *VM) IRQLine(gsi, level uint32) error {
	_, err := exchange(&v.fd, reqIRQLine, &irqLevel{irq: gsi, level: level})
	return err
}

// IRQLineStatus issues KVM_IRQ_LINE_STATUS: IRQLine that tells what became of
// the interrupt: it reached a vCPU (positive), was coalesced with one pending
// (0) or was masked (negative).
func (v *VM) IRQLineStatus(gsi, level uint32) (status int32, err error) {
	l := irqLevel{irq: gsi, level: level}
	if _, err := exchange(&v.fd, reqIRQLineStatus, &l); err != nil {
		return 0, err
	}
	return int32(l.irq), nil
}

// SignalMSI issues KVM_SIGNAL_MSI: it delivers a message-signalled interrupt. 0
// says that the guest blocked it, a positive number that it was delivered.
func (v *VM) SignalMSI(m MSI) (int, error) {
	return exchange(&v.fd, reqSignalMSI, &m)
}

// IRQChip issues KVM_GET_IRQCHIP for [PICMaster], [PICSlave] or [IOAPIC].
func (v *VM) IRQChip(id uint32) (IRQChip, error) {
	c := IRQChip{ID: id}
	_, err := exchange(&v.fd, reqGetIRQChip, &c)
	return c, err
}

// SetIRQChip issues KVM_SET_IRQCHIP for the controller that c.ID names.
func (v *VM) SetIRQChip(c IRQChip) error {
	_, err := exchange(&v.fd, reqSetIRQChip, &c)
	return err
}

// PIT2 issues KVM_GET_PIT2.
func (v *VM) PIT2() (s PITState2, err error) {
	_, err = exchange(&v.fd, reqGetPIT2, &s)
	return s, err
}

// SetPIT2 issues KVM_SET_PIT2. The kernel starts the counters at the call, not
// at CountLoadTime.
func (v *VM) SetPIT2(s *PITState2) error {
	_, err := exchange(&v.fd, reqSetPIT2, s)
	return err
}

// SetGSIRouting issues KVM_SET_GSI_ROUTING: entries replaces all routes, those
// that CreateIRQChip made included.
func (v *VM) SetGSIRouting(entries []IRQRoutingEntry) error {
	buf, routes := newArray[IRQRoutingEntry](len(entries))
	copy(routes, entries)
	_, err := exchange(&v.fd, reqSetGSIRouting, &buf[0])
	return err
}

// IRQFD issues KVM_IRQFD: it connects an eventfd to a GSI, so that a write to
// the one is an edge on the other, or disconnects it.
func (v *VM) IRQFD(f IRQFD) error {
	_, err := exchange(&v.fd, reqIRQFD, &f)
	return err
}

// IOEventFD issues KVM_IOEVENTFD: it connects guest writes to an address or
// port to an eventfd, without an exit to the VMM, or disconnects them.
func (v *VM) IOEventFD(f IOEventFD) error {
	_, err := exchange(&v.fd, reqIOEventFD, &f)
	return err
}
