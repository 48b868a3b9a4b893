package vmm_test

import (
	"context"
	"fmt"
	"log"

	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/initrd/rootfs"
	"github.com/forkvm/forkvm/initrd/rootfs/ext4"
	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/vmm"
)

// The example of the README. A program that boots guests calls agent.Main
// first in its main, so that it can be the guest's first process.
func ExampleVM_Fork() {
	ctx := context.Background()
	kernel, err := initrd.FindKernel(ctx, "")
	check(err)
	initramfs, err := initrd.Pack(ctx, initrd.Config{Kernel: kernel})
	check(err)
	parent, err := vmm.Start(ctx, vmm.Config{Kernel: kernel.Vmlinux, Initramfs: initramfs})
	check(err)
	defer parent.Close()
	children, err := parent.Fork(ctx, 8) // running machines, memory shared copy-on-write
	check(err)
	for _, child := range children {
		out, err := child.Command("uname", "-a").Output()
		fmt.Printf("%s%v", out, err)
		child.Close()
	}
}

// What is worth keeping goes into a store; what is to be tried again goes back
// to where it was forked.
func ExampleVM_Snapshot() {
	ctx := context.Background()
	var parent, child *vmm.VM // see the example of Fork

	dir, err := snapshot.DefaultDir()
	check(err)
	store, err := snapshot.Open(dir)
	check(err)
	defer store.Close()
	info, err := parent.Snapshot(ctx, store, vmm.SnapshotOptions{Label: "ready"}) // parent runs on
	check(err)
	vm, err := vmm.Restore(ctx, store, info.ID, vmm.StartOptions{}) // in any process, any time later
	check(err)
	defer vm.Close()
	check(child.Reset(ctx)) // in place, cheaper than a new child
}

// A root file system of a container image, and a disk for what is written.
func ExampleStart() {
	ctx := context.Background()
	kernel, err := initrd.FindKernel(ctx, "")
	check(err)
	initramfs, err := initrd.Pack(ctx, initrd.Config{Kernel: kernel, Modules: initrd.DiskModules})
	check(err)
	_, err = rootfs.Build(ctx, "base.erofs", rootfs.Archive("image.tar", ""), rootfs.Options{})
	check(err)
	check(ext4.Write("data.ext4", 2<<30, ext4.Options{}))
	vm, err := vmm.Start(ctx, vmm.Config{
		Kernel: kernel.Vmlinux, Initramfs: initramfs, Root: []string{"base", "data"},
		Disks: []vmm.Disk{{Name: "base", Image: "base.erofs", ReadOnly: true}, {Name: "data", Image: "data.ext4"}},
	})
	check(err)
	defer vm.Close()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
