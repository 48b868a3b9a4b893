package vmm

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/forkvm/forkvm/kvm"
)

// ExitStats counts the exits from guest to host by kind.
type ExitStats struct {
	PIORead, PIOWrite   uint64 // port accesses
	MMIORead, MMIOWrite uint64 // memory-mapped accesses
	Interrupted         uint64 // KVM_RUN ended by a signal
	Other               uint64
	// UnmatchedRead and UnmatchedWrite are those of the accesses above that
	// no device answered: the guest read all ones, or wrote to nowhere.
	UnmatchedRead, UnmatchedWrite uint64
}

type exitCounters struct {
	pioRead, pioWrite, mmioRead, mmioWrite, interrupted, other atomic.Uint64
}

func (s *ExitStats) add(c *exitCounters) {
	s.PIORead += c.pioRead.Load()
	s.PIOWrite += c.pioWrite.Load()
	s.MMIORead += c.mmioRead.Load()
	s.MMIOWrite += c.mmioWrite.Load()
	s.Interrupted += c.interrupted.Load()
	s.Other += c.other.Load()
}

// TraceEvent is one exit from guest to host.
type TraceEvent struct {
	VCPU   int
	Reason string // name of the exit in the KVM API, without KVM_EXIT_
	Write  bool   // direction of an access, as the guest sees it
	Addr   uint64 // port or guest-physical address of an access
	Data   []byte // of an access, after it was answered; valid during the call
}

// String is a line for people.
func (e TraceEvent) String() string {
	if len(e.Data) == 0 {
		return fmt.Sprintf("vcpu%d %s", e.VCPU, e.Reason)
	}
	verb := "read"
	if e.Write {
		verb = "write"
	}
	return fmt.Sprintf("vcpu%d %s %s %#x [% x]", e.VCPU, e.Reason, verb, e.Addr, e.Data)
}

// handleExit answers one exit. It reports whether the vCPU should go on.
func (vm *VM) handleExit(c *vcpu) bool {
	reason := c.kvm.ExitReason()
	switch reason {
	case kvm.ExitIO:
		vm.handleIO(c)
	case kvm.ExitMMIO:
		vm.handleMMIO(c)
	case kvm.ExitIntr, kvm.ExitIRQWindowOpen:
		c.counters.other.Add(1)
	default:
		c.counters.other.Add(1)
		vm.trace(TraceEvent{VCPU: c.id, Reason: strings.TrimPrefix(reason.String(), "KVM_EXIT_")})
		vm.stop(vm.outcomeOf(c, reason))
	}
	return !vm.stopped()
}

func (vm *VM) handleIO(c *vcpu) {
	io := c.kvm.IO()
	if io.Out {
		c.counters.pioWrite.Add(uint64(io.Count))
	} else {
		c.counters.pioRead.Add(uint64(io.Count))
	}
	for data := io.Data; len(data) >= io.Size && io.Size > 0; data = data[io.Size:] {
		p := data[:io.Size:io.Size]
		if io.Out {
			vm.pio.Write(uint64(io.Port), p)
		} else {
			vm.pio.Read(uint64(io.Port), p)
		}
		vm.trace(TraceEvent{VCPU: c.id, Reason: "IO", Write: io.Out, Addr: uint64(io.Port), Data: p})
	}
}

func (vm *VM) handleMMIO(c *vcpu) {
	m := c.kvm.MMIO()
	if m.Write {
		c.counters.mmioWrite.Add(1)
		vm.mmio.Write(m.Addr, m.Data)
	} else {
		c.counters.mmioRead.Add(1)
		vm.mmio.Read(m.Addr, m.Data)
	}
	vm.trace(TraceEvent{VCPU: c.id, Reason: "MMIO", Write: m.Write, Addr: m.Addr, Data: m.Data})
}

func (vm *VM) trace(e TraceEvent) {
	if vm.cfg.Trace != nil {
		vm.cfg.Trace(e)
	}
}
