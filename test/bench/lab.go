package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// qemuShare is where QEMU finds its firmware.
const qemuShare = "/usr/share/qemu"

// firmware is what its microvm machine may read.
var firmware = []string{"bios-microvm.bin", "qboot.rom", "pvh.bin", "linuxboot_dma.bin"}

// labCommand runs "linux" in the lab.
func labCommand(ctx context.Context, o options, args []string) error {
	cmd, err := labRun(ctx, o, args)
	if err != nil {
		return err
	}
	cmd.Stdout = os.Stdout
	return cmd.Run()
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
	if image, err := fioImageFor(ctx); err == nil {
		files = append(files, image)
		args = append(args, "--fio", image)
	} else {
		fmt.Fprintln(os.Stderr, "no image with fio:", err)
	}
	run := []string{"run"}
	for _, f := range files {
		if _, err := os.Stat(f); err == nil {
			run = append(run, "--file", f)
		}
	}
	return part(ctx, filepath.Join(bin, "lab"), append(append(run, "--", self, "linux"), args...)), nil
}

// part is a command that is interrupted, and not killed, when ctx ends.
func part(ctx context.Context, program string, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	return cmd
}
