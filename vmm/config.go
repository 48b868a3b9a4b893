package vmm

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
)

// Limits of a [Config].
const (
	MaxVCPUs  = 8
	MinMemory = 64 << 20
	MaxMemory = 512 << 30
)

// ErrConfig is wrapped by every error about a field of a [Config].
var ErrConfig = errors.New("bad configuration")

// Config describes a machine to boot.
type Config struct {
	// Kernel is the path of an uncompressed x86-64 ELF kernel, a vmlinux.
	// Package initrd finds one, or makes it of any bzImage.
	Kernel string

	// Initramfs is the initial file system, a cpio archive, whose /init is
	// the guest agent. Package initrd packs one.
	Initramfs []byte

	// Cmdline is appended to the kernel command line that the machine
	// itself needs. Of an option given twice Linux takes the later one.
	Cmdline string

	// VCPUs is the number of virtual CPUs, 1 to [MaxVCPUs]. Zero means 1.
	VCPUs int

	// Memory is the size of RAM in bytes, a multiple of 2 MiB from
	// [MinMemory] to [MaxMemory]. It is allocated as the guest uses it.
	// Zero means 256 MiB.
	Memory int64

	// Disks are the guest's disks, at most [MaxDisks].
	Disks []Disk

	// Root names the disks of which the guest's agent makes its root file
	// system. The first is only read: EROFS, as package initrd/rootfs makes it,
	// ext4 or squashfs. What the guest writes goes to the second, an ext4 that
	// may be empty; with none, to at most half of the guest's memory. Of what the
	// initramfs holds, the guest has the agent's commands only, in
	// /run/forkvm/bin. If empty, the initramfs is the root file system.
	Root []string

	// Scratch is the directory of the files for what guests write to their
	// disks. They have no names there and are gone with the machines and
	// images that use them. If empty, they are anonymous memory.
	Scratch string

	// Hostname is the guest's host name. Empty means "forkvm".
	Hostname string

	// Console receives what the guest writes to its serial port. Nil
	// discards it; the last 64 KiB are kept in either case for reports of a
	// panic. A slow writer slows the guest.
	Console io.Writer

	// Trace, if set, is told of every exit from guest to host. It runs on
	// the thread of the vCPU, several at once where there are several. Until
	// it returns, the vCPU does nothing else: it must not call methods of
	// the machine, and while it blocks, so do Pause, Fork and Close.
	Trace func(TraceEvent)

	// Logger receives what an operator wants to know. Nil logs nothing.
	Logger *slog.Logger

	// KVM is the path of the device. Empty means /dev/kvm.
	KVM string

	// Bare is for a guest without an agent: Start and Fork return as soon as
	// its vCPUs run, commands cannot be run in it, and its clones are left
	// with one identity.
	Bare bool

	// Prefault gives children copies of the pages that children before them
	// had written when their first command ended, while they start. It pays
	// where a CPU is idle meanwhile; docs/benchmarks.md says how much.
	Prefault bool

	// Spare is how many KVM machines are kept built ahead, in the background,
	// for forks of this machine and of its descendants, from its first
	// capture on. Each takes about 1.3 MiB of kernel memory and a thread,
	// and saves a fork about 2 ms. An empty layer for the next capture is
	// made with them. Zero means 1, a negative number none.
	// [VM.Prepare] builds more for once.
	Spare int
}

func (c Config) withDefaults() Config {
	if c.VCPUs == 0 {
		c.VCPUs = 1
	}
	if c.Memory == 0 {
		c.Memory = 256 << 20
	}
	if c.Spare == 0 {
		c.Spare = 1
	}
	if c.Hostname == "" {
		c.Hostname = "forkvm"
	}
	if c.Console == nil {
		c.Console = io.Discard
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("vmm: %w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...))
	}
	switch {
	case c.Kernel == "":
		return bad("Kernel", "no path given")
	case c.VCPUs < 1 || c.VCPUs > MaxVCPUs:
		return bad("VCPUs", "%d is not between 1 and %d", c.VCPUs, MaxVCPUs)
	case c.Memory < MinMemory || c.Memory > MaxMemory:
		return bad("Memory", "%d bytes is not between %d MiB and %d GiB", c.Memory, MinMemory>>20, int64(MaxMemory)>>30)
	case c.Memory%(2<<20) != 0:
		return bad("Memory", "%d bytes is not a multiple of 2 MiB", c.Memory)
	case len(c.Hostname) > 64 || strings.ContainsAny(c.Hostname, " \t\n\x00\""):
		return bad("Hostname", "%q is not a host name of at most 64 bytes", c.Hostname)
	case strings.ContainsAny(c.Cmdline, "\n\x00"):
		return bad("Cmdline", "contains a line break or NUL")
	}
	if err := c.checkDisks(); err != nil {
		return bad("Disks", "%v", err)
	}
	if err := c.checkRoot(); err != nil {
		return bad("Root", "%v", err)
	}
	return nil
}

func (c Config) checkRoot() error {
	if len(c.Root) > 2 {
		return fmt.Errorf("%d disks, at most 2 make a root file system", len(c.Root))
	}
	for i, name := range c.Root {
		at := slices.IndexFunc(c.Disks, func(d Disk) bool { return d.Name == name })
		switch {
		case at < 0:
			return fmt.Errorf("no disk is named %.30q", name)
		case i == 1 && name == c.Root[0]:
			return fmt.Errorf("%s is named twice", name)
		case i == 1 && c.Disks[at].ReadOnly:
			return fmt.Errorf("%s is to be written to, and read-only", name)
		}
	}
	return nil
}
