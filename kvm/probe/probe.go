// Package probe answers what kind of KVM a machine has: which module, on which
// CPU, and whether its guests run on the hardware or are interpreted.
package probe

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
)

// Names of the kinds of KVM.
const (
	AMD     = "kvm-amd"
	Intel   = "kvm-intel"
	PVM     = "kvm-pvm" // software: user code runs as it is, kernel code is interpreted
	Unknown = "unknown"
)

// Info is what kind of KVM this is. It belongs beside every figure measured
// with it.
type Info struct {
	// Name is AMD, Intel, PVM or Unknown, from what /sys/module has.
	Name string `json:"name"`
	// Emulated says that the guest's kernel code is interpreted: an instruction
	// takes it many times as long as it takes the host. It is found by timing,
	// so it holds for a KVM of any name.
	Emulated bool `json:"emulated"`
	// GuestNsPerInsn and HostNsPerInsn are the nanoseconds an instruction takes
	// in one and the same loop, by a guest at privilege level 0 and by this
	// process.
	GuestNsPerInsn float64 `json:"guest_ns_per_insn"`
	HostNsPerInsn  float64 `json:"host_ns_per_insn"`
	// ExitNs is the nanoseconds that an exit of the guest and its return take,
	// for a byte of port output.
	ExitNs float64 `json:"exit_ns"`
	// Nested says that this machine is a virtual one itself.
	Nested bool `json:"nested"`
	// CPU is the model name, Kernel the release of the host's kernel.
	CPU    string `json:"cpu"`
	Kernel string `json:"kernel"`
}

// emulatedRatio is how many times slower than the host's a guest's instruction
// is taken for interpreted. Hardware comes out near 1, also where "hardware" is
// an emulated CPU which is slow for host and guest alike; an interpreter comes
// out in the thousands.
const emulatedRatio = 20

// Flavor finds out what kind of KVM s is. It builds and runs a guest of a few
// bytes for tens of milliseconds. With an error, which wraps that of the call
// that failed, Info holds what could be found out without a guest.
func Flavor(s *kvm.System) (Info, error) {
	host := os.DirFS("/")
	cpu := readCPU(host)
	info := Info{
		Name:   moduleName(host, cpu),
		Nested: cpu.has("hypervisor"),
		CPU:    cpu.model,
		Kernel: kernelRelease(),
	}
	g, err := newGuest(s)
	if err != nil {
		return info, fmt.Errorf("probe: build a guest: %w", err)
	}
	defer g.close()
	t, err := measure(g)
	if err != nil {
		return info, fmt.Errorf("probe: run a guest: %w", err)
	}
	info.GuestNsPerInsn, info.HostNsPerInsn, info.ExitNs = t.guest, t.host, t.exit
	info.Emulated = t.guest > emulatedRatio*t.host
	return info, nil
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Unknown
	}
	return unix.ByteSliceToString(u.Release[:])
}
