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
		vm.halt(nil)
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
		vm.proceed(nil)
	}
	return nil
}

// halt stops the guest: first the vCPUs, so that nothing new is asked of the
// devices, then the devices. The caller has the turn, and if it runs on the
// thread of a vCPU, self is that one.
func (vm *VM) halt(self *vcpu) {
	// Each vCPU parks on its own thread at the same time.
	_ = vm.shell.onAll(self, func(c *vcpu) error { c.parked = true; return nil })
	vm.board.Load().quiesce()
}

// proceed is the reverse of halt.
func (vm *VM) proceed(self *vcpu) {
	vm.board.Load().resume()
	for _, c := range vm.shell.vcpus {
		if c == self {
			c.enter(vm.stopped)
		} else {
			c.unpark(vm.stopped)
		}
	}
}

// onLead runs f on the thread of the first vCPU. Whatever needs a machine that
// stands still is done there: of every way to hand work to a thread and back
// the shortest.
func (vm *VM) onLead(f func(lead *vcpu) error) error {
	lead := vm.shell.vcpus[0]
	err := error(ErrClosed)
	lead.do(func() { err = f(lead) })
	return err
}

// onLeadSoon is onLead for what takes no longer than vcpu.doSoon is made for.
func (vm *VM) onLeadSoon(f func(lead *vcpu) error) error {
	lead := vm.shell.vcpus[0]
	err := error(ErrClosed)
	lead.doSoon(func() { err = f(lead) })
	return err
}
