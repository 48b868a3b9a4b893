package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/forkvm/forkvm/test/bench/result"
)

// qemu measures QEMU's microvm machine from the start of the process.
type qemu struct {
	g       *guest
	program string
}

// command is the fastest that we found: no firmware but the one that enters the
// kernel, no legacy device but the serial port and, because a kernel with its
// driver waits seconds for one that does not answer, the clock.
func (q *qemu) command(more ...string) *exec.Cmd {
	machine := "microvm,x-option-roms=off,isa-serial=on,rtc=on,pit=off,pic=off"
	if strings.Contains(q.g.cmdline, "acpi=off") {
		// A kernel without ACPI needs the old timer and interrupt controllers.
		machine = "microvm,x-option-roms=off,isa-serial=on,rtc=on,acpi=off"
	}
	return exec.Command(q.program, append([]string{
		"-accel", "kvm", "-cpu", "host,-arch-capabilities", "-M", machine,
		"-m", fmt.Sprint(q.g.memory >> 20), "-smp", "1",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none", "-serial", "stdio",
		"-kernel", q.g.kernel, "-initrd", q.g.initramfsPath, "-append", q.g.baselineCmdline(),
	}, more...)...)
}

func (q *qemu) boot(ctx context.Context, r *result.Recorder) error {
	cmd := q.command()
	begin := time.Now()
	return baseline(ctx, cmd, func(string) {}, func() {
		r.Time(result.Key{Scenario: qemuBoot, Metric: result.FirstLife, N: 1}, time.Since(begin), 0)
	})
}
