package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/initrd/rootfs/ext4"
	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/vmm"
)

// machines is what a build needs of the world of machines; tests have one of
// their own.
type machines interface {
	// prepare finds what a machine is booted from.
	prepare(ctx context.Context, m Machine) (setting, error)
	// boot starts a machine on the image of a base, "" for none.
	boot(ctx context.Context, s setting, image string) (machine, error)
	// restore lets a stored machine go on. An error that unusable is true of
	// says that there is nothing to restore.
	restore(ctx context.Context, id string) (machine, error)
	// stat describes a stored machine.
	stat(ctx context.Context, id string) (snapshot.Info, error)
	// list names all stored machines of templates.
	list(ctx context.Context) ([]string, error)
	// delete removes one; it is no error if there is none.
	delete(ctx context.Context, id string) error
}

// machine is what a build needs of a machine.
type machine interface {
	// run runs a command to its end.
	run(ctx context.Context, c command, out io.Writer) error
	// start starts a command in the background.
	start(ctx context.Context, c command) (process, error)
	files(ctx context.Context) guestFiles
	// fork makes another machine that goes on from here.
	fork(ctx context.Context) (machine, error)
	// settle waits until the guest has done what it does ahead of commands.
	settle(ctx context.Context) error
	// save stores the machine as it is now, and it goes on.
	save(ctx context.Context, label string) (snapshot.Info, error)
	close() error
}

// process is a command in the background.
type process interface {
	// ended tells whether it has ended, and if so without success: how.
	ended(ctx context.Context) (bool, error)
	// output writes what is known of what it printed.
	output(ctx context.Context, out io.Writer)
}

// guestFiles is as much of client.FS as COPY needs.
type guestFiles interface {
	Stat(name string) (fs.FileInfo, error)
	ReadFile(name string) ([]byte, error)
	MkdirAll(name string, perm fs.FileMode) error
	Remove(name string) error
	Symlink(oldname, newname string) error
	Chown(name string, uid, gid int) error
	TarIn(ctx context.Context, name string, r io.Reader) error
}

// command is a command in a guest.
type command struct {
	argv      []string
	env       []string
	dir, user string
	timeout   time.Duration // 0: none
}

// unusable tells of an error whether a stored machine is as good as not there.
func unusable(err error) bool {
	return errors.Is(err, snapshot.ErrNotFound) || errors.Is(err, snapshot.ErrBadID) || errors.Is(err, snapshot.ErrCorrupt) ||
		errors.Is(err, snapshot.ErrVersion) || errors.Is(err, snapshot.ErrIncompatible)
}

// Machine says what the machines of a template are like. Zero values stand for
// defaults.
type Machine struct {
	// Kernel is what the guest boots. Default: what initrd.FindKernel finds.
	Kernel *initrd.Kernel
	// Cmdline is appended to the kernel's command line.
	Cmdline string
	// Agent is the program that works in the guest, see initrd.Config.
	Agent string
	// VCPUs is the number of virtual CPUs: 1.
	VCPUs int
	// Memory is the size of RAM in bytes: 512 MiB.
	Memory int64
	// Disk is the size, in bytes, of the disk for what the guest writes: 4 GiB,
	// of which only what is written takes space. A template made FROM base has
	// none.
	Disk int64
	// KVM is the path of the device: /dev/kvm.
	KVM string
}

// Defaults of a Machine.
const (
	defaultMemory = 512 << 20
	defaultDisk   = 4 << 30
)

func (m Machine) withDefaults(d Machine) Machine {
	if m.Kernel == nil {
		m.Kernel = d.Kernel
	}
	m.Cmdline = first(m.Cmdline, d.Cmdline)
	m.Agent = first(m.Agent, d.Agent)
	m.VCPUs = first(m.VCPUs, d.VCPUs, 1)
	m.Memory = first(m.Memory, d.Memory, defaultMemory)
	m.Disk = first(m.Disk, d.Disk, defaultDisk)
	m.KVM = first(m.KVM, d.KVM)
	return m
}

