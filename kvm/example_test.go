package kvm_test

import (
	"errors"
	"fmt"
	"log"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
)

// A vCPU's loop: run, look why it came back, serve it, go round again. Setting
// up the VM's memory and the vCPU's registers comes before it.
func ExampleVCPU_Run() {
	loop := func(c *kvm.VCPU, stopped func() bool) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for !stopped() {
			switch err := c.Run(); {
			case errors.Is(err, unix.EINTR):
				continue // a kick, or one of the Go runtime's signals
			case err != nil:
				return err
			}
			switch c.ExitReason() {
			case kvm.ExitIO:
				if e := c.IO(); e.Out {
					fmt.Printf("port %#x: %x\n", e.Port, e.Data)
				}
			case kvm.ExitHLT:
				return nil
			default:
				return fmt.Errorf("exit %v", c.ExitReason())
			}
		}
		return nil
	}

	s, err := kvm.Open("")
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	vm, err := s.CreateVM()
	if err != nil {
		log.Fatal(err)
	}
	defer vm.Close()
	c, err := vm.CreateVCPU(0)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := loop(c, func() bool { return false }); err != nil {
		log.Fatal(err)
	}
}
