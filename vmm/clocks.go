package vmm

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/forkvm/forkvm/kvm"
)

// instant is what a guest's two clocks show at the same time: the KVM clock in
// nanoseconds and the time-stamp counter in cycles.
type instant struct{ clock, tsc uint64 }

// readClocks reads both clocks of the machine. There is no way to read them at
// once on every host, so the counter is read between two reads of the clock,
// and of several tries the first with less than 20 µs between,
// or that with the least, is taken. It runs on the thread of lead.
func (s *shell) readClocks(lead *vcpu) (now instant, err error) {
	const tries, narrow = 5, 20_000 // ns
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
// Where offsets have no effect the counter shows the host's time, and the
// clock is set to agree with that instead.
func (s *shell) restoreClocks(lead *vcpu, st *kvmState) (offset uint64, err error) {
	clock, saved, khz := st.Chips.Clock, st.VCPUs[0].TSC, st.VCPUs[0].TSCKHz
	if s.tscFixed {
		tsc, err := readMSR(lead.kvm, msrTSC)
		if err != nil {
			return 0, fmt.Errorf("vmm: read clocks: %w", err)
		}
		if tsc > saved && khz != 0 {
			clock.Clock += nanoseconds(tsc-saved, khz)
		}
	}
	if err := s.vm.SetClock(&clock); err != nil {
		return 0, fmt.Errorf("vmm: KVM_SET_CLOCK: %w", err)
	}
	if s.tscFixed {
		return 0, nil
	}
	now, err := s.readClocks(lead)
	if err != nil {
		return 0, err
	}
	have, err := lead.kvm.TSCOffset()
	if err != nil {
		return 0, fmt.Errorf("vmm: read clocks: %w", err)
	}
	passed := now.clock - min(now.clock, clock.Clock)
	return saved + cycles(passed, khz) - (now.tsc - have), nil
}

// tscIsFixed tells whether this KVM accepts an offset of the counter and does
// not apply it. It runs on the vCPU's thread, before the vCPU is used.
func tscIsFixed(c *kvm.VCPU) (bool, error) {
	have, err := c.TSCOffset()
	if err != nil {
		return false, err
	}
	const other = 1 << 20
	if err := c.SetTSCOffset(have + other); err != nil {
		return false, err
	}
	got, err := c.TSCOffset()
	if err != nil || got == have {
		return true, err
	}
	return false, c.SetTSCOffset(have)
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
