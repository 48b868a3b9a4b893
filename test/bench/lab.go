package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// qemuShare is where QEMU finds its firmware.
const qemuShare = "/usr/share/qemu"

// firmware is what its microvm machine may read.
var firmware = []string{"bios-microvm.bin", "qboot.rom", "pvh.bin", "linuxboot_dma.bin"}

// labCommand runs "boot" in the lab and returns its exit code.
func labCommand(ctx context.Context, args []string) int {
	o, err := parseOptions(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return exitUsage
	}
	cmd, err := labRun(ctx, o, args)
	if err == nil {
		err = cmd.Run()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return exitFailed
	}
	return 0
}

// labRun is the lab's command with everything that the scenarios need: what is
// not on this machine is left out, and its scenario fails.
func labRun(ctx context.Context, o options, args []string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	bin := filepath.Dir(self)
	files := []string{filepath.Join(bin, "forkvm-agent")}
	if qemu, err := exec.LookPath(o.qemu); err == nil {
		files = append(files, qemu)
		args = append(args, "--qemu", qemu)
	}
	for _, name := range firmware {
		files = append(files, filepath.Join(qemuShare, name))
	}
	run := []string{"run"}
	for _, f := range files {
		if _, err := os.Stat(f); err == nil {
			run = append(run, "--file", f)
		}
	}
	run = append(append(run, "--", self, "boot"), args...)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "lab"), run...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd, nil
}
