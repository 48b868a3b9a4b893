package kvm

import "golang.org/x/sys/unix"

// Regs issues KVM_GET_REGS.
func (c *VCPU) Regs() (r Regs, err error) {
	_, err = exchange(&c.fd, reqGetRegs, &r)
	return r, err
}

// SetRegs issues KVM_SET_REGS. It clears pending exceptions, so SetVCPUEvents
// comes after it.
func (c *VCPU) SetRegs(r *Regs) error {
	_, err := exchange(&c.fd, reqSetRegs, r)
	return err
}

// Sregs issues KVM_GET_SREGS.
func (c *VCPU) Sregs() (s Sregs, err error) {
	_, err = exchange(&c.fd, reqGetSregs, &s)
	return s, err
}

// SetSregs issues KVM_SET_SREGS.
func (c *VCPU) SetSregs(s *Sregs) error {
	_, err := exchange(&c.fd, reqSetSregs, s)
	return err
}

// Sregs2 issues KVM_GET_SREGS2. See [CapSregs2].
func (c *VCPU) Sregs2() (s Sregs2, err error) {
	_, err = exchange(&c.fd, reqGetSregs2, &s)
	return s, err
}

// SetSregs2 issues KVM_SET_SREGS2.
func (c *VCPU) SetSregs2(s *Sregs2) error {
	_, err := exchange(&c.fd, reqSetSregs2, s)
	return err
}

// FPU issues KVM_GET_FPU. KVM leaves out MXCSR, which XSAVE has.
func (c *VCPU) FPU() (f FPU, err error) {
	_, err = exchange(&c.fd, reqGetFPU, &f)
	return f, err
}

// SetFPU issues KVM_SET_FPU. It leaves MXCSR as it is, and does not mark the
// state as in use: what is in its initial state so far is still initial when the
// guest runs. SetXSAVE sets all of it.
func (c *VCPU) SetFPU(f *FPU) error {
	_, err := exchange(&c.fd, reqSetFPU, f)
	return err
}

// XSAVE issues KVM_GET_XSAVE. It is EINVAL where the state is larger than 4096
// bytes, and XSAVE2 is the call to use.
func (c *VCPU) XSAVE() (x XSAVEState, err error) {
	_, err = exchange(&c.fd, reqGetXSAVE, &x)
	return x, err
}

// SetXSAVE issues KVM_SET_XSAVE. It is EINVAL where the state is larger than
// 4096 bytes: the kernel would read on behind x.
func (c *VCPU) SetXSAVE(x *XSAVEState) error {
	if c.xsaveSize > len(x.Region) {
		return reqSetXSAVE.failed(unix.EINVAL)
	}
	_, err := exchange(&c.fd, reqSetXSAVE, x)
	return err
}

// XSAVE2 issues KVM_GET_XSAVE2 with a buffer of size bytes, which is what
// [VM.CheckExtension] of [CapXSAVE2] answers. A smaller one, into which the
// kernel would not fit, is EINVAL.
func (c *VCPU) XSAVE2(size int) ([]byte, error) {
	if size < c.xsaveSize {
		return nil, reqGetXSAVE2.failed(unix.EINVAL)
	}
	area := make([]byte, size)
	if _, err := exchange(&c.fd, reqGetXSAVE2, &area[0]); err != nil {
		return nil, err
	}
	return area, nil
}

// SetXSAVE2 issues KVM_SET_XSAVE with an area as XSAVE2 returns it. One smaller
// than the kernel reads is EINVAL.
func (c *VCPU) SetXSAVE2(area []byte) error {
	if len(area) < c.xsaveSize {
		return reqSetXSAVE.failed(unix.EINVAL)
	}
	_, err := exchange(&c.fd, reqSetXSAVE, &area[0])
	return err
}

// XCRs issues KVM_GET_XCRS.
func (c *VCPU) XCRs() (x XCRs, err error) {
	_, err = exchange(&c.fd, reqGetXCRs, &x)
	return x, err
}

