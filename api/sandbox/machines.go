package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/vmm"
)

// machines is what an engine needs of the world of machines. Tests have one
// of their own.
type machines interface {
	templateStore
	// template returns what machines of a template start from, and what they
	// are like. A built-in template is built at its first use.
	template(ctx context.Context, name string) (image, shape, error)
	// load returns what was stored.
	load(ctx context.Context, stored string) (image, error)
	// delete removes what was stored; it is no error if there is nothing.
	delete(ctx context.Context, stored string) error
	// stored lists what has a label that begins with prefix.
	stored(ctx context.Context, prefix string) ([]string, error)
}

// templateStore is what an engine needs of a template.Store besides.
type templateStore interface {
	Templates(ctx context.Context) (*api.TemplateList, error)
	Template(ctx context.Context, name string) (*api.Template, error)
	Build(ctx context.Context, spec template.Spec, o template.BuildOptions) (template.Info, error)
	OpenLog(name string) (io.ReadCloser, error)
	Remove(ctx context.Context, name string) error
}

// image is a machine at one instant. The caller closes it.
type image interface {
	// start starts a machine for each host name, and returns each, or why
	// there is none.
	start(ctx context.Context, hostnames []string) ([]machine, []error)
	// save stores it, and returns its name there and how many bytes it has.
	save(ctx context.Context, label string) (stored string, bytes int64, err error)
	// pause is how long the machine stood still.
	pause() time.Duration
	close()
}

// machine runs.
type machine interface {
	agent() *client.Client
	// capture returns the machine as it is now. It goes on, unless it is halted.
	capture(ctx context.Context) (image, error)
	halt(ctx context.Context) error
	proceed(ctx context.Context) error
	look(ctx context.Context) (look, error)
	timings() vmm.Timings  // of its start
	done() <-chan struct{} // closed when it has ended
	why() error            // it has ended
	close()
}

// look is what a machine takes, and shares with others.
type look interface {
	usage() usage
	// with is how many bytes two machines have in common.
	with(look) (memory, disk int64)
}

// usage is what a machine takes, in bytes; memory is what its guest sees.
type usage struct{ memory, memoryOwn, memoryShared, diskOwn, diskShared int64 }

// shape is what machines of a template are like, and what commands in them
// begin with.
type shape struct {
	VCPUs  int   `json:"vcpus"`
	Memory int64 `json:"memory"`
	Disk   int64 `json:"disk"`

	Env  []string `json:"env,omitempty"`
	Dir  string   `json:"dir,omitempty"`
	User string   `json:"user,omitempty"`
}

// vmMachines are those of package vmm.
type vmMachines struct {
	*template.Store
	options vmm.LoadOptions
}

func (v *vmMachines) template(ctx context.Context, name string) (image, shape, error) {
	i, info, done, err := v.Use(ctx, name, template.BuildOptions{})
	if err != nil {
		return nil, shape{}, err
	}
	c := info.Config
	return &vmImage{i, v.Snapshots(), done}, shape{info.VCPUs, info.Memory, info.Disk, c.Env, c.Workdir, c.User}, nil
}

func (v *vmMachines) load(ctx context.Context, stored string) (image, error) {
	i, err := vmm.Load(ctx, v.Snapshots(), stored, v.options)
	if err != nil {
		return nil, err
	}
	return &vmImage{i, v.Snapshots(), func() { i.Close() }}, nil
}

func (v *vmMachines) delete(ctx context.Context, stored string) error {
	err := v.Snapshots().Delete(ctx, stored)
	if errors.Is(err, snapshot.ErrNotFound) {
		return nil
	}
	return err
}

func (v *vmMachines) stored(ctx context.Context, prefix string) ([]string, error) {
	infos, err := v.Snapshots().List(ctx)
	var ids []string
	for _, i := range infos {
		if strings.HasPrefix(i.Label, prefix) {
			ids = append(ids, i.ID)
		}
	}
	return ids, err
}

type vmImage struct {
	*vmm.Image
	store *snapshot.Store
	done  func() // it is not needed any more
}

func (i *vmImage) start(ctx context.Context, hostnames []string) ([]machine, []error) {
	options := make([]vmm.StartOptions, len(hostnames))
	for k, name := range hostnames {
		options[k].Hostname = name
	}
	vms, errs := i.StartEach(ctx, options)
	started := make([]machine, len(vms))
	for k, vm := range vms {
		if vm != nil {
			started[k] = vmMachine{vm, i.store}
		}
	}
	return started, errs
}

func (i *vmImage) save(ctx context.Context, label string) (string, int64, error) {
	info, err := i.Save(ctx, i.store, vmm.SnapshotOptions{Label: label})
	return info.ID, info.Stored, err
}

func (i *vmImage) pause() time.Duration { return i.Pause() }

func (i *vmImage) close() { i.done() }

type vmMachine struct {
	vm    *vmm.VM
	store *snapshot.Store
}

func (m vmMachine) agent() *client.Client { return m.vm.Agent() }

func (m vmMachine) capture(ctx context.Context) (image, error) {
	i, err := m.vm.Capture(ctx)
	if err != nil {
		return nil, err
	}
	return &vmImage{i, m.store, func() { i.Close() }}, nil
}

func (m vmMachine) halt(ctx context.Context) error    { return m.vm.Pause(ctx) }
func (m vmMachine) proceed(ctx context.Context) error { return m.vm.Resume(ctx) }
func (m vmMachine) timings() vmm.Timings              { return m.vm.Timings() }
func (m vmMachine) done() <-chan struct{}             { return m.vm.Done() }
func (m vmMachine) close()                            { m.vm.Close() }

func (m vmMachine) why() error {
	err := m.vm.Wait(context.Background()) // it has ended
	if o, ok := errors.AsType[*vmm.Outcome](err); ok && o.Detail != "" {
		return fmt.Errorf("%w: %s", o.Err, o.Detail)
	}
	return err
}

func (m vmMachine) look(ctx context.Context) (look, error) {
	s, err := m.vm.Sharing(ctx)
	if err != nil {
		return nil, err
	}
	return vmLook{s}, nil
}

type vmLook struct{ *vmm.Sharing }

func (l vmLook) usage() usage {
	return usage{l.MemorySize, l.MemoryOwn, l.MemoryShared, l.DiskOwn, l.DiskShared}
}

func (l vmLook) with(other look) (memory, disk int64) {
	c := l.With(other.(vmLook).Sharing)
	return c.Memory, c.Disk
}
