package vmm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/guestagent/proto"
	"github.com/forkvm/forkvm/snapshot"
)

// SnapshotOptions are what a snapshot may have beside the machine.
type SnapshotOptions struct {
	// Label is for people: at most 200 bytes of printable characters.
	Label string
	// Progress, if any, is told of the bytes written so far and in all.
	Progress func(done, total int64)
}

// storedConfig is a machine's configuration in a snapshot.
type storedConfig struct {
	VCPUs    int          `json:"vcpus"`
	Memory   int64        `json:"memory"`
	Hostname string       `json:"hostname"`
	Cmdline  string       `json:"cmdline,omitempty"`
	Bare     bool         `json:"bare,omitempty"`
	Agent    client.Info  `json:"agent"`
	Disks    []storedDisk `json:"disks,omitempty"`
}

// storedDisk is a disk's configuration but for its size.
type storedDisk struct {
	Name     string `json:"name"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Snapshot captures the machine and stores the capture. The machine stands
// still for the capture only: it goes on while that is written. If anything
// fails, the store is as it was, and the machine goes on. See
// [snapshot.Store.Create] for its errors.
//
// Of memory that the machine shares with snapshots of the same store, nothing
// is written again.
func (vm *VM) Snapshot(ctx context.Context, store *snapshot.Store, o SnapshotOptions) (snapshot.Info, error) {
	image, err := vm.Capture(ctx)
	if err != nil {
		return snapshot.Info{}, err
	}
	defer image.Close()
	info, err := image.Save(ctx, store, o)
	if err != nil {
		return snapshot.Info{}, err
	}
	vm.lineage.Store(&info.ID)
	return info, nil
}

// Save stores the image. See [VM.Snapshot].
func (i *Image) Save(ctx context.Context, store *snapshot.Store, o SnapshotOptions) (snapshot.Info, error) {
	table, onDisk, err := i.retain()
	if err != nil {
		return snapshot.Info{}, err
	}
	defer table.Release()
	defer onDisk.release()
	sections, err := encodeState(i.state)
	if err != nil {
		return snapshot.Info{}, err
	}
	stored := storedConfig{
		VCPUs: i.cfg.VCPUs, Memory: i.cfg.Memory, Hostname: i.cfg.Hostname, Cmdline: i.cfg.Cmdline, Bare: i.cfg.Bare, Agent: i.info,
	}
	var named []snapshot.Disk
	for k, d := range i.cfg.Disks {
		stored.Disks = append(stored.Disks, storedDisk{d.Name, d.ReadOnly})
		named = append(named, snapshot.Disk{Name: d.Name, Table: onDisk[k]})
	}
	config, err := json.Marshal(stored)
	if err != nil {
		return snapshot.Info{}, fmt.Errorf("vmm: encode configuration: %w", err)
	}
	info, err := store.Create(ctx, snapshot.Draft{
		Label: o.Label, Parent: i.parent, Config: config, Needs: i.state.needs(),
		Kernel: snapshot.Kernel{Version: i.info.Kernel}, Sections: sections, Memory: table, Disks: named, Progress: o.Progress,
	})
	if err != nil {
		return snapshot.Info{}, fmt.Errorf("vmm: snapshot: %w", err)
	}
	return info, nil
}

// LoadOptions say how a stored machine is to be run.
type LoadOptions struct {
	KVM   string // path of the device; empty means /dev/kvm
	Spare int    // see [Config]

	Prefault bool   // see [Config]
	Scratch  string // see [Config]

	// Progress, if it is not nil, is told how many bytes are verified.
	Progress func(done, total int64)
}

// Load makes an image of a stored snapshot. All of it is verified, memory the
// first time that store is asked for it. It fails with
// [snapshot.ErrIncompatible] if this host cannot run the machine, and says
// what it lacks. The snapshot can be deleted as soon as Load has returned.
func Load(ctx context.Context, store *snapshot.Store, id string, o LoadOptions) (*Image, error) {
	begin := time.Now()
	stored, err := store.Load(ctx, id, o.Progress)
	if err != nil {
		return nil, fmt.Errorf("vmm: load: %w", err)
	}
	defer stored.Release()
	image, err := imageOf(stored, o)
	if err != nil {
		return nil, fmt.Errorf("vmm: load snapshot %s: %w", id, err)
	}
	image.loaded = time.Since(begin)
	return image, nil
}

func imageOf(stored *snapshot.Snapshot, o LoadOptions) (*Image, error) {
	host, err := hostNeeds(o.KVM)
	if err != nil {
		return nil, err
	}
	if err := stored.Needs.Check(host); err != nil {
		return nil, err
	}
	var c storedConfig
	if err := decodeSection(stored.Config, &c); err != nil {
		return nil, fmt.Errorf("configuration: %w: %w", snapshot.ErrCorrupt, err)
	}
	cfg := Config{
		Kernel: "(stored)", Cmdline: c.Cmdline, VCPUs: c.VCPUs, Memory: c.Memory, Hostname: c.Hostname,
		Bare: c.Bare, KVM: o.KVM, Spare: o.Spare, Prefault: o.Prefault,
		Scratch: o.Scratch,
	}.withDefaults()
	if cfg.Memory != stored.Memory.Size() || len(c.Disks) != len(stored.Disks) {
		return nil, fmt.Errorf("%w: memory of %d bytes in place of %d, %d disks in place of %d",
			snapshot.ErrCorrupt, stored.Memory.Size(), cfg.Memory, len(stored.Disks), len(c.Disks))
	}
	for k, d := range c.Disks {
		if d.Name != stored.Disks[k].Name {
			return nil, fmt.Errorf("%w: disk %.30q in place of %.30q", snapshot.ErrCorrupt, stored.Disks[k].Name, d.Name)
		}
		cfg.Disks = append(cfg.Disks, Disk{Name: d.Name, Size: stored.Disks[k].Table.Size(), ReadOnly: d.ReadOnly})
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", snapshot.ErrCorrupt, err)
	}
	if !cfg.Bare && c.Agent.Version != proto.Version {
		return nil, fmt.Errorf("%w: its agent speaks version %d of the protocol, this program version %d",
			snapshot.ErrIncompatible, c.Agent.Version, proto.Version)
	}
	st, err := decodeState(stored.Sections, cfg.VCPUs, len(cfg.Disks))
	if err != nil {
		return nil, err
	}
	image := &Image{cfg: cfg, state: st, info: c.Agent, prints: newFootprint(cfg), parent: stored.ID, table: stored.Memory.Retain()}
	for _, d := range stored.Disks {
		image.onDisk = append(image.onDisk, d.Table.Retain())
	}
	image.pool = joinPool(specOf(cfg, st.kvm.CPUID, st.msrs), cfg.Spare)
	return image, nil
}

// Restore starts a machine from a stored snapshot: [Load] and [Image.Start] in
// one. Whatever fails, no machine is left.
func Restore(ctx context.Context, store *snapshot.Store, id string, o StartOptions) (*VM, error) {
	begin := time.Now()
	image, err := Load(ctx, store, id, LoadOptions{})
	if err != nil {
		return nil, err
	}
	vm, err := image.start(ctx, begin, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("vmm: restore: %w", err), image.Close())
	}
	image.pool.refill()
	return vm, image.Close()
}
