package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/initrd/rootfs/ext4"
	"github.com/forkvm/forkvm/vmm"
)

// templateFlags start a machine from a template in place of booting one.
type templateFlags struct {
	dir  *string
	name string
	disk byteSize // 0: not given
}

func addTemplateFlags(cmd *cobra.Command) *templateFlags {
	t := &templateFlags{dir: addTemplatesFlag(cmd)}
	cmd.Flags().StringVar(&t.name, "template", "", "start from the template of this `name` in place of booting; what is built in is built if need be")
	cmd.Flags().Var(&t.disk, "disk", "give the guest a disk of this size, /dev/vda, which has an empty ext4 file system; with --template, the size that its disk must have")
	_ = cmd.RegisterFlagCompletionFunc("template", completeTemplates(allArgs)) // the flag is there
	return t
}

// ofBooting are flags that say what a machine that boots is like.
var ofBooting = []string{"kernel", "memory", "cpus", "cmdline", "boot-timeout", "file"}

func (t *templateFlags) check(cmd *cobra.Command) error {
	if t.name == "" {
		return nil
	}
	for _, name := range ofBooting {
		if cmd.Flags().Changed(name) {
			return usageError("--%s cannot be given with --template: the machine is as the template was built (try: forkvm template build --help)", name)
		}
	}
	return nil
}

// startTimeout is how long a guest from a template may take to answer.
const startTimeout = 2 * time.Minute

// start starts a machine from the template, and has c run commands as the
// template says where it says nothing itself.
func (t *templateFlags) start(ctx context.Context, m *machineFlags, c *commandFlags) (*vmm.VM, error) {
	store, err := openTemplates(*t.dir, template.Machine{Cmdline: m.cmdline, KVM: m.kvm, Disk: int64(t.disk)})
	if err != nil {
		return nil, err
	}
	defer store.Close() // the machine goes on
	image, info, err := store.ImageOrBuild(ctx, t.name, buildOptions(false, false))
	if err != nil {
		return nil, templateError(err)
	}
	if t.disk != 0 && int64(t.disk) != info.Disk {
		return nil, usageError("the disk of template %s has %s, not %s: that is decided when it is built (try: forkvm template build --disk %s)",
			t.name, size(info.Disk), size(int64(t.disk)), t.disk.String())
	}
	c.asIn(info.Config)
	o := vmm.StartOptions{}
	o.Console, o.Trace = m.watch(os.Stderr)
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return image.Start(ctx, o)
}

// asIn has commands run as a template says, unless flags say otherwise.
func (c *commandFlags) asIn(t template.Config) {
	c.env = append(append([]string{}, t.Env...), c.env...)
	if c.dir == "" {
		c.dir = t.Workdir
	}
	if c.user == "" {
		c.user = t.User
	}
}

// bootWithDisk boots a machine with a disk of the size that --disk says, if it
// does.
func (t *templateFlags) bootWithDisk(ctx context.Context, m *machineFlags, content initrd.Config) (*vmm.VM, error) {
	if t.disk == 0 {
		return m.boot(ctx, os.Stderr, content)
	}
	dir, err := os.MkdirTemp("", "forkvm-disk-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the machine has the file open
	image := filepath.Join(dir, "ext4")
	if err := ext4.Write(image, int64(t.disk), ext4.Options{}); err != nil {
		return nil, usageError("--disk %s: %w", t.disk.String(), err)
	}
	content.Modules = append(content.Modules, initrd.DiskModules...)
	m.disks = []vmm.Disk{{Name: "disk", Image: image}}
	return m.boot(ctx, os.Stderr, content)
}
