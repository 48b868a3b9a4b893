package doctor

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/forkvm/forkvm/initrd"
)

// guest checks what a guest is made of.
func guest(ctx context.Context, kernel string, hardware bool) []Check {
	return []Check{kernelImage(ctx, kernel), agentBinary(), lab(hardware)}
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

// agentBinary checks that this program can be a guest's init: there is no
// dynamic linker in a guest.
func agentBinary() Check {
	c := Check{Group: "guest", Name: "guest agent"}
	path, err := os.Executable()
	if err != nil {
		return c.skip(err.Error())
	}
	f, err := elf.Open(path)
	if err != nil {
		return c.fail(err.Error(), "make this program readable for its user: it is copied into each guest")
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return c.fail("this program is dynamically linked, so it cannot run in a guest", "build it with CGO_ENABLED=0")
		}
	}
	return c.pass("this program is static")
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
