// Package devices answers what a guest sees of the machine around its vCPUs.
//
// Each device lives in a folder of its own and knows three things only:
// offsets into its own registers, a bounds-checked [Memory] of the guest, and
// one [Interrupt] to raise. It knows no address, no KVM and no other device;
// package vmm puts it on a bus and connects the interrupt.
//
// Configuration and state are plain values. A device is made cold by
// New(cfg, env) and warm by Restore(cfg, env, state): restoring is
// constructing, so a half-restored device cannot exist.
//
// Guests are hostile. Whatever a guest writes, a device answers with an error
// that it counts or with a reset of itself: never a panic, an unbounded
// allocation or an unbounded loop.
package devices

// Memory is what a device may see of guest-physical memory.
//
// Implementations are safe for concurrent use. The guest may write the bytes
// at any time, so a device copies what it validates before it believes it.
type Memory interface {
	// Slice returns the n bytes of RAM that start at guest-physical address
	// gpa. It fails unless all of them are RAM and contiguous on the host.
	// The slice stays valid as long as the machine that owns the memory.
	Slice(gpa, n uint64) ([]byte, error)
}

// Interrupt is a device's one interrupt line, edge-triggered.
//
// Trigger is synchronous: when it returns, the interrupt is part of the
// interrupt controllers' state and so of any capture taken afterwards.
// It never blocks on a guest and is safe for concurrent use.
type Interrupt interface {
	Trigger()
}

// InterruptFunc adapts a function to an [Interrupt].
type InterruptFunc func()

// Trigger calls f.
func (f InterruptFunc) Trigger() { f() }
