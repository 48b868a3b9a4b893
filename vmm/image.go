package vmm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/snapshot"
)

// Image is a machine captured at one instant: state of vCPUs and devices, and
// memory as shared immutable layers. Any number of machines can be started
// from it, at any time. It is immutable and safe for concurrent use.
type Image struct {
	cfg    Config
	state  *machineState
	info   client.Info // of the agent
	prints *footprint
	pool   *shellPool

	parent string // snapshot that the machine was restored from or last saved to; may be empty
	loaded time.Duration

	pause, capture time.Duration
	dirty, copied  int64
	frozen         frozen // while the capture is made

	mu     sync.Mutex
	table  *snapshot.Table // guarded by mu: memory; nil once closed
	onDisk tables          // guarded by mu
}

// Pause is how long the machine stood still for the capture.
func (i *Image) Pause() time.Duration { return i.pause }

// DirtyPages is how many pages the machine had written since it was started
// or last captured.
func (i *Image) DirtyPages() int64 { return i.dirty }

// CopiedPages is how many pages the capture copied: the dirty ones, and clean
// ones between them where that was cheaper than a mapping more.
func (i *Image) CopiedPages() int64 { return i.copied }

// Close frees the image. Machines started from it live on. Further calls do
// nothing.
func (i *Image) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.table != nil {
		i.table.Release()
		i.onDisk.release()
		i.table, i.onDisk = nil, nil
		i.pool.leave()
	}
	return nil
}

// retain takes references on the tables of memory and disks.
func (i *Image) retain() (*snapshot.Table, tables, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.table == nil {
		return nil, nil, errors.New("vmm: image is closed")
	}
	return i.table.Retain(), i.onDisk.retain(), nil
}

// makeRoom rewrites the image's table in fewer extents if n machines would
// otherwise need more mappings than the process has left.
func (i *Image) makeRoom(n int) error {
	table, onDisk, err := i.retain()
	if err != nil {
		return err
	}
	defer table.Release()
	onDisk.release()
	if int64(n)*mappingsOf(table) <= mappings.room() {
		return nil
	}
	limit := mappings.room() / int64(n) / 2
	compact, err := compactTable(table, int(max(1, min(limit, fewExtents))))
	if err != nil {
		return err
	}
	i.replace(compact)
	return nil
}

// replace takes over the caller's reference on a table of the same bytes.
func (i *Image) replace(table *snapshot.Table) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.table == nil {
		table.Release()
		return
	}
	i.table.Release()
	i.table = table
}

// Capture stops the machine, saves its state and memory, and lets it go on. A
// paused machine stays paused. If it has written much since its last capture,
// most of that is copied before it is stopped.
func (vm *VM) Capture(ctx context.Context) (*Image, error) {
	if err := vm.takeTurn(ctx); err != nil {
		return nil, fmt.Errorf("vmm: capture: %w", err)
	}
	defer vm.turn.give()
	image, err := vm.captureAll()
	if err != nil {
		return nil, fmt.Errorf("vmm: capture: %w", err)
	}
	return image, nil
}

// captureAll captures the machine. The caller has the turn.
func (vm *VM) captureAll() (*Image, error) {
	pool := vm.usePool()
	vm.mem.newLayer = pool.takeLayer
	mem, err := vm.mem.newCapture(!vm.paused)
	if err != nil {
		return nil, err
	}
	defer mem.abandon()
	image := &Image{cfg: vm.cfg, info: vm.info, prints: vm.footprint}
	defer func() { image.frozen.close(); image.frozen = nil }()
	if id := vm.lineage.Load(); id != nil {
		image.parent = *id
	}
	if err := vm.captureStill(image, mem); err != nil {
		return nil, err
	}
	c, err := mem.finish()
	if err != nil {
		return nil, err
	}
	image.table, image.dirty, image.copied = c.table, c.dirty, c.copied
	image.pool = pool.join()
	if image.onDisk, err = image.frozen.tables(); err != nil {
		image.Close()
		return nil, err
	}
	if err := vm.compact(image); err != nil {
		image.Close()
		return nil, err
	}
	return image, nil
}

// captureStill captures what the machine is while it stands still. The pause of
// one that runs begins when it is told to stop.
func (vm *VM) captureStill(image *Image, mem *memoryCapture) error {
	begin := time.Now()
	err := vm.onLeadSoon(func(lead *vcpu) error {
		defer func() { image.pause = time.Since(begin) }()
		if vm.paused {
			begin = time.Now()
		} else {
			vm.halt(lead)
			defer vm.proceed(lead)
		}
		return vm.captureHalted(lead, image, mem)
	})
	if err != nil {
		return err
	}
	// A machine that ended meanwhile reset its devices under our hands.
	return vm.err()
}

