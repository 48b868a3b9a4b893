package vmm

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/snapshot"
)

// featureLeaves are the CPUID registers that are sets of features, by bits of
// a mask: 1 EAX, 2 EBX, 4 ECX, 8 EDX.
var featureLeaves = []struct {
	leaf, index uint32
	registers   int
}{
	{leafFeatures, 0, 4 | 8},
	{leafStructured, 0, 2 | 4 | 8},
	{leafStructured, 1, 1},
	{leafXSAVE, 0, 1},
	{leafXSAVE, 1, 1},
	{leafKVMFeatures, 0, 1},
	{leafExtFeatures, 0, 4 | 8},
	{0x80000007, 0, 8}, // EDX[8]: TSC that neither stops nor changes its rate
	{leafExtSize, 0, 2},
}

// cpuNeeds is what a guest that was shown a CPUID relies on.
func cpuNeeds(cpuid []kvm.CPUIDEntry2) snapshot.Needs {
	var n snapshot.Needs
	for _, e := range cpuid {
		switch {
		case e.Function == 0:
			var v [12]byte
			binary.LittleEndian.PutUint32(v[0:], e.EBX)
			binary.LittleEndian.PutUint32(v[4:], e.EDX)
			binary.LittleEndian.PutUint32(v[8:], e.ECX)
			n.Vendor = string(v[:])
		case e.Function == leafFeatures:
			n.Family, n.Model, n.Stepping = cpuModel(e.EAX)
		}
		for _, l := range featureLeaves {
			if e.Function == l.leaf && e.Index == l.index {
				n.Features = append(n.Features, featureWords(e, l.registers))
			}
		}
	}
	return n
}

// cpuModel decodes CPUID.01H:EAX: Intel SDM volume 2, "CPUID", "Version
// Information".
func cpuModel(eax uint32) (family, model, stepping int) {
	family, model, stepping = int(eax>>8&15), int(eax>>4&15), int(eax&15)
	if family == 15 || family == 6 {
		model |= int(eax>>16&15) << 4
	}
	if family == 15 {
		family += int(eax >> 20 & 255)
	}
	return family, model, stepping
}

func featureWords(e kvm.CPUIDEntry2, registers int) snapshot.FeatureWords {
	w := snapshot.FeatureWords{Leaf: e.Function, Index: e.Index}
	for i, r := range []struct {
		to   *uint32
		from uint32
	}{{&w.EAX, e.EAX}, {&w.EBX, e.EBX}, {&w.ECX, e.ECX}, {&w.EDX, e.EDX}} {
		if registers>>i&1 != 0 {
			*r.to = r.from
		}
	}
	return w
}

// needs is what a machine of this state must have from its host.
func (st *machineState) needs() snapshot.Needs {
	n := cpuNeeds(st.kvm.CPUID)
	first := st.kvm.VCPUs[0]
	n.XSAVESize = len(first.XSAVE)
	n.TSCkHz = int64(first.TSCKHz)
	n.VCPUs = len(st.kvm.VCPUs)
	for _, c := range neededCaps {
		n.Capabilities = append(n.Capabilities, c.String())
	}
	return n
}

// hostNeeds is what this host has, in the same terms.
func hostNeeds(path string) (n snapshot.Needs, err error) {
	sys, err := openKVM(path)
	if err != nil {
		return n, fmt.Errorf("vmm: %w", err)
	}
	defer sys.Close()
	cpuid, err := guestCPUID(sys)
	if err != nil {
		return n, err
	}
	n = cpuNeeds(cpuid)
	n.VCPUs = MaxVCPUs
	for _, c := range append([]kvm.Cap{kvm.CapTSCControl}, neededCaps...) {
		has, err := sys.CheckExtension(c)
		if err != nil {
			return n, fmt.Errorf("vmm: KVM_CHECK_EXTENSION %v: %w", c, err)
		}
		if has != 0 {
			n.Capabilities = append(n.Capabilities, c.String())
		}
	}
	// A CPU without XSAVE2's larger areas has the 4 KiB of KVM_GET_XSAVE.
	if n.XSAVESize, err = sys.CheckExtension(kvm.CapXSAVE2); err != nil {
		return n, fmt.Errorf("vmm: size of XSAVE: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return n, fmt.Errorf("vmm: sysinfo: %w", err)
	}
	n.Memory = int64((info.Totalram + info.Totalswap) * uint64(info.Unit))
	return n, nil
}
