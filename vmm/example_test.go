package vmm_test

import (
	"context"
	"fmt"
	"log"

	"github.com/forkvm/forkvm/initrd"
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

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
