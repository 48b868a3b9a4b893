package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/probe"
)

const labFix = "use the lab, an emulated machine with a genuine KVM: make demo, or bin/lab run -- PROGRAM"

// kvmChecks looks at the device. It also says whether it is backed by
// hardware.
func kvmChecks(path string) (checks []Check, hardware bool) {
	checks = append(checks, device(path))
	access, sys := access(path)
	checks = append(checks, access)
	if sys == nil {
		return append(checks, unreached()...), false
	}
	defer sys.Close()
	version := apiVersion(sys)
	checks = append(checks, version)
	if version.Status != Pass {
		return append(checks, Check{Group: "kvm", Name: "kvm flavor"}.skip("another API")), false
	}
	flavor, hardware := flavor(sys)
	checks = append(checks, flavor)
	return append(checks, capabilities(sys)...), hardware
}

// unreached stands for the checks that need an open device.
func unreached() []Check {
	const why = "KVM could not be opened"
	return []Check{
		Check{Group: "kvm", Name: "kvm api"}.skip(why),
		Check{Group: "kvm", Name: "kvm flavor"}.skip(why),
		Check{Group: "capability", Name: "capabilities"}.skip(why),
	}
}

func device(path string) Check {
	c := Check{Group: "kvm", Name: "kvm device"}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c.fail(path+" does not exist",
			"modprobe kvm_intel or kvm_amd, with virtualization on in the firmware (or nested virtualization in the cloud); else "+labFix)
	case err != nil:
		return c.fail(err.Error(), "make "+path+" reachable")
	case st.Mode()&fs.ModeCharDevice == 0:
		return c.fail(path+" is not a device", "remove it and modprobe kvm_intel or kvm_amd")
	}
	return c.pass(path)
}

// access opens the device.
func access(path string) (Check, *kvm.System) {
	c := Check{Group: "kvm", Name: "kvm access"}
	sys, err := kvm.Open(path)
	switch {
	case err == nil:
		return c.pass("it can be opened"), sys
	case errors.Is(err, fs.ErrNotExist):
		return c.skip("no device"), nil
	case errors.Is(err, fs.ErrPermission):
		return c.fail(err.Error(), accessFix(path)), nil
	case errors.Is(err, unix.EBUSY):
		return c.fail(err.Error(), "stop the other hypervisor that has the CPU's virtualization"), nil
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return c.fail(err.Error(), "modprobe kvm_intel or kvm_amd; else "+labFix), nil
	}
	return c.fail(err.Error(), "make "+path+" a working KVM"), nil
}

// accessFix says how this user gets at the device: by its group, if that is
// one and has access.
func accessFix(path string) string {
	name := "root"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	st, err := os.Stat(path)
	if err != nil {
		return "become root"
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || st.Mode()&0o060 != 0o060 || sys.Gid == 0 {
		return fmt.Sprintf("as root: setfacl -m u:%s:rw %s", name, path)
	}
	group := strconv.Itoa(int(sys.Gid))
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	return fmt.Sprintf("as root: usermod -aG %s %s, and log in again", group, name)
}

func apiVersion(sys *kvm.System) Check {
	c := Check{Group: "kvm", Name: "kvm api"}
	v, err := sys.APIVersion()
	if err != nil {
		return c.fail(err.Error(), "use a device that is KVM")
	}
	if v != 12 {
		return c.fail(fmt.Sprintf("version %d", v), "use a Linux that speaks version 12, as all since 2.6.22 do")
	}
	return c.pass("version 12")
}

// flavor tells hardware virtualization from a KVM that interprets the guest's
// kernel.
func flavor(sys *kvm.System) (Check, bool) {
	c := Check{Group: "kvm", Name: "kvm flavor"}
	info, err := probe.Flavor(sys)
	if err != nil {
		return c.fail(err.Error(), "this KVM cannot run even a guest of a few instructions; "+labFix), false
	}
	detail := fmt.Sprintf("%s on %s, %.1f ns an instruction (host %.1f)", Flavor(info), info.CPU, info.GuestNsPerInsn, info.HostNsPerInsn)
	if info.Emulated {
		return c.warn(detail+": guests of a few instructions run, ordinary Linux kernels do not", labFix), false
	}
	return c.pass(detail), true
}

// Flavor is what kind of KVM this is, in a few words.
func Flavor(i probe.Info) string {
	kind := "hardware"
	if i.Emulated {
		kind = "emulated"
	}
	if i.Nested {
		kind += ", nested"
	}
	return fmt.Sprintf("%s (%s)", i.Name, kind)
}

// needed are what no machine of forkvm is without.
var needed = []kvm.Cap{
	kvm.CapIRQChip, kvm.CapUserMemory, kvm.CapSetTSSAddr, kvm.CapSetIdentityMapAddr, kvm.CapExtCPUID,
	kvm.CapMPState, kvm.CapPIT2, kvm.CapPITState2, kvm.CapAdjustClock, kvm.CapVCPUEvents,
	kvm.CapDebugRegs, kvm.CapXSAVE2, kvm.CapXCRs, kvm.CapImmediateExit, kvm.CapGetTSCKHz, kvm.CapVCPUAttributes,
}

// helpful are what makes a machine better, by what is lost without.
var helpful = []struct {
	cap  kvm.Cap
	lost string
}{
	{kvm.CapTSCDeadlineTimer, "guests use a slower timer"},
	{kvm.CapTSCControl, "a machine's state can only go on where the TSC has the same frequency"},
	{kvm.CapKVMClockCtrl, "a forked guest may report a stall that was none"},
	{kvm.CapInternalErrorData, "crashes of a guest are reported with less detail"},
}

func capabilities(sys *kvm.System) []Check {
	var checks []Check
	for _, want := range needed {
		c := Check{Group: "capability", Name: want.String()}
		switch n, err := sys.CheckExtension(want); {
		case err != nil:
			c = c.fail(err.Error(), "use a newer Linux")
		case n == 0:
			c = c.fail("missing, and forkvm needs it", "use a newer Linux (5.17 has all), or another KVM")
		default:
			c = c.pass(strconv.Itoa(n))
		}
		checks = append(checks, c)
	}
	for _, want := range helpful {
		c := Check{Group: "capability", Name: want.cap.String()}
		if n, err := sys.CheckExtension(want.cap); err != nil || n == 0 {
			c = c.warn("missing: "+want.lost, "use a newer Linux, or another KVM")
		} else {
			c = c.pass(strconv.Itoa(n))
		}
		checks = append(checks, c)
	}
	return checks
}