func first[T comparable](values ...T) T {
	var zero T
	for _, v := range values {
		if v != zero {
			return v
		}
	}
	return zero
}

// setting is a Machine made ready to boot.
type setting struct {
	Machine
	initramfs []byte
	kernel    string // the sum of its image
}

// bootTimeout is how long a guest may take to boot or to be restored.
const bootTimeout = 2 * time.Minute

// vmMachines are those of package vmm.
type vmMachines struct {
	store   *snapshot.Store
	kvm     string
	scratch string // for what guests write to their disks
	tmp     string
}

// Names of the disks of a template's machines.
const (
	baseDisk = "base"
	dataDisk = "data"
)

func (v *vmMachines) prepare(ctx context.Context, m Machine) (setting, error) {
	if m.Kernel == nil {
		k, err := initrd.FindKernel(ctx, "")
		if err != nil {
			return setting{}, err
		}
		m.Kernel = k
	}
	archive, err := initrd.Pack(ctx, initrd.Config{Kernel: m.Kernel, Agent: m.Agent, Modules: initrd.DiskModules})
	if err != nil {
		return setting{}, err
	}
	sum, err := sumFile(ctx, m.Kernel.Vmlinux)
	if err != nil {
		return setting{}, fmt.Errorf("kernel: %w", err)
	}
	return setting{m, archive, sum}, nil
}