// SetXCRs issues KVM_SET_XCRS.
func (c *VCPU) SetXCRs(x *XCRs) error {
	_, err := exchange(&c.fd, reqSetXCRs, x)
	return err
}

// DebugRegs issues KVM_GET_DEBUGREGS.
func (c *VCPU) DebugRegs() (d DebugRegs, err error) {
	_, err = exchange(&c.fd, reqGetDebugRegs, &d)
	return d, err
}

// SetDebugRegs issues KVM_SET_DEBUGREGS.
func (c *VCPU) SetDebugRegs(d *DebugRegs) error {
	_, err := exchange(&c.fd, reqSetDebugRegs, d)
	return err
}

// LAPIC issues KVM_GET_LAPIC. The VM has interrupt controllers in the kernel.
func (c *VCPU) LAPIC() (l LAPICState, err error) {
	_, err = exchange(&c.fd, reqGetLAPIC, &l)
	return l, err
}

// SetLAPIC issues KVM_SET_LAPIC. The APIC base in SetSregs selects the layout,
// so it comes first.
func (c *VCPU) SetLAPIC(l *LAPICState) error {
	_, err := exchange(&c.fd, reqSetLAPIC, l)
	return err
}

// MPState issues KVM_GET_MP_STATE. On the way the kernel accepts pending INIT
// and SIPI, which may change other state, so it is the first to save.
func (c *VCPU) MPState() (m MPState, err error) {
	_, err = exchange(&c.fd, reqGetMPState, &m)
	return m, err
}

// SetMPState issues KVM_SET_MP_STATE.
func (c *VCPU) SetMPState(m MPState) error {
	_, err := exchange(&c.fd, reqSetMPState, &m)
	return err
}

// VCPUEvents issues KVM_GET_VCPU_EVENTS.
func (c *VCPU) VCPUEvents() (e VCPUEvents, err error) {
	_, err = exchange(&c.fd, reqGetVCPUEvents, &e)
	return e, err
}

// SetVCPUEvents issues KVM_SET_VCPU_EVENTS.
func (c *VCPU) SetVCPUEvents(e *VCPUEvents) error {
	_, err := exchange(&c.fd, reqSetVCPUEvents, e)
	return err
}

// MSRs issues KVM_GET_MSRS: it fills in the Data of entries by their Index, and
// returns how many it filled. The kernel stops at the first MSR it does not
// know: then the number is that entry's position and the error wraps
// [ErrMSRRefused]. More than 255 entries are E2BIG.
func (c *VCPU) MSRs(entries []MSREntry) (int, error) {
	return transferMSRs(&c.fd, reqGetMSRs, entries)
}

// SetMSRs issues KVM_SET_MSRS: it sets the entries in order, and returns how
// many it set. The kernel stops at the first MSR or value that it refuses: then
// the number is that entry's position and the error wraps [ErrMSRRefused]. More
// than 255 entries are E2BIG.
func (c *VCPU) SetMSRs(entries []MSREntry) (int, error) {
	return transferMSRs(&c.fd, reqSetMSRs, entries)
}

// CPUID2 issues KVM_GET_CPUID2.
func (c *VCPU) CPUID2() ([]CPUIDEntry2, error) {
	return readCPUID(&c.fd, reqGetCPUID2)
}

// SetCPUID2 issues KVM_SET_CPUID2: the leaves that the guest's CPUID answers,
// by which KVM also decides what MSRs and XSAVE state the guest has. So it
// comes before the rest of the state and before the vCPU first runs.
func (c *VCPU) SetCPUID2(entries []CPUIDEntry2) error {
	buf, leaves := newArray[CPUIDEntry2](len(entries))
	copy(leaves, entries)
	_, err := exchange(&c.fd, reqSetCPUID2, &buf[0])
	return err
}