// captureHalted reads a machine that stands still: clocks and vCPUs, chips,
// devices, and last the memory, which nothing writes any more.
func (vm *VM) captureHalted(lead *vcpu, image *Image, mem *memoryCapture) error {
	st, err := vm.shell.saveKVM(lead, vm.msrs)
	if err != nil {
		return err
	}
	image.state = &machineState{st, vm.board.Load().save(), vm.msrs}
	begin := time.Now()
	if err := mem.freeze(); err != nil {
		return err
	}
	image.capture = time.Since(begin)
	image.frozen, err = vm.disks.freeze()
	return err
}

// usePool joins the pool that forks of the machine use, once. The caller has
// the turn.
func (vm *VM) usePool() *shellPool {
	if vm.pool == nil {
		vm.pool = joinPool(specOf(vm.cfg, vm.shell.cpuid, vm.msrs), vm.cfg.Spare)
	}
	return vm.pool
}

// compact rewrites a table that has grown long, while the machine runs: the
// layers it reads do not change. The machine's next capture builds on it.
func (vm *VM) compact(i *Image) error {
	if len(i.table.Extents()) <= maxExtents && layersOf(i.table) <= maxTableLayers {
		return nil
	}
	table, err := compactTable(i.table, fewExtents)
	if err != nil {
		return err
	}
	vm.mem.adoptCompact(table)
	i.replace(table)
	return nil
}

// layersOf is how many layers a table has something of.
func layersOf(t *snapshot.Table) int {
	layers := map[*snapshot.Layer]bool{}
	for _, e := range t.Extents() {
		layers[e.Layer] = true
	}
	return len(layers)
}

// StartOptions are what a machine that is started from an image may have of
// its own.
type StartOptions struct {
	Hostname string           // empty: that of the captured machine
	Console  io.Writer        // nil: discarded
	Trace    func(TraceEvent) // nil: none
	Logger   *slog.Logger     // nil: that of the captured machine
}

// Start starts a machine from the image and returns when its agent has
// confirmed its identity. If ctx ends first the machine is closed.
func (i *Image) Start(ctx context.Context, o StartOptions) (*VM, error) {
	defer i.pool.refill()
	return i.start(ctx, time.Now(), o)
}

// start is Start for a call that was made at begin.
func (i *Image) start(ctx context.Context, begin time.Time, o StartOptions) (*VM, error) {
	created := time.Now()
	table, onDisk, err := i.retain()
	if err != nil {
		return nil, err
	}
	defer table.Release()
	cfg := i.cfg
	cfg.Hostname = cmp.Or(o.Hostname, cfg.Hostname)
	cfg.Logger = cmp.Or(o.Logger, cfg.Logger)
	cfg.Console, cfg.Trace = o.Console, o.Trace // the parent's are the parent's
	cfg = cfg.withDefaults()
	err = cfg.validate()
	var shell *shell
	if err == nil {
		shell, err = i.pool.take()
	}
	if err != nil {
		onDisk.release()
		return nil, err
	}
	vm, err := newVM(cfg, begin, shell, table, onDisk)
	if err != nil {
		return nil, err
	}
	vm.pool, vm.origin, vm.info = i.pool.join(), i.state, i.info
	vm.footprint = i.prints
	vm.lineage.Store(&i.parent)
	vm.timings = Timings{
		Load: i.loaded, Create: time.Since(created), Pause: i.pause, Capture: i.capture, DirtyPages: i.dirty, CopiedPages: i.copied,
	}
	wait := vm.prefault()
	err = vm.goOn(ctx, func(*vcpu) error { return nil })
	wait()
	if err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	return vm, nil
}

// goOn gives the machine the state of its origin, after prepare, lets it run,
// and renews its identity.
func (vm *VM) goOn(ctx context.Context, prepare func(lead *vcpu) error) error {
	err := vm.onLead(func(lead *vcpu) error {
		// Who stops a machine closes the board that it has then: a new one would
		// outlive it, and write to its memory.
		if vm.stopped() {
			return ErrClosed
		}
		if err := prepare(lead); err != nil {
			return err
		}
		start := time.Now()
		if err := vm.restore(lead); err != nil {
			return err
		}
		vm.time(func(t *Timings) { t.Restore, t.StateReady = time.Since(start), time.Since(vm.begin) })
		vm.proceed(lead)
		return nil
	})
	if err != nil || vm.cfg.Bare {
		return err
	}
	if err := vm.renewIdentity(ctx); err != nil {
		return fmt.Errorf("vmm: identity of the child: %w", err)
	}
	vm.time(func(t *Timings) { t.AgentReady = time.Since(vm.begin) })
	return nil
}

// restore writes the state of the machine's origin to KVM and to new devices,
// and gives it a generation of its own.
func (vm *VM) restore(lead *vcpu) error {
	vm.msrs = vm.origin.msrs
	if err := vm.shell.restoreKVM(lead, vm.origin.kvm); err != nil {
		return err
	}
	b, err := restoreBoard(vm.env(), &vm.origin.board)
	if err != nil {
		return err
	}
	vm.setBoard(b)
	if err := vm.writeGeneration(); err != nil {
		return err
	}
	// After the IOAPIC was restored, or the edge would be overwritten.
	vm.env().line(vmgenidGSI).Trigger()
	return nil
}