func (v *vmMachines) boot(ctx context.Context, s setting, image string) (machine, error) {
	cfg := vmm.Config{
		Kernel: s.Kernel.Vmlinux, Initramfs: s.initramfs, Cmdline: s.Cmdline, VCPUs: s.VCPUs, Memory: s.Memory,
		KVM: s.KVM, Scratch: v.scratch,
	}
	if image != "" {
		dir, err := os.MkdirTemp(v.tmp, "boot-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir) // the machine has the file open
		data := filepath.Join(dir, "ext4")
		if err := ext4.Write(data, s.Disk, ext4.Options{Label: "forkvm", Directories: []string{"upper", "work"}}); err != nil {
			return nil, err
		}
		cfg.Disks = []vmm.Disk{{Name: baseDisk, Image: image, ReadOnly: true}, {Name: dataDisk, Image: data}}
		cfg.Root = []string{baseDisk, dataDisk}
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	vm, err := vmm.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &vmMachine{vm, v.store}, nil
}

func (v *vmMachines) restore(ctx context.Context, id string) (machine, error) {
	image, err := vmm.Load(ctx, v.store, id, v.loadOptions())
	if err != nil {
		return nil, err
	}
	defer image.Close()
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	vm, err := image.Start(ctx, vmm.StartOptions{})
	if err != nil {
		return nil, err
	}
	return &vmMachine{vm, v.store}, nil
}

func (v *vmMachines) loadOptions() vmm.LoadOptions {
	return vmm.LoadOptions{KVM: v.kvm, Scratch: v.scratch}
}

func (v *vmMachines) stat(ctx context.Context, id string) (snapshot.Info, error) {
	return v.store.Stat(ctx, id)
}

func (v *vmMachines) list(ctx context.Context) ([]string, error) {
	infos, err := v.store.List(ctx)
	var ids []string
	for _, i := range infos {
		// Whoever is started from a template may keep snapshots beside it.
		if strings.HasPrefix(i.Label, labelPrefix) {
			ids = append(ids, i.ID)
		}
	}
	return ids, err
}

// labelPrefix begins the labels of all machines of templates.
const labelPrefix = "template "

func (v *vmMachines) delete(ctx context.Context, id string) error {
	err := v.store.Delete(ctx, id)
	if errors.Is(err, snapshot.ErrNotFound) || errors.Is(err, snapshot.ErrBadID) {
		return nil
	}
	return err
}

// vmMachine is a machine of package vmm.
type vmMachine struct {
	vm    *vmm.VM
	store *snapshot.Store
}

func (m *vmMachine) command(ctx context.Context, c command) *client.Cmd {
	cmd := m.vm.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.ExtraEnv, cmd.Dir, cmd.User, cmd.Timeout = c.env, c.dir, c.user, c.timeout
	return cmd
}

func (m *vmMachine) run(ctx context.Context, c command, out io.Writer) error {
	cmd := m.command(ctx, c)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd.Run()
}

func (m *vmMachine) start(ctx context.Context, c command) (process, error) {
	cmd := m.command(ctx, c)
	cmd.Detach = true
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &vmProcess{m.vm.Agent(), cmd.ProcessID()}, nil
}

func (m *vmMachine) files(ctx context.Context) guestFiles { return m.vm.Agent().FS().WithContext(ctx) }

func (m *vmMachine) fork(ctx context.Context) (machine, error) {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	vms, err := m.vm.Fork(ctx, 1)
	if err != nil {
		return nil, err
	}
	return &vmMachine{vms[0], m.store}, nil
}

// The agent starts two processes ahead of commands, but not while they may be in
// the way of one: up to 2.2 s after a command. A fork has those of the machine
// that it was made from. If they are still to come when that is stored, each
// fork makes them while it should answer.
const (
	spareProcess = "forkvm-spare"
	spares       = 2
	settleTime   = 5 * time.Second // a guest that never has them is as good as it gets
	settleLook   = 100 * time.Millisecond
)

func (m *vmMachine) settle(ctx context.Context) error {
	tick := time.NewTicker(settleLook)
	defer tick.Stop()
	for deadline := time.Now().Add(settleTime); time.Now().Before(deadline); {
		if m.spares(ctx) >= spares {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// spares counts the processes that the agent has started ahead. What cannot be
// read is none.
func (m *vmMachine) spares(ctx context.Context) (n int) {
	guest := m.vm.Agent().FS().WithContext(ctx)
	list, _ := guest.ReadDir("/proc")
	for _, e := range list {
		if e.Name()[0] < '1' || e.Name()[0] > '9' {
			continue
		}
		line, _ := guest.ReadFile("/proc/" + e.Name() + "/cmdline")
		if name, _, _ := strings.Cut(string(line), "\x00"); strings.TrimSpace(name) == spareProcess {
			n++
		}
	}
	return n
}

func (m *vmMachine) save(ctx context.Context, label string) (snapshot.Info, error) {
	return m.vm.Snapshot(ctx, m.store, vmm.SnapshotOptions{Label: labelPrefix + label})
}

func (m *vmMachine) close() error { return m.vm.Close() }

type vmProcess struct {
	agent *client.Client
	id    uint64
}

func (p *vmProcess) ended(ctx context.Context) (bool, error) {
	list, err := p.agent.Processes(ctx)
	if err != nil {
		return false, err
	}
	for _, c := range list {
		if c.ID != p.id {
			continue
		}
		if c.Exited && c.Exit != nil {
			return true, c.Exit
		}
		return c.Exited, nil
	}
	return true, nil
}

// outputWait is how long the output of a process that runs on is waited for.
const outputWait = 500 * time.Millisecond

func (p *vmProcess) output(ctx context.Context, out io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, outputWait)
	defer cancel()
	_ = p.agent.Attach(ctx, p.id, client.Attachment{Stdout: out, Stderr: out}) // how it ended is known
}

// Command prepares a command in a machine of the template, with its
// environment, directory and user. The fields may be changed before it is
// started.
func (i Info) Command(ctx context.Context, vm *vmm.VM, name string, arg ...string) *client.Cmd {
	cmd := vm.CommandContext(ctx, name, arg...)
	cmd.ExtraEnv, cmd.Dir, cmd.User = i.Config.Env, i.Config.Workdir, i.Config.User
	return cmd
}

// describe is an error of a command in a few words.
func describe(err error) string {
	exit, exited := errors.AsType[*client.ExitError](err)
	switch {
	case exited && exit.TimedOut:
		return "timed out"
	case exited && exit.Signal != 0:
		return fmt.Sprintf("ended by signal %v", exit.Signal)
	case exited:
		return fmt.Sprintf("exit code %d", exit.Code)
	}
	return err.Error()
}
