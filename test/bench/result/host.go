package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/probe"
)

// host is on what the measurement was made, and of what.
type host struct {
	kvm    string // flavour
	where  string // lab, native, or native-linux
	kernel string // release of the kernel that has the KVM
	cpu    string
	cpus   int
	commit string // of forkvm
}

func readHost() (host, error) {
	sys, err := kvm.Open("")
	if err != nil {
		return host{}, err
	}
	defer sys.Close()
	info, err := probe.Flavor(sys)
	if err != nil {
		return host{}, err
	}
	return host{
		kvm: flavor(info), where: where(), kernel: info.Kernel, cpu: info.CPU,
		cpus: runtime.NumCPU(), commit: commit,
	}, nil
}

func flavor(i probe.Info) string {
	kind := "hardware"
	if i.Emulated {
		kind = "emulated"
	}
	return fmt.Sprintf("%s (%s)", i.Name, kind)
}

// where tells the lab, whose first process is its own /init, from a host.
func where() string {
	if os.Getenv(kernelVariable) != "" {
		return "native-linux"
	}
	if init, err := os.Readlink("/proc/1/exe"); err == nil && init == "/init" {
		return "lab"
	}
	return "native"
}

// commit is the revision that this program was built from; set when it is
// linked.
var commit = "unknown"
