package vmm

import (
	"context"
	"fmt"
)

// turn is a lock that can be waited for with a context.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take() { t <- struct{}{} }
func (t turn) give() { <-t }

func (t turn) takeContext(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err // even if it is our turn
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeTurn takes the machine's turn, and fails if it has ended.
func (vm *VM) takeTurn(ctx context.Context) error {
	if err := vm.turn.takeContext(ctx); err != nil {
		return err
	}
	if err := vm.err(); err != nil {
		vm.turn.give()
		return err
	}
	return nil
}

// Pause stops the vCPUs and the devices until [VM.Resume]. Connections stay
// open and wait. A paused machine can be forked and captured, and stays
// paused. Pausing a paused machine does nothing.
func (vm *VM) Pause(ctx context.Context) error {
	if err := vm.takeTurn(ctx); err != nil {
		return fmt.Errorf("vmm: pause: %w", err)
	}
	defer vm.turn.give()
	if !vm.paused {
		vm.halt()
		vm.paused = true
	}
	return nil
}

// Resume ends a [VM.Pause]. Resuming a running machine does nothing.
func (vm *VM) Resume(ctx context.Context) error {
	if err := vm.takeTurn(ctx); err != nil {
		return fmt.Errorf("vmm: resume: %w", err)
	}
	defer vm.turn.give()
	if vm.paused {
		vm.paused = false
		vm.proceed()
	}
	return nil
}

// halt stops the guest: first the vCPUs, so that nothing new is asked of the
// devices, then the devices. The caller has the turn.
func (vm *VM) halt() {
	// Each vCPU parks on its own thread at the same time.
	_ = vm.shell.onAll(func(c *vcpu) error { c.parked = true; return nil })
	vm.board.quiesce()
}

// proceed is the reverse of halt. The guest is told that it stood still, so
// its watchdogs do not take the pause for a stall.
func (vm *VM) proceed() {
	vm.tellPaused()
	vm.board.resume()
	vm.run()
}

// tellPaused sets the flag of KVM_KVMCLOCK_CTRL. A guest without the KVM
// clock has none, which KVM answers with EINVAL.
func (vm *VM) tellPaused() {
	_ = vm.shell.onAll(func(c *vcpu) error { _ = c.kvm.KVMClockCtrl(); return nil })
}
