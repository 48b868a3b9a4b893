package vmm

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/forkvm/forkvm/kvm"
)

// CPUID leaves and bits that the machine changes. Names follow the AMD64
// manual volume 3 appendix E, Intel's SDM volume 2 "CPUID", and
// Documentation/virt/kvm/x86/cpuid.rst.
const (
	leafFeatures    = 0x1
	leafCache       = 0x4
	leafStructured  = 0x7
	leafTopology    = 0xb
	leafXSAVE       = 0xd
	leafTopologyV2  = 0x1f
	leafKVMFeatures = 0x40000001
	leafExtFeatures = 0x80000001
	leafExtSize     = 0x80000008
	leafCacheAMD    = 0x8000001d
	leafTopologyAMD = 0x8000001e

	ecxVMX         = 1 << 5
	ecxTSCDeadline = 1 << 24
	ecxHypervisor  = 1 << 31
	edxHTT         = 1 << 28
	ecxSVM         = 1 << 2

	ecxSHSTK                     = 1 << 7
	edxIBT                       = 1 << 20
	xssCETUser, xssCETSupervisor = 1 << 11, 1 << 12

	kvmAsyncPF, kvmAsyncPFVMExit, kvmAsyncPFInt = 1 << 4, 1 << 10, 1 << 14
)

// guestCPUID is what the host's KVM supports, less what a capture could not
// carry over:
//
//   - nested virtualization, whose state is not saved;
//   - asynchronous page faults, which may be in flight at any moment;
//   - shadow stacks and indirect branch tracking (CET), whose registers are
//     reached by other means than the state that is saved.
func guestCPUID(s *kvm.System) ([]kvm.CPUIDEntry2, error) {
	entries, err := s.SupportedCPUID()
	if err != nil {
		return nil, fmt.Errorf("vmm: supported CPUID: %w", err)
	}
	deadline, err := s.CheckExtension(kvm.CapTSCDeadlineTimer)
	if err != nil {
		return nil, fmt.Errorf("vmm: KVM_CHECK_EXTENSION: %w", err)
	}
	for i := range entries {
		switch e := &entries[i]; e.Function {
		case leafFeatures:
			e.ECX = e.ECX&^ecxVMX | ecxHypervisor
			if deadline != 0 {
				e.ECX |= ecxTSCDeadline
			}
		case leafStructured:
			if e.Index == 0 {
				e.ECX &^= ecxSHSTK
				e.EDX &^= edxIBT
			}
		case leafXSAVE:
			if e.Index == 1 {
				e.ECX &^= xssCETUser | xssCETSupervisor
			}
		case leafExtFeatures:
			e.ECX &^= ecxSVM
		case leafKVMFeatures:
			e.EAX &^= kvmAsyncPF | kvmAsyncPFVMExit | kvmAsyncPFInt
		}
	}
	return entries, nil
}

// cpuidFor adds what differs by vCPU: its APIC id, and a topology of n
// single-threaded cores in one package.
func cpuidFor(entries []kvm.CPUIDEntry2, id, n int) []kvm.CPUIDEntry2 {
	out := slices.Clone(entries)
	apic, cores := uint32(id), uint32(n)
	shift := uint32(bits.Len32(cores - 1)) // APIC id bits that number the cores
	for i := range out {
		switch e := &out[i]; e.Function {
		case leafFeatures:
			e.EBX = e.EBX&0xffff | cores<<16 | apic<<24
			e.EDX &^= edxHTT
			if n > 1 {
				e.EDX |= edxHTT
			}
		case leafCache:
			if e.EAX&0x1f == 0 {
				break // no more caches
			}
			// Bits 31:26: cores of the package less one.
			// Bits 25:14: logical CPUs that share this cache less one;
			// the third level is everybody's.
			sharing := uint32(0)
			if e.EAX>>5&7 == 3 {
				sharing = cores - 1
			}
			e.EAX = e.EAX&0x3fff | (cores-1)<<26 | sharing<<14
		case leafExtSize:
			e.ECX = e.ECX&^0xf0ff | shift<<12 | (cores - 1)
		case leafCacheAMD:
			sharing := uint32(0)
			if e.EAX>>5&7 == 3 {
				sharing = cores - 1
			}
			if e.EAX&0x1f != 0 {
				e.EAX = e.EAX&^(0xfff<<14) | sharing<<14
			}
		case leafTopologyAMD:
			e.EAX = apic
			e.EBX = e.EBX&^0xffff | apic // core id; one thread a core
			e.ECX = 0                    // one node
		}
	}
	return replaceTopology(out, apic, cores, shift)
}

// replaceTopology puts in the levels of leaf 0xB and, where the host has it,
// 0x1F: one thread a core, and the cores of the package. KVM offers the first
// level alone.
func replaceTopology(entries []kvm.CPUIDEntry2, apic, cores, shift uint32) []kvm.CPUIDEntry2 {
	const significantIndex = 1 // KVM_CPUID_FLAG_SIGNIFCANT_INDEX
	const threadLevel, coreLevel = 1 << 8, 2 << 8
	for _, leaf := range []uint32{leafTopology, leafTopologyV2} {
		has := func(e kvm.CPUIDEntry2) bool { return e.Function == leaf }
		if !slices.ContainsFunc(entries, has) {
			continue
		}
		entries = append(slices.DeleteFunc(entries, has),
			kvm.CPUIDEntry2{Function: leaf, Index: 0, Flags: significantIndex, EBX: 1, ECX: threadLevel, EDX: apic},
			kvm.CPUIDEntry2{Function: leaf, Index: 1, Flags: significantIndex, EAX: shift, EBX: cores, ECX: coreLevel | 1, EDX: apic},
			kvm.CPUIDEntry2{Function: leaf, Index: 2, Flags: significantIndex, ECX: 2, EDX: apic},
		)
	}
	return entries
}
