package vmm

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	table *snapshot.Table
	msrs  *msrList

	pause, capture time.Duration
	dirty          int64

	mu     sync.Mutex
	closed bool // guarded by mu
}

// Pause is how long the machine stood still for the capture.
func (i *Image) Pause() time.Duration { return i.pause }

// DirtyPages is how many pages the machine had written since it was started
// or last captured: what the capture had to copy.
func (i *Image) DirtyPages() int64 { return i.dirty }

// Close frees the image. Machines started from it live on.
func (i *Image) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.closed {
		i.closed = true
		i.table.Release()
	}
	return nil
}

// retain takes a reference on the table, for one start.
func (i *Image) retain() (*snapshot.Table, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil, fmt.Errorf("vmm: image is closed")
	}
	return i.table.Retain(), nil
}

// Fork captures the machine once and starts n children from it, each going on
// from the same instruction with memory shared copy-on-write. Each child gets
// an identity of its own, confirmed by its agent, before it is returned; the
// parent notices nothing but the pause. Connections into the guest that were
// open stay with the parent and are reset in the children.
//
// Either all children are returned or none. Whatever fails, the parent goes
// on. A paused machine can be forked: its children run and it stays paused.
func (vm *VM) Fork(ctx context.Context, n int) ([]*VM, error) {
	if n < 1 || n > MaxForks {
		return nil, fmt.Errorf("vmm: fork: %w: %d children, want 1 to %d", ErrConfig, n, MaxForks)
	}
	image, err := vm.Capture(ctx)
	if err != nil {
		return nil, fmt.Errorf("vmm: fork: %w", err)
	}
	defer image.Close()
	children := make([]*VM, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { children[i], errs[i] = image.Start(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, c := range children {
			if c != nil {
				c.Close()
			}
		}
		return nil, fmt.Errorf("vmm: fork: %w", err)
	}
	return children, nil
}

// Capture stops the machine, saves its state and memory, and lets it go on.
func (vm *VM) Capture(ctx context.Context) (*Image, error) {
	if err := vm.takeTurn(ctx); err != nil {
		return nil, fmt.Errorf("vmm: capture: %w", err)
	}
	defer vm.turn.give()
	begin := time.Now()
	if !vm.paused {
		vm.halt()
		defer vm.proceed()
	}
	// It may have ended on its way to the halt.
	if err := vm.err(); err != nil {
		return nil, fmt.Errorf("vmm: capture: %w", err)
	}
	image, err := vm.captureHalted()
	if err != nil {
		return nil, fmt.Errorf("vmm: capture: %w", err)
	}
	image.pause = time.Since(begin)
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
	if image.table, image.dirty, err = vm.mem.capture(); err != nil {
		return nil, err
	}
	image.capture = time.Since(begin)
	return image, nil
}

// Start starts a machine from the image and returns when its agent has
// confirmed its identity. If ctx ends first the machine is closed.
func (i *Image) Start(ctx context.Context) (*VM, error) {
	begin := time.Now()
	table, err := i.retain()
	if err != nil {
		return nil, err
	}
	defer table.Release()
	cfg := i.cfg
	cfg.Console = io.Discard // the parent's writer is the parent's
	vm, err := newVM(cfg, table)
	if err != nil {
		return nil, err
	}
	vm.timings = Timings{Create: time.Since(begin), Pause: i.pause, Capture: i.capture, DirtyPages: i.dirty}
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
	vm.timings.FirstEntry = time.Since(begin)
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
