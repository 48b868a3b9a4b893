package doctor

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/forkvm/forkvm/initrd"
)

// guest checks what a guest is made of.
func guest(ctx context.Context, kernel string, hardware bool) []Check {
	return []Check{kernelImage(ctx, kernel), agentBinary(ctx), lab(hardware)}
}

func kernelImage(ctx context.Context, want string) Check {
	c := Check{Group: "guest", Name: "guest kernel"}
	k, err := initrd.FindKernel(ctx, want)
	if err != nil {
		return c.fail(err.Error(), "forkvm kernel fetch")
	}
	if err := k.Verify(ctx); err != nil {
		return c.fail(err.Error(), "remove "+filepath.Dir(k.Vmlinux)+", then: forkvm kernel fetch")
	}
	return c.pass(k.Release + ", " + k.Vmlinux)
}

// agentBinary checks what becomes a guest's init: a program of its own beside
// this one, or this one.
func agentBinary(ctx context.Context) Check {
	c := Check{Group: "guest", Name: "guest agent"}
	img, err := initrd.Plan(ctx, initrd.Config{})
	if err != nil {
		return c.fail(err.Error(), "build with CGO_ENABLED=0, and readable for its user: it is copied into each guest")
	}
	agent := img.Agent
	if agent == "/proc/self/exe" {
		agent = "this program"
	}
	return c.pass(fmt.Sprintf("%s, initramfs of %d KiB", agent, img.Size()>>10))
}

// lab checks for QEMU, with which the lab emulates hardware virtualization.
func lab(hardware bool) Check {
	c := Check{Group: "guest", Name: "lab"}
	path, err := exec.LookPath("qemu-system-x86_64")
	switch {
	case err == nil:
		return c.pass(path)
	case hardware:
		return c.skip("no QEMU, and no need for the lab here")
	case errors.Is(err, exec.ErrNotFound):
		return c.warn("no QEMU, so no lab", "apt-get install qemu-system-x86")
	}
	return c.warn(fmt.Sprintf("no lab: %v", err), "apt-get install qemu-system-x86")
}
