package result

import (
	"fmt"
	"os"
	"runtime"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/probe"
)

// Places where is measured, by what Line.Where says.
const (
	Native      = "native"       // this machine's KVM, with a guest of a few instructions
	NativeLinux = "native-linux" // this machine's KVM, with a Linux guest
	Lab         = "lab"          // a machine emulated in software, with a genuine KVM
)

// Host is on what was measured, and what.
type Host struct {
	KVM    string `json:"kvm"` // flavour
	Where  string `json:"where"`
	Kernel string `json:"kernel"` // release of the kernel that has the KVM
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Commit string `json:"commit"` // of forkvm
	Date   string `json:"date"`   // YYYY-MM-DD
	// Load is the load average of the last minute before: with more than the
	// measurement's own, times are rough.
	Load float64 `json:"load"`
}

// ReadHost asks the machine. Of where, Lab is found out.
func ReadHost(where, commit, date string) (Host, error) {
	sys, err := kvm.Open("")
	if err != nil {
		return Host{}, err
	}
	defer sys.Close()
	info, err := probe.Flavor(sys)
	if err != nil {
		return Host{}, err
	}
	if inLab() {
		where = Lab
	}
	return Host{
		KVM: flavor(info), Where: where, Kernel: info.Kernel, CPU: info.CPU,
		CPUs: runtime.NumCPU(), Commit: commit, Date: date, Load: loadAverage(),
	}, nil
}

// loadAverage is 0 if nothing is known.
func loadAverage() (load float64) {
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(b), &load)
	}
	return load
}

func flavor(i probe.Info) string {
	kind := "hardware"
	if i.Emulated {
		kind = "emulated"
	}
	return fmt.Sprintf("%s (%s)", i.Name, kind)
}

// inLab tells the lab, whose first process is its own /init.
func inLab() bool {
	init, err := os.Readlink("/proc/1/exe")
	return err == nil && init == "/init"
}
