package image

import "context"

// A Check is one thing that the lab needs of its host.
type Check struct {
	Name string
	// Found is what there is.
	Found string
	// Err is why it will not do.
	Err error
}

// Checks looks for everything that Prepare needs, and downloads the kernel if it is not there.
func Checks(ctx context.Context) []Check {
	qemu := Check{Name: "emulator"}
	qemu.Found, qemu.Err = tool(qemuProgram, qemuPackage)
	mke2fs := Check{Name: "disk images"}
	mke2fs.Found, mke2fs.Err = tool(mke2fsProgram, mke2fsPackage)
	kernel := Check{Name: "kernel"}
	k, err := Kernel(ctx)
	if kernel.Err = err; err == nil {
		kernel.Found = k.Source
	}
	return []Check{qemu, mke2fs, kernel}
}
