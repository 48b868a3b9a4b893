// Package bus dispatches the accesses of a guest to the device that answers at
// the address. One type serves port I/O and memory-mapped I/O; a machine has
// one bus of each.
package bus

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync/atomic"
)

// Device is what sits on a bus. It sees offsets from its own base, never
// addresses. Its methods are called from the threads of all vCPUs at once and
// must cope with any offset and any length, since a guest chooses both.
type Device interface {
	// Read fills all of p with what a guest reads at offset off.
	Read(off uint64, p []byte)
	// Write takes the bytes p that a guest wrote at offset off. The device
	// keeps no reference to p.
	Write(off uint64, p []byte)
}

// Reasons for which [Bus.Insert] refuses a device.
var (
	// ErrOverlap means that part of the range belongs to another device.
	ErrOverlap = errors.New("range overlaps another device")
	// ErrRange means that the range is empty or passes the top of the
	// address space.
	ErrRange = errors.New("range is empty or wraps around")
	// ErrNoDevice means that the device is nil.
	ErrNoDevice = errors.New("no device")
)

// slot is one device and the addresses it answers at, both ends included so
// that a range may end at the very top of the address space.
type slot struct {
	first, last uint64
	device      Device
}

// Bus maps addresses to devices. The zero value is an empty bus.
//
// All devices are inserted before the machine runs; from then on Read, Write
// and Unmatched are safe for concurrent use, allocate nothing and take no
// lock.
type Bus struct {
	slots []slot // sorted by first, disjoint

	// hit is the index of the slot that answered last. Guests access one
	// device many times in a row, and a stale index only costs the search.
	hit atomic.Uint64

	unmatchedReads, unmatchedWrites atomic.Uint64
}

// Insert makes d answer at the length addresses that start at base. It must
// not be called concurrently with anything else. The error wraps [ErrOverlap],
// [ErrRange] or [ErrNoDevice], and then the bus is as it was.
func (b *Bus) Insert(base, length uint64, d Device) error {
	if d == nil {
		return fmt.Errorf("bus: insert %#x: %w", base, ErrNoDevice)
	}
	if length == 0 || base > math.MaxUint64-(length-1) {
		return fmt.Errorf("bus: insert %#x, length %#x: %w", base, length, ErrRange)
	}
	s := slot{first: base, last: base + (length - 1), device: d}
	// The first slot that ends at or after base is the only one that can be
	// in the way, because slots are sorted and disjoint.
	i := sort.Search(len(b.slots), func(i int) bool { return b.slots[i].last >= base })
	if i < len(b.slots) && b.slots[i].first <= s.last {
		return fmt.Errorf("bus: insert %#x-%#x: %w (%#x-%#x)",
			s.first, s.last, ErrOverlap, b.slots[i].first, b.slots[i].last)
	}
	b.slots = slices.Insert(b.slots, i, s)
	return nil
}

// Read fills p with what the guest reads at addr and reports whether one
// device holds all of [addr, addr+len(p)). If none does, p is all ones, as on
// a bus that nobody drives.
func (b *Bus) Read(addr uint64, p []byte) bool {
	s := b.find(addr, len(p))
	if s == nil {
		for i := range p {
			p[i] = 0xff
		}
		b.unmatchedReads.Add(1)
		return false
	}
	s.device.Read(addr-s.first, p)
	return true
}

// Write hands p to the device at addr and reports whether one device holds all
// of [addr, addr+len(p)). If none does, the write is dropped.
func (b *Bus) Write(addr uint64, p []byte) bool {
	s := b.find(addr, len(p))
	if s == nil {
		b.unmatchedWrites.Add(1)
		return false
	}
	s.device.Write(addr-s.first, p)
	return true
}

// Unmatched returns how many reads and writes no device answered.
func (b *Bus) Unmatched() (reads, writes uint64) {
	return b.unmatchedReads.Load(), b.unmatchedWrites.Load()
}

// find returns the slot that holds all n bytes at addr, or nil.
func (b *Bus) find(addr uint64, n int) *slot {
	if n == 0 || len(b.slots) == 0 {
		return nil
	}
	if s := &b.slots[b.hit.Load()]; s.holds(addr, n) {
		return s
	}
	// The last slot that starts at or before addr.
	lo, hi := 0, len(b.slots)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if b.slots[mid].first <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 || !b.slots[lo-1].holds(addr, n) {
		return nil
	}
	b.hit.Store(uint64(lo - 1))
	return &b.slots[lo-1]
}

// holds reports whether all n bytes at addr, n > 0, lie within the slot.
func (s *slot) holds(addr uint64, n int) bool {
	return addr >= s.first && addr <= s.last && uint64(n-1) <= s.last-addr
}
