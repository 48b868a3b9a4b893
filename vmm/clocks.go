package vmm

import (
	"fmt"
	"math"
	"math/bits"
)

// instant is what a guest's two clocks show at the same time: the KVM clock in
// nanoseconds and the time-stamp counter in cycles. offset is what KVM adds to
// the host's counter to get the guest's.
type instant struct {
	clock       uint64
	tsc, offset uint64
}

// readClocks reads both clocks of the machine. There is no way to read them at
// once on every host, so the counter is read between two reads of the clock,
// and of several tries the first with less than 5 µs between, or
// that with the least, is taken. It runs on the thread of lead.
func (s *shell) readClocks(lead *vcpu) (now instant, err error) {
	const tries, narrow = 5, 5000
	best := uint64(math.MaxUint64)
	for try := 0; try < tries && best > narrow; try++ {
		at, width, err := s.readClocksOnce(lead)
		if err != nil {
			return instant{}, fmt.Errorf("vmm: read clocks: %w", err)
		}
		if width < best {
			best, now = width, at
		}
	}
	if now.offset, err = lead.kvm.TSCOffset(); err != nil {
		return instant{}, fmt.Errorf("vmm: read clocks: %w", err)
	}
	return now, nil
}

func (s *shell) readClocksOnce(c *vcpu) (at instant, width uint64, err error) {
	before, err := s.vm.Clock()
	if err != nil {
		return at, 0, err
	}
	if at.tsc, err = readMSR(c.kvm, msrTSC); err != nil {
		return at, 0, err
	}
	after, err := s.vm.Clock()
	if err != nil {
		return at, 0, err
	}
	width = after.Clock - before.Clock
	at.clock = before.Clock + width/2
	return at, width, nil
}

// restoreClocks sets the clock to where it stopped, and returns the offset
// with which the counter of every vCPU goes on from where it stopped, as the
// clock has by then: what passes on one passes on the other.
//
// Some KVMs accept an offset and do not apply it. There the counter shows the
// host's time, and the clock is set to agree with that instead.
func (s *shell) restoreClocks(lead *vcpu, st *kvmState) (offset uint64, err error) {
	clock := st.Chips.Clock
	if err := s.vm.SetClock(&clock); err != nil {
		return 0, fmt.Errorf("vmm: KVM_SET_CLOCK: %w", err)
	}
	now, err := s.readClocks(lead)
	if err != nil {
		return 0, err
	}
	saved, khz := st.VCPUs[0].TSC, st.VCPUs[0].TSCKHz
	passed := now.clock - min(now.clock, clock.Clock)
	offset = saved + cycles(passed, khz) - (now.tsc - now.offset)
	if offset == now.offset || tscOffsetWorks(lead, offset) {
		return offset, nil
	}
	if now.tsc > saved && khz != 0 {
		clock.Clock += nanoseconds(now.tsc-saved, khz)
		err = s.vm.SetClock(&clock)
	}
	if err != nil {
		return 0, fmt.Errorf("vmm: KVM_SET_CLOCK: %w", err)
	}
	return offset, nil
}

// tscOffsetWorks sets the offset of the first vCPU and reads it back.
func tscOffsetWorks(lead *vcpu, offset uint64) bool {
	if err := lead.kvm.SetTSCOffset(offset); err != nil {
		return false
	}
	got, err := lead.kvm.TSCOffset()
	return err == nil && got == offset
}

// cycles converts nanoseconds to cycles of a counter of khz thousand a second.
func cycles(ns uint64, khz uint32) uint64 { return mulDiv(ns, uint64(khz), 1e6) }

// nanoseconds is the reverse of cycles; khz is not 0.
func nanoseconds(cycles uint64, khz uint32) uint64 { return mulDiv(cycles, 1e6, uint64(khz)) }

// mulDiv is a*b/c in 128 bits, and no more than fits into 64.
func mulDiv(a, b, c uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi >= c {
		return math.MaxUint64
	}
	q, _ := bits.Div64(hi, lo, c)
	return q
}
