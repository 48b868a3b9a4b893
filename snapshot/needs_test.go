package snapshot

import (
	"errors"
	"strings"
	"testing"
)

func TestB28CheckNamesWhatIsMissing(t *testing.T) {
	machine := func(change func(*Needs)) Needs {
		n := Needs{
			Vendor: "GenuineIntel", Family: 6, Model: 143, XSAVESize: 2696, TSCkHz: 2_000_000, Memory: 1 << 30, VCPUs: 4,
			Features:     []FeatureWords{{Leaf: 1, ECX: 1<<28 | 1<<12}, {Leaf: 7, EBX: 1<<5 | 1<<16, EDX: 1 << 24}},
			Capabilities: []string{"KVM_CAP_XSAVE2", "KVM_CAP_IRQFD"},
		}
		if change != nil {
			change(&n)
		}
		return n
	}
	for name, c := range map[string]struct {
		host func(*Needs)
		want []string // in the error; none if it can run
	}{
		"the same":                  {nil, nil},
		"another model":             {func(n *Needs) { n.Model, n.Stepping = 106, 3 }, nil},
		"more features":             {func(n *Needs) { n.Features[1].ECX, n.Capabilities = 1<<3, append(n.Capabilities, "KVM_CAP_X") }, nil},
		"nothing known but the CPU": {func(n *Needs) { *n = Needs{Features: n.Features, Capabilities: n.Capabilities} }, nil},
		"another vendor":            {func(n *Needs) { n.Vendor = "AuthenticAMD" }, []string{"GenuineIntel", "AuthenticAMD"}},
		"no AVX-512 and no AMX": {
			func(n *Needs) { n.Features[1].EBX, n.Features[1].EDX = 1<<5, 0 },
			[]string{"AVX512F (CPUID.07H.0:EBX[16])", "AMX-TILE"},
		},
		"no such leaf":                {func(n *Needs) { n.Features = n.Features[:1] }, []string{"AVX2", "AVX512F"}},
		"M12: a larger XSAVE area":    {func(n *Needs) { n.XSAVESize = 11008 }, []string{"2696", "11008"}},
		"M12: a smaller XSAVE area":   {func(n *Needs) { n.XSAVESize = 4096 }, []string{"2696", "4096"}},
		"a clock a little off":        {func(n *Needs) { n.TSCkHz = 2_000_500 }, nil},
		"a faster clock":              {func(n *Needs) { n.TSCkHz = 2_001_000 }, []string{"2000000 kHz", "2001000"}},
		"a faster clock that adapts":  {func(n *Needs) { n.TSCkHz, n.Capabilities = 3_000_000, append(n.Capabilities, capTSCControl) }, nil},
		"a capability less":           {func(n *Needs) { n.Capabilities = n.Capabilities[:1] }, []string{"KVM_CAP_IRQFD"}},
		"little memory":               {func(n *Needs) { n.Memory = 1 << 20 }, []string{"1073741824", "1048576"}},
		"few vCPUs":                   {func(n *Needs) { n.VCPUs = 2 }, []string{"4 vCPUs"}},
		"another vendor, fewer vCPUs": {func(n *Needs) { n.Vendor, n.VCPUs = "x", 1 }, []string{"GenuineIntel", "4 vCPUs"}},
	} {
		err := machine(nil).Check(machine(c.host))
		if len(c.want) == 0 && err != nil || len(c.want) > 0 && !errors.Is(err, ErrIncompatible) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, word := range c.want {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q does not say %q", name, err, word)
			}
		}
	}
}
