package snapshot

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Needs is what a snapshot needs of the machine that is to run it. The same
// type says what a machine has, so that [Needs.Check] can compare the two.
type Needs struct {
	// Vendor is the CPU's, as CPUID leaf 0 spells it.
	Vendor string `json:"vendor,omitempty"`
	// Family, Model and Stepping tell where the snapshot was made. A machine
	// of another kind may run it if it has the features.
	Family   int `json:"family,omitempty"`
	Model    int `json:"model,omitempty"`
	Stepping int `json:"stepping,omitempty"`
	// Features are the CPUID registers that are sets of feature bits.
	Features []FeatureWords `json:"features,omitempty"`
	// XSAVESize is the size of KVM_GET_XSAVE2's buffer in bytes.
	XSAVESize int `json:"xsave_size,omitempty"`
	// TSCkHz is the rate of the guest's time stamp counter.
	TSCkHz int64 `json:"tsc_khz,omitempty"`
	// Capabilities are KVM's, by the names of their constants.
	Capabilities []string `json:"capabilities,omitempty"`
	// Memory is in bytes. [Store.Create] fills it in.
	Memory int64 `json:"memory"`
	// VCPUs is the number of virtual CPUs.
	VCPUs int `json:"vcpus,omitempty"`
}

// FeatureWords are the feature bits of one CPUID leaf. A register that is not
// a set of bits is left 0.
type FeatureWords struct {
	Leaf  uint32 `json:"leaf"`
	Index uint32 `json:"index,omitempty"`
	EAX   uint32 `json:"eax,omitempty"`
	EBX   uint32 `json:"ebx,omitempty"`
	ECX   uint32 `json:"ecx,omitempty"`
	EDX   uint32 `json:"edx,omitempty"`
}

// capTSCControl lets KVM run a guest at another TSC rate than the host's.
const capTSCControl = "KVM_CAP_TSC_CONTROL"

// Check tells whether a machine that has host can run what needs n. What the
// host leaves at its zero value is not compared, but features and
// capabilities always are. The error wraps [ErrIncompatible] and names
// everything that is missing.
func (n Needs) Check(host Needs) error {
	var missing []string
	miss := func(format string, args ...any) { missing = append(missing, fmt.Sprintf(format, args...)) }
	if host.Vendor != "" && n.Vendor != host.Vendor {
		miss("CPU of %s, this one is of %s", n.Vendor, host.Vendor)
	}
	if lacks := n.lacks(host); len(lacks) > 0 {
		miss("CPU features %s", strings.Join(lacks, ", "))
	}
	if host.XSAVESize != 0 && n.XSAVESize != host.XSAVESize {
		miss("XSAVE area of %d bytes, this machine's has %d", n.XSAVESize, host.XSAVESize)
	}
	if host.TSCkHz != 0 && n.TSCkHz != 0 && !sameRate(n.TSCkHz, host.TSCkHz) && !slices.Contains(host.Capabilities, capTSCControl) {
		miss("TSC at %d kHz, this machine has %d and cannot scale it", n.TSCkHz, host.TSCkHz)
	}
	for _, c := range n.Capabilities {
		if !slices.Contains(host.Capabilities, c) {
			miss("%s", c)
		}
	}
	if host.Memory != 0 && n.Memory > host.Memory {
		miss("%d bytes of memory, there are %d", n.Memory, host.Memory)
	}
	if host.VCPUs != 0 && n.VCPUs > host.VCPUs {
		miss("%d vCPUs, KVM allows %d", n.VCPUs, host.VCPUs)
	}
	if len(missing) > 0 {
		return fmt.Errorf("snapshot: %w: it needs %s", ErrIncompatible, strings.Join(missing, "; "))
	}
	return nil
}

// sameRate allows what clocks drift, as KVM does: 250 ppm.
func sameRate(a, b int64) bool {
	d := max(a, b) - min(a, b)
	return d <= b/4000
}

// lacks names the feature bits that host has not.
func (n Needs) lacks(host Needs) (names []string) {
	for _, need := range n.Features {
		var have FeatureWords
		for _, h := range host.Features {
			if h.Leaf == need.Leaf && h.Index == need.Index {
				have = h
			}
		}
		names = append(names, need.bits("EAX", need.EAX&^have.EAX)...)
		names = append(names, need.bits("EBX", need.EBX&^have.EBX)...)
		names = append(names, need.bits("ECX", need.ECX&^have.ECX)...)
		names = append(names, need.bits("EDX", need.EDX&^have.EDX)...)
	}
	return names
}

// bits names single bits as the Intel SDM does: CPUID.07H.0:EBX[16], with the
// feature's name where people know it by one.
func (f FeatureWords) bits(register string, word uint32) (names []string) {
	for ; word != 0; word &= word - 1 {
		bit := bits.TrailingZeros32(word)
		name := fmt.Sprintf("CPUID.%02XH.%d:%s[%d]", f.Leaf, f.Index, register, bit)
		if known := featureNames[featureBit{f.Leaf, f.Index, register, bit}]; known != "" {
			name = known + " (" + name + ")"
		}
		names = append(names, name)
	}
	return names
}

type featureBit struct {
	leaf, index uint32
	register    string
	bit         int
}

// featureNames are those by which machines of today differ.
var featureNames = map[featureBit]string{
	{0x1, 0, "ECX", 12}: "FMA",
	{0x1, 0, "ECX", 22}: "MOVBE",
	{0x1, 0, "ECX", 25}: "AES",
	{0x1, 0, "ECX", 26}: "XSAVE",
	{0x1, 0, "ECX", 28}: "AVX",
	{0x1, 0, "ECX", 29}: "F16C",
	{0x1, 0, "ECX", 30}: "RDRAND",
	{0x7, 0, "EBX", 0}:  "FSGSBASE",
	{0x7, 0, "EBX", 3}:  "BMI1",
	{0x7, 0, "EBX", 5}:  "AVX2",
	{0x7, 0, "EBX", 8}:  "BMI2",
	{0x7, 0, "EBX", 16}: "AVX512F",
	{0x7, 0, "EBX", 18}: "RDSEED",
	{0x7, 0, "EBX", 19}: "ADX",
	{0x7, 0, "EBX", 29}: "SHA",
	{0x7, 0, "EBX", 30}: "AVX512BW",
	{0x7, 0, "EBX", 31}: "AVX512VL",
	{0x7, 0, "ECX", 3}:  "PKU",
	{0x7, 0, "ECX", 9}:  "VAES",
	{0x7, 0, "ECX", 16}: "LA57",
	{0x7, 0, "EDX", 22}: "AMX-BF16",
	{0x7, 0, "EDX", 23}: "AVX512-FP16",
	{0x7, 0, "EDX", 24}: "AMX-TILE",
	{0x7, 0, "EDX", 25}: "AMX-INT8",
	{0x7, 1, "EAX", 4}:  "AVX-VNNI",
	{0xd, 1, "EAX", 3}:  "XSAVES",
}
