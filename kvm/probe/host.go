package probe

import (
	"bufio"
	"io/fs"
	"slices"
	"strings"
)

// cpuInfo is what /proc/cpuinfo says of the first CPU.
type cpuInfo struct {
	model string
	flags []string
}

func (c cpuInfo) has(flag string) bool { return slices.Contains(c.flags, flag) }

// readCPU reads /proc/cpuinfo. A file that is missing or says nothing leaves
// the model Unknown and no flags.
func readCPU(host fs.FS) cpuInfo {
	c := cpuInfo{model: Unknown}
	f, err := host.Open("proc/cpuinfo")
	if err != nil {
		return c
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() && lines.Text() != "" { // an empty line ends the first CPU
		key, value, _ := strings.Cut(lines.Text(), ":")
		switch strings.TrimSpace(key) {
		case "model name":
			c.model = strings.TrimSpace(value)
		case "flags":
			c.flags = strings.Fields(value)
		}
	}
	return c
}

// moduleName tells which KVM module is at work. A kernel may have several built
// in, so that of a CPU without the hardware for it does not count.
func moduleName(host fs.FS, cpu cpuInfo) string {
	present := func(module string) bool {
		_, err := fs.Stat(host, "sys/module/"+module)
		return err == nil
	}
	switch {
	case present("kvm_amd") && cpu.has("svm"):
		return AMD
	case present("kvm_intel") && cpu.has("vmx"):
		return Intel
	case present("kvm_pvm"):
		return PVM
	}
	return Unknown
}
