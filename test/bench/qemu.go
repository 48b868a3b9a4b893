package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// qemu measures QEMU's microvm machine from the start of the process.
type qemu struct {
	g       *guest
	program string
}

// args are the fastest that we found: no firmware but the one that enters the
// kernel, no legacy device but the serial port and, because a kernel with its
// driver waits seconds for one that does not answer, the clock.
func (q *qemu) args() []string {
	machine := "microvm,x-option-roms=off,isa-serial=on,rtc=on,pit=off,pic=off"
	if strings.Contains(q.g.cmdline, "acpi=off") {
		// A kernel without ACPI needs the old timer and interrupt controllers.
		machine = "microvm,x-option-roms=off,isa-serial=on,rtc=on,acpi=off"
	}
	return []string{
		"-accel", "kvm", "-cpu", "host,-arch-capabilities", "-M", machine,
		"-m", fmt.Sprint(q.g.memory >> 20), "-smp", "1",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none", "-serial", "stdio",
		"-kernel", q.g.kernel, "-initrd", q.g.initramfsPath, "-append", q.g.baselineCmdline(),
	}
}

func (q *qemu) boot(ctx context.Context, r *recorder) error {
	cmd := exec.Command(q.program, q.args()...)
	begin := time.Now()
	return baseline(ctx, cmd, func(string) {}, func() {
		r.add(key{"qemu-boot", firstLife, 1, 0}, time.Since(begin), 0)
	})
}
