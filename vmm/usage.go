package vmm

import (
	"context"
	"fmt"
)

// MemoryUsage is what a machine's memory takes of the host's, in bytes.
type MemoryUsage struct {
	Size int64 // that the guest sees
	// Own is what the machine has written since it was started or last
	// captured, and nobody shares.
	Own int64
	// Shared is the size of what it has mapped of layers, which others may use.
	Shared int64
}

// MemoryUsage looks up what the machine's memory takes. What is written
// meanwhile may be missing.
func (vm *VM) MemoryUsage(ctx context.Context) (MemoryUsage, error) {
	if err := vm.takeTurn(ctx); err != nil {
		return MemoryUsage{}, fmt.Errorf("vmm: memory usage: %w", err)
	}
	defer vm.turn.give()
	runs, err := privatePages(vm.mem.ram)
	if err != nil {
		return MemoryUsage{}, err
	}
	u := MemoryUsage{Size: int64(len(vm.mem.ram)), Shared: vm.mem.table.Stored()}
	for _, r := range runs {
		u.Own += r.end - r.start
	}
	return u, nil
}
