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
// and of several tries the one with the least time between is taken.
func (s *shell) readClocks() (now instant, err error) {
	const tries = 5
	c := s.vcpus[0]
	ok := c.do(func() {
		best := uint64(math.MaxUint64)
		for range tries {
			var try instant
			var width uint64
			if try, width, err = s.readClocksOnce(c); err != nil {
				return
			}
			if width < best {
				best, now = width, try
			}
		}
		now.offset, err = c.kvm.TSCOffset()
	})
	if !ok {
		return instant{}, ErrClosed
	}
	if err != nil {
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

// tscOffset computes the offset with which the counter of every vCPU goes on
// from where it stopped, as the clock does that was just set: what has passed
// on one since passes on the other.
func (s *shell) tscOffset(st *kvmState) (uint64, error) {
	now, err := s.readClocks()
	if err != nil {
		return 0, err
	}
	passed := now.clock - st.Chips.Clock.Clock
	host := now.tsc - now.offset
	return st.VCPUs[0].TSC + cycles(passed, st.VCPUs[0].TSCKHz) - host, nil
}

// cycles converts nanoseconds to cycles of a counter of khz thousand a second.
func cycles(ns uint64, khz uint32) uint64 {
	hi, lo := bits.Mul64(ns, uint64(khz))
	if hi >= 1e6 {
		return math.MaxUint64 // no clock runs that long
	}
	q, _ := bits.Div64(hi, lo, 1e6)
	return q
}
