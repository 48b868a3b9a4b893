package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/vmm"
)

// hostFlags say where a machine runs and what is shown of it.
type hostFlags struct {
	kvm     string
	console bool
	trace   bool
}

func addHostFlags(cmd *cobra.Command) *hostFlags {
	h := &hostFlags{}
	f := cmd.Flags()
	f.StringVar(&h.kvm, "kvm", "/dev/kvm", "KVM `device`")
	f.BoolVar(&h.console, "console", false, "show the guest's console on standard error")
	f.BoolVar(&h.trace, "trace", false, "show each exit from guest to host on standard error")
	return h
}

// watch returns what the flags ask to be shown, on stderr.
func (h *hostFlags) watch(stderr io.Writer) (console io.Writer, trace func(vmm.TraceEvent)) {
	if h.console {
		console = stderr
	}
	if h.trace {
		trace = func(e vmm.TraceEvent) { fmt.Fprintln(stderr, e) }
	}
	return console, trace
}

// machineFlags describe the machine that a command boots.
type machineFlags struct {
	*hostFlags
	kernel      string
	memory      byteSize
	cpus        int
	cmdline     string
	bootTimeout time.Duration
	disks       []vmm.Disk
}

func addMachineFlags(cmd *cobra.Command) *machineFlags {
	m := &machineFlags{hostFlags: addHostFlags(cmd), memory: 256 << 20}
	f := cmd.Flags()
	f.StringVar(&m.kernel, "kernel", "", "guest `kernel`: a path, or a name that 'forkvm kernel ls' shows (default the newest, or $FORKVM_KERNEL)")
	f.Var(&m.memory, "memory", "guest memory, such as 256M or 4G")
	f.IntVar(&m.cpus, "cpus", 1, fmt.Sprintf("virtual CPUs, 1 to %d", vmm.MaxVCPUs))
	f.StringVar(&m.cmdline, "cmdline", os.Getenv("FORKVM_CMDLINE"), "`options` to append to the kernel command line ($FORKVM_CMDLINE)")
	f.DurationVar(&m.bootTimeout, "boot-timeout", 2*time.Minute, "how long the guest may take to boot")
	return m
}

// boot starts the machine with what the initramfs has besides kernel modules.
func (m *machineFlags) boot(ctx context.Context, stderr io.Writer, content initrd.Config) (*vmm.VM, error) {
	kernel, err := initrd.FindKernel(ctx, m.kernel)
	if err != nil {
		return nil, err
	}
	content.Kernel = kernel
	archive, err := initrd.Pack(ctx, content)
	if err != nil {
		return nil, err
	}
	cfg := vmm.Config{
		Kernel: kernel.Vmlinux, Initramfs: archive, Cmdline: m.cmdline,
		VCPUs: m.cpus, Memory: int64(m.memory), Disks: m.disks, KVM: m.kvm,
	}
	cfg.Console, cfg.Trace = m.watch(stderr)
	ctx, cancel := context.WithTimeout(ctx, m.bootTimeout)
	defer cancel()
	return vmm.Start(ctx, cfg)
}

// byteSize is a number of bytes on the command line.
type byteSize int64

func (b *byteSize) Type() string { return "size" }

func (b *byteSize) String() string {
	n, units := int64(*b), ""
	for _, u := range []string{"K", "M", "G"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, units = n/1024, u
	}
	return strconv.FormatInt(n, 10) + units
}

// Set takes a number with an optional K, M or G, in powers of 1024, which may
// be written KiB, KB and so on, in either case.
func (b *byteSize) Set(s string) error {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	shift, ok := map[string]int{
		"": 0, "b": 0, "k": 10, "kb": 10, "kib": 10, "m": 20, "mb": 20, "mib": 20, "g": 30, "gb": 30, "gib": 30,
	}[strings.ToLower(s[len(digits):])]
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n <= 0 || n > (1<<62)>>shift {
		return fmt.Errorf("not a size such as 256M or 4G")
	}
	*b = byteSize(n << shift)
	return nil
}

func addFileFlag(cmd *cobra.Command) *[]string {
	return cmd.Flags().StringArray("file", nil, "put a file of this machine into the guest: `HOST:GUEST`")
}

// parseFiles reads HOST:GUEST pairs.
func parseFiles(pairs []string) ([]initrd.HostFile, error) {
	var files []initrd.HostFile
	for _, p := range pairs {
		host, guest, ok := strings.Cut(p, ":")
		if !ok || host == "" || !path.IsAbs(guest) {
			return nil, usageError("--file %q is not HOST:GUEST with an absolute GUEST path", p)
		}
		files = append(files, initrd.HostFile{Host: host, Guest: guest})
	}
	return files, nil
}
