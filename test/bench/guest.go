package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing/fstest"

	"github.com/forkvm/forkvm/initrd"
)

// baseCmdline is what vmm gives its guests; the baselines get the same.
const baseCmdline = "console=ttyS0 quiet reboot=k panic=-1 8250.nr_uarts=1 pci=off random.trust_cpu=on " +
	"no_timer_check noreplace-smp cryptomgr.notests rcupdate.rcu_expedited=1"

// guest is what every scenario boots.
type guest struct {
	kernel        string // path of the vmlinux
	initramfs     []byte
	initramfsPath string // the same bytes, for monitors that want a file
	cmdline       string // what is appended to every command line
	memory        int64  // bytes
}

// newGuest packs the initramfs and puts it into the folder dir as well. It
// holds both inits, so that every kernel unpacks the same bytes.
func newGuest(ctx context.Context, o options, dir string) (*guest, error) {
	kernel, err := initrd.FindKernel(ctx, o.kernel)
	if err != nil {
		return nil, err
	}
	agent, err := o.agentProgram()
	if err != nil {
		return nil, err
	}
	archive, err := initrd.Pack(ctx, initrd.Config{
		Kernel: kernel, Agent: agent,
		Files: fstest.MapFS{tickerPath[1:]: {Data: ticker(initLine + "\n"), Mode: 0o755}},
	})
	if err != nil {
		return nil, err
	}
	g := &guest{
		kernel: kernel.Vmlinux, initramfs: archive, initramfsPath: filepath.Join(dir, "initramfs.cpio"),
		cmdline: o.cmdline, memory: int64(o.memoryMiB) << 20,
	}
	if err := os.WriteFile(g.initramfsPath, archive, 0o600); err != nil {
		return nil, fmt.Errorf("initramfs: %w", err)
	}
	return g, nil
}

// baselineCmdline is the command line of a monitor that is compared with.
func (g *guest) baselineCmdline() string {
	return baseCmdline + " rdinit=" + tickerPath + " " + g.cmdline
}
