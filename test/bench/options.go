package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/forkvm/forkvm/test/bench/native"
)

// options are the flags of all commands. Each takes what concerns it.
type options struct {
	json, header bool
	quick        bool
	rounds       int
	parts        []string // of all

	// Of native.
	groups []string
	most   int64

	// Of Linux guests.
	scenarios []string // names, in the order of a round
	warmup    int
	phases    bool
	kernel    string
	agent     string
	qemu      string
	fioImage  string
	cmdline   string
	memoryMiB int
	forks     []int
	timeout   time.Duration
	settle    time.Duration

	record string // of all
}

// scenarioNames are the scenarios of Linux guests, in the order of a round.
var scenarioNames = []string{coldBoot, qemuBoot, gokvmBoot, qemuRestore, forkPooled, forkCold, reset, snapshotDisk, restoreDisk, templateStart, templateFork, forkvmDisk, qemuDisk}

// partNames are the parts of all, in their order.
var partNames = []string{"native", "linux", "lab"}

// kernelVariable names a kernel that runs natively on a KVM which ordinary
// kernels do not run on.
const kernelVariable = "FORKVM_BENCH_KERNEL"

func parseOptions(args []string) (options, error) {
	o := options{scenarios: scenarioNames, parts: partNames, forks: []int{1, 4}}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.BoolVar(&o.json, "json", false, "print JSON, an object a line, instead of Go benchmark text")
	fs.BoolVar(&o.header, "header", false, "with --json, begin with a line about the host")
	fs.BoolVar(&o.quick, "quick", false, "take about a fourth of the samples")
	fs.IntVar(&o.rounds, "rounds", 0, "how `often` each scenario is measured (default: 20, or 5, for Linux guests; by the measurement for others)")
	list(fs, &o.parts, "parts", "of \"all\"", partNames)
	fs.StringVar(&o.record, "record", "", "of \"all\", with --json: also write each part to a file in this `folder`")

	list(fs, &o.groups, "groups", "native", native.Groups())
	fs.Int64Var(&o.most, "most", 0, "native: leave out more children or dirty pages than this `number`")

	list(fs, &o.scenarios, "scenarios", "Linux guests", scenarioNames)
	fs.IntVar(&o.warmup, "warmup", 1, "Linux guests: rounds before those that count")
	fs.Func("forks", "Linux guests: comma-separated `numbers` of children (default 1,4)", o.setForks)
	fs.BoolVar(&o.phases, "phases", false, "Linux guests: also show on standard error where the time of a cold boot goes")
	fs.StringVar(&o.kernel, "kernel", defaultKernel(), "guest `kernel`, as forkvm takes it ($"+kernelVariable+" if it runs on this machine's KVM)")
	fs.StringVar(&o.agent, "agent", "", "`program` that becomes the guest's agent (default forkvm-agent beside this one)")
	fs.StringVar(&o.qemu, "qemu", "qemu-system-x86_64", "QEMU `program`")
	fs.StringVar(&o.fioImage, "fio", "", "root file system `image` with fio (default: made of this machine's)")
	fs.StringVar(&o.cmdline, "cmdline", os.Getenv("FORKVM_CMDLINE"), "`options` to append to every guest's command line ($FORKVM_CMDLINE)")
	fs.IntVar(&o.memoryMiB, "memory", 256, "memory of every Linux guest in `MiB`")
	fs.DurationVar(&o.settle, "settle", 500*time.Millisecond, "Linux guests: pause before each measurement, for what the one before left to the kernel")
	fs.DurationVar(&o.timeout, "timeout", 2*time.Minute, "Linux guests: how long one measurement may take")
	fs.SetOutput(io.Discard) // an error is reported once, and without all flags
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(os.Stderr)
			fs.Usage()
		}
		return o, fmt.Errorf("%w: %w", errUsage, err)
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("%w: argument %q", errUsage, fs.Arg(0))
	case o.rounds < 0 || o.warmup < 0 || o.most < 0:
		return o, fmt.Errorf("%w: --rounds, --warmup and --most must not be negative", errUsage)
	case o.record != "" && !o.json:
		return o, fmt.Errorf("%w: --record needs --json", errUsage)
	}
	return o, nil
}

// linuxRounds is how often to measure Linux guests.
func (o options) linuxRounds() int {
	switch {
	case o.rounds > 0:
		return o.rounds
	case o.quick:
		return 5
	}
	return 20
}

// fioRounds is how often to run fio, which takes long and measures for seconds.
func (o options) fioRounds() int {
	if o.quick {
		return 1
	}
	return min(o.linuxRounds(), 5)
}

// list is a flag for some of the names, which are put in their order.
func list(fs *flag.FlagSet, to *[]string, flagName, of string, names []string) {
	what := fmt.Sprintf("%s: comma-separated `names` (default all: %s)", of, strings.Join(names, ","))
	fs.Func(flagName, what, func(value string) error {
		asked := strings.Split(value, ",")
		for _, name := range asked {
			if !slices.Contains(names, name) {
				return fmt.Errorf("there is no %q", name)
			}
		}
		*to = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(asked, name) })
		return nil
	})
}

func (o *options) setForks(value string) error {
	o.forks = nil
	for s := range strings.SplitSeq(value, ",") {
		var n int
		if _, err := fmt.Sscan(s, &n); err != nil || n < 1 {
			return fmt.Errorf("%q is no number of children", s)
		}
		o.forks = append(o.forks, n)
	}
	return nil
}

// defaultKernel is the minimal kernel unless another is named: the baselines
// boot it too.
func defaultKernel() string {
	if k := os.Getenv(kernelVariable); k != "" {
		return k
	}
	return "minimal"
}

// agentProgram is the program that becomes the agent of guests.
func (o options) agentProgram() (string, error) {
	if o.agent != "" {
		return o.agent, nil
	}
	self, err := os.Executable()
	return filepath.Join(filepath.Dir(self), "forkvm-agent"), err
}
