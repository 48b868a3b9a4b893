package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// options are the flags of the measuring commands.
type options struct {
	rounds, warmup int
	scenarios      []string // names, in the order of a round
	json           bool
	phases         bool
	kernel         string
	agent          string
	qemu           string
	cmdline        string
	memoryMiB      int
	forks          []int
	timeout        time.Duration
	settle         time.Duration
}

// scenarioNames are all scenarios, in the order of a round.
var scenarioNames = []string{"cold-boot", "qemu-boot", "gokvm-boot", "fork"}

func parseOptions(args []string) (options, error) {
	o := options{scenarios: scenarioNames, forks: []int{1, 8}}
	fs := flag.NewFlagSet("bench boot", flag.ContinueOnError)
	fs.IntVar(&o.rounds, "rounds", 20, "how often each scenario is measured")
	fs.IntVar(&o.warmup, "warmup", 1, "rounds before those, which are not counted")
	fs.Func("scenarios", "comma-separated `names` (default all: "+strings.Join(scenarioNames, ",")+")", o.setScenarios)
	fs.BoolVar(&o.json, "json", false, "print JSON, an object a line, instead of Go benchmark text")
	fs.BoolVar(&o.phases, "phases", false, "also show on standard error where the time of a cold boot goes")
	fs.StringVar(&o.kernel, "kernel", defaultKernel(), "guest `kernel`, as forkvm takes it")
	fs.StringVar(&o.agent, "agent", "", "`program` that becomes the guest's agent (default forkvm-agent beside this one)")
	fs.StringVar(&o.qemu, "qemu", "qemu-system-x86_64", "QEMU `program` of qemu-boot")
	fs.StringVar(&o.cmdline, "cmdline", os.Getenv("FORKVM_CMDLINE"), "`options` to append to every guest's command line ($FORKVM_CMDLINE)")
	fs.IntVar(&o.memoryMiB, "memory", 256, "memory of every guest in `MiB`")
	fs.DurationVar(&o.settle, "settle", 500*time.Millisecond, "pause before each measurement, for what the one before left to the kernel")
	fs.DurationVar(&o.timeout, "timeout", 2*time.Minute, "how long one boot or fork may take")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("%w: argument %q", errUsage, fs.Arg(0))
	case o.rounds < 1 || o.warmup < 0:
		return o, fmt.Errorf("%w: --rounds must be at least 1, --warmup at least 0", errUsage)
	}
	return o, nil
}

// setScenarios takes a list of names and puts them in the order of a round.
func (o *options) setScenarios(list string) error {
	asked := strings.Split(list, ",")
	for _, name := range asked {
		if !slices.Contains(scenarioNames, name) {
			return fmt.Errorf("no scenario %q", name)
		}
	}
	o.scenarios = slices.DeleteFunc(slices.Clone(scenarioNames), func(name string) bool {
		return !slices.Contains(asked, name)
	})
	return nil
}

// kernelVariable names a kernel that runs natively on a KVM which ordinary
// kernels do not run on.
const kernelVariable = "FORKVM_BENCH_KERNEL"

// defaultKernel is the minimal kernel unless another is named: the baselines
// boot it too.
func defaultKernel() string {
	if k := os.Getenv(kernelVariable); k != "" {
		return k
	}
	return "minimal"
}
