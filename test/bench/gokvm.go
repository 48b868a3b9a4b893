package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/bobuhiro11/gokvm/machine"
	"github.com/bobuhiro11/gokvm/pvh"
	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/test/bench/result"
)

// gokvmVerb is the command as which this program runs one machine of gokvm, in
// a process of its own: gokvm has no way to end a machine, and writes its
// guest's console to the process's standard output.
const gokvmVerb = "gokvm-guest"

// startMark begins the line that the process prints before it calls gokvm: the
// time of the monotonic clock in nanoseconds follows.
const startMark = "gokvm starts at "

// gokvmOptions are what its guests need besides: there are no ACPI tables to
// look for, and its serial port interrupts through the old interrupt controller
// only, as the command line in its documentation has it.
const gokvmOptions = " noapic acpi=off"

// gokvm measures the machine package of gokvm from its first call on.
type gokvm struct{ g *guest }

func (k *gokvm) boot(ctx context.Context, r *result.Recorder) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, gokvmVerb, "-kernel", k.g.kernel, "-initramfs", k.g.initramfsPath,
		"-memory", fmt.Sprint(k.g.memory), "-cmdline", k.g.baselineCmdline()+gokvmOptions)
	var begin time.Duration
	line := func(s string) {
		if at, ok := strings.CutPrefix(s, startMark); ok {
			ns, err := strconv.ParseInt(at, 10, 64)
			if err == nil {
				begin = time.Duration(ns)
			}
		}
	}
	return baseline(ctx, cmd, line, func() {
		r.Time(result.Key{Scenario: gokvmBoot, Metric: result.FirstLife, N: 1}, monotonic()-begin, 0)
	})
}

// monotonic is the time of a clock that all processes share.
func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // every kernel has it
	return time.Duration(ts.Nano())
}

// gokvmGuest boots a machine and runs it until the process is killed.
func gokvmGuest(args []string) error {
	fs := flag.NewFlagSet(gokvmVerb, flag.ContinueOnError)
	kernel := fs.String("kernel", "", "")
	initramfs := fs.String("initramfs", "", "")
	memory := fs.Int("memory", 0, "bytes")
	cmdline := fs.String("cmdline", "", "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	fmt.Printf("%s%d\n", startMark, monotonic())
	k, err := os.Open(*kernel)
	if err != nil {
		return err
	}
	defer k.Close()
	ramdisk, err := os.Open(*initramfs)
	if err != nil {
		return err
	}
	defer ramdisk.Close()
	m, err := machine.New("/dev/kvm", 1, *memory)
	if err != nil {
		return fmt.Errorf("gokvm: new: %w", err)
	}
	if err := loadGokvm(m, k, ramdisk, *cmdline); err != nil {
		return fmt.Errorf("gokvm: load: %w", err)
	}
	if err := m.RunInfiniteLoop(0); err != nil {
		return fmt.Errorf("gokvm: run: %w", err)
	}
	return errors.New("gokvm: the guest halted")
}

// loadGokvm takes the boot protocol that gokvm's own command takes.
func loadGokvm(m *machine.Machine, kernel, ramdisk *os.File, cmdline string) error {
	isPVH, err := pvh.CheckPVH(kernel)
	if err != nil {
		return err
	}
	if isPVH {
		return m.LoadPVH(kernel, ramdisk, cmdline)
	}
	return m.LoadLinux(kernel, ramdisk, cmdline)
}
