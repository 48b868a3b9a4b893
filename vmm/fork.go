package vmm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/forkvm/forkvm/snapshot"
)

// MaxForks is the largest number of children of one [VM.Fork].
const MaxForks = 1000

// Image is a machine captured at one instant: state of vCPUs and devices, and
// memory as shared immutable layers. Any number of machines can be started
// from it, at any time. It is immutable and safe for concurrent use.
type Image struct {
	cfg   Config
	kvm   *kvmState
	board boardState
	msrs  *msrList

	pause, capture time.Duration
	dirty, copied  int64

	mu    sync.Mutex
	table *snapshot.Table // guarded by mu; nil once closed
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
		i.table = nil
	}
	return nil
}

// retain takes a reference on the table, for one start.
func (i *Image) retain() (*snapshot.Table, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.table == nil {
		return nil, errors.New("vmm: image is closed")
	}
	return i.table.Retain(), nil
}

// StartOptions are what a machine that is started from an image may have of
// its own.
type StartOptions struct {
	Hostname string           // empty: that of the captured machine
	Console  io.Writer        // nil: discarded
	Trace    func(TraceEvent) // nil: none
	Logger   *slog.Logger     // nil: that of the captured machine
}

// Fork captures the machine once and starts n children from it, each going on
// from the same instruction with memory shared copy-on-write. Each child gets
// an identity of its own, confirmed by its agent, before it is returned; the
// parent notices nothing but the pause. Connections into the guest that were
// open stay with the parent and are reset in the children.
//
// Either all children are returned or none. Whatever fails, the parent goes
// on. A paused machine can be forked: its children run and it stays paused.
// [VM.Capture] and [Image.Start] do the same step by step.
func (vm *VM) Fork(ctx context.Context, n int) ([]*VM, error) {
	if n < 1 || n > MaxForks {
		return nil, fmt.Errorf("vmm: fork: %w: %d children, want 1 to %d", ErrConfig, n, MaxForks)
	}
	image, err := vm.Capture(ctx)
	if err != nil {
		return nil, fmt.Errorf("vmm: fork: %w", err)
	}
	defer image.Close()
	if err := image.makeRoom(n); err != nil {
		return nil, fmt.Errorf("vmm: fork: %w", err)
	}
	children, err := image.startAll(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("vmm: fork: %w", err)
	}
	return children, nil
}

// startAll starts n machines, some at a time. The first failure ends the
// others.
func (i *Image) startAll(ctx context.Context, n int) ([]*VM, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	children := make([]*VM, n)
	// More than a few for each CPU only compete; but a child that waits for
	// its guest uses none.
	slots := make(chan struct{}, max(16, 4*runtime.NumCPU()))
	var wg sync.WaitGroup
	for k := range n {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			var err error
			if err = ctx.Err(); err == nil {
				children[k], err = i.Start(ctx, StartOptions{})
			}
			if err != nil {
				cancel(fmt.Errorf("child %d of %d: %w", k+1, n, err))
			}
		})
	}
	wg.Wait()
	if ctx.Err() == nil {
		return children, nil
	}
	for _, c := range children {
		if c != nil {
			wg.Go(func() { c.Close() })
		}
	}
	wg.Wait()
	return nil, context.Cause(ctx)
}

// makeRoom rewrites the image's table in fewer extents if n machines would
// otherwise need more mappings than the process has left.
func (i *Image) makeRoom(n int) error {
	table, err := i.retain()
	if err != nil {
		return err
	}
	defer table.Release()
	if int64(n)*mappingsOf(table) <= mappings.room() {
		return nil
	}
	compact, err := compactTable(table)
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
// paused machine stays paused.
func (vm *VM) Capture(ctx context.Context) (*Image, error) {
	if err := vm.takeTurn(ctx); err != nil {
		return nil, fmt.Errorf("vmm: capture: %w", err)
	}
	defer vm.turn.give()
	image, err := vm.captureStill()
	if err == nil {
		err = vm.compact(image)
	}
	if err != nil {
		if image != nil {
			image.Close()
		}
		return nil, fmt.Errorf("vmm: capture: %w", err)
	}
	return image, nil
}

// captureStill captures the machine while it stands still.
func (vm *VM) captureStill() (*Image, error) {
	begin := time.Now()
	if !vm.paused {
		vm.halt()
	}
	image, err := vm.captureHalted()
	if !vm.paused {
		vm.proceed()
	}
	if err != nil {
		return nil, err
	}
	image.pause = time.Since(begin)
	// A machine that ended meanwhile reset its devices under our hands.
	if err := vm.err(); err != nil {
		image.Close()
		return nil, err
	}
	return image, nil
}

// captureHalted reads a machine that stands still: clocks and vCPUs, chips,
// devices, and last the memory, which nothing writes any more.
func (vm *VM) captureHalted() (*Image, error) {
	st, err := vm.shell.saveKVM(vm.msrs)
	if err != nil {
		return nil, err
	}
	image := &Image{cfg: vm.cfg, kvm: st, board: vm.board.save(), msrs: vm.msrs}
	begin := time.Now()
	c, err := vm.mem.capture()
	if err != nil {
		return nil, err
	}
	image.table, image.dirty, image.copied = c.table, c.dirty, c.copied
	image.capture = time.Since(begin)
	return image, nil
}

// compact rewrites a table that has grown long, while the machine runs: the
// layers it reads do not change. The machine's next capture builds on it.
func (vm *VM) compact(i *Image) error {
	if len(i.table.Extents()) <= maxExtents {
		return nil
	}
	table, err := compactTable(i.table)
	if err != nil {
		return err
	}
	vm.mem.adoptCompact(table)
	i.replace(table)
	return nil
}

// Start starts a machine from the image and returns when its agent has
// confirmed its identity. If ctx ends first the machine is closed.
func (i *Image) Start(ctx context.Context, o StartOptions) (*VM, error) {
	begin := time.Now()
	table, err := i.retain()
	if err != nil {
		return nil, err
	}
	defer table.Release()
	cfg := i.cfg
	cfg.Hostname = cmp.Or(o.Hostname, cfg.Hostname)
	cfg.Logger = cmp.Or(o.Logger, cfg.Logger)
	cfg.Console, cfg.Trace = o.Console, o.Trace // the parent's are the parent's
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	vm, err := newVM(cfg, table, i.kvm.CPUID)
	if err != nil {
		return nil, err
	}
	vm.timings = Timings{
		Create: time.Since(begin), Pause: i.pause, Capture: i.capture, DirtyPages: i.dirty, CopiedPages: i.copied,
	}
	if err := vm.goOn(ctx, begin, i); err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	return vm, nil
}

// goOn restores the state, gives the machine an identity and lets it run.
func (vm *VM) goOn(ctx context.Context, begin time.Time, i *Image) error {
	start := time.Now()
	vm.msrs = i.msrs
	if err := vm.shell.restoreKVM(i.kvm); err != nil {
		return err
	}
	b, err := restoreBoard(vm.env(), &i.board)
	if err != nil {
		return err
	}
	vm.setBoard(b)
	if err := vm.writeGeneration(); err != nil {
		return err
	}
	// After the IOAPIC was restored, or the edge would be overwritten.
	vm.env().line(vmgenidGSI).Trigger()
	vm.timings.Restore = time.Since(start)
	vm.timings.StateReady = time.Since(begin)
	vm.proceed()
	if vm.cfg.noAgent {
		return nil
	}
	if err := vm.renewIdentity(ctx); err != nil {
		return fmt.Errorf("vmm: identity of the child: %w", err)
	}
	vm.timings.AgentReady = time.Since(begin)
	return nil
}
