package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/initrd/kmod"
	"github.com/forkvm/forkvm/test/lab/internal/inside"
	"github.com/forkvm/forkvm/test/lab/internal/machine"
)

// defaultMemoryMiB fits guests of some hundred MiB in total beside the page cache of their kernels.
const defaultMemoryMiB = 3072

// kernelKind is what the machine boots, as initrd.FindKernel names it: Debian's stock cloud kernel,
// which has kvm-amd.
const kernelKind = "debian"

// modules that the kernel inside loads: what the machine is made of, the KVM that it is about, and
// what tests of networks, disks and sockets need.
var modules = []string{
	"virtio_blk", "virtio_net", "virtio_rng", "kvm_amd",
	"tun", "loop", "overlay", "vsock_loopback",
}

// Options say what machine to make.
type Options struct {
	// MemoryMiB is the size of its memory. 0: 3072.
	MemoryMiB int `json:"memory_mib,omitempty"`
	// Disks are ext4 images, which keep what is written to them.
	Disks []Mount `json:"disks,omitempty"`
	// Trees are folders, of which the machine gets a copy on a disk.
	Trees []Mount `json:"trees,omitempty"`
}

// A Mount is an image or a folder of the host's and where it is mounted inside.
type Mount struct {
	Host  string `json:"host"`
	Guest string `json:"guest"`
}

// IsDefault tells whether nothing special is asked for, so that any machine will do.
func (o Options) IsDefault() bool {
	return o.MemoryMiB == 0 && len(o.Disks) == 0 && len(o.Trees) == 0
}

// KernelsDir is the folder of the cached guest kernels, which the machine sees at the same path.
func KernelsDir() (string, error) {
	cache, err := initrd.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "kernels"), nil
}

// Kernel finds the kernel for the machine, and downloads it the first time.
func Kernel(ctx context.Context) (*initrd.Kernel, error) {
	k, err := initrd.FindKernel(ctx, kernelKind)
	if errors.Is(err, initrd.ErrNoKernel) {
		k, err = initrd.FetchDebianKernel(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("image: kernel: %w", err)
	}
	if k.Modules == nil {
		return nil, fmt.Errorf("image: kernel %s has no modules", k.Source)
	}
	return k, nil
}

// Prepare makes everything that a machine in the folder dir needs.
func Prepare(ctx context.Context, dir string, o Options) (machine.Config, error) {
	qemu, mke2fs, err := tools()
	if err != nil {
		return machine.Config{}, err
	}
	kernel, err := Kernel(ctx)
	if err != nil {
		return machine.Config{}, err
	}
	c := machine.Config{
		Dir:       dir,
		QEMU:      qemu,
		Kernel:    kernel.Vmlinux,
		Release:   kernel.Release,
		Initrd:    filepath.Join(dir, "initramfs.cpio"),
		Root:      filepath.Join(dir, "root.ext4"),
		MemoryMiB: o.MemoryMiB,
	}
	if c.MemoryMiB == 0 {
		c.MemoryMiB = defaultMemoryMiB
	}
	if err := makeRoot(ctx, mke2fs, c.Root); err != nil {
		return machine.Config{}, err
	}
	mounts, err := makeDisks(ctx, mke2fs, &c, o)
	if err != nil {
		return machine.Config{}, err
	}
	return c, packInitramfs(c.Initrd, kernel, mounts)
}

// makeDisks adds the disks of the options, and one with the guest kernels, to the machine.
func makeDisks(ctx context.Context, mke2fs string, c *machine.Config, o Options) ([]inside.Mount, error) {
	var mounts []inside.Mount
	add := func(d machine.Disk, guest string) {
		serial := machine.DiskSerial(len(c.Disks))
		mounts = append(mounts, inside.Mount{Serial: serial, Dir: guest, Made: d.Volatile})
		c.Disks = append(c.Disks, d)
	}
	kernels, err := KernelsDir()
	if err != nil {
		return nil, err
	}
	path, err := kernelsImage(ctx, mke2fs, kernels, c.Dir)
	if err != nil {
		return nil, err
	}
	add(machine.Disk{Path: path, Volatile: true}, kernels)
	for i, t := range o.Trees {
		path := filepath.Join(c.Dir, fmt.Sprintf("tree%d.ext4", i))
		if err := makeTree(ctx, mke2fs, t.Host, path); err != nil {
			return nil, err
		}
		add(machine.Disk{Path: path, Volatile: true}, t.Guest)
	}
	for _, d := range o.Disks {
		add(machine.Disk{Path: d.Host}, d.Guest)
	}
	return mounts, nil
}

// insideConfig returns the modules to pack and the configuration of the first process, as JSON.
func insideConfig(kernel *initrd.Kernel, mounts []inside.Mount) ([]kmod.Module, []byte, error) {
	tree, err := kmod.Open(kernel.Modules)
	if err != nil {
		return nil, nil, fmt.Errorf("image: modules: %w", err)
	}
	resolved, err := tree.Resolve(modules...)
	if err != nil {
		return nil, nil, fmt.Errorf("image: modules: %w", err)
	}
	cfg := inside.Config{RootSerial: machine.RootSerial, Mounts: mounts, Port: machine.AgentPort}
	for _, m := range resolved {
		cfg.Modules = append(cfg.Modules, m.Name+".ko")
	}
	b, err := json.Marshal(cfg)
	return resolved, b, err
}
