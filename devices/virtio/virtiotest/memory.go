// Package virtiotest is the driver's side of virtio, for tests of devices: a
// fake guest memory ([Memory]), the driver's half of a split ring ([Ring]), a
// driver of the memory-mapped transport ([Driver]) and an interrupt that can
// be counted and waited for ([Interrupt]).
package virtiotest

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/forkvm/forkvm/devices"
)

const pageSize = 4096

// Memory is guest RAM from address 0 on. It lives on the Go heap, so that the
// race detector sees a device that touches a buffer it does not own.
type Memory struct {
	ram    []byte
	next   uint64 // end of what Alloc has handed out
	slices atomic.Int64
}

var _ devices.Memory = (*Memory)(nil)

// NewMemory makes size bytes of zeroed RAM, rounded up to whole pages.
func NewMemory(size int) *Memory {
	size = (size + pageSize - 1) &^ (pageSize - 1)
	// The first page is not handed out: an address of 0 is a mistake.
	return &Memory{ram: make([]byte, size), next: pageSize}
}

// Slice implements [devices.Memory].
func (m *Memory) Slice(gpa, n uint64) ([]byte, error) {
	m.slices.Add(1)
	if size := uint64(len(m.ram)); gpa > size || n > size-gpa {
		return nil, fmt.Errorf("virtiotest: %d bytes at %#x: not RAM", n, gpa)
	}
	return m.ram[gpa:][:n:n], nil
}

// Slices is how often Slice was called.
func (m *Memory) Slices() int { return int(m.slices.Load()) }

// Size is the number of bytes of RAM.
func (m *Memory) Size() int { return len(m.ram) }

// RAM is all of the memory, from address 0 on.
func (m *Memory) RAM() []byte { return m.ram }

// Alloc reserves n bytes at a multiple of align, a power of two, and returns
// their address. It panics if there is no room: a mistake of the test.
func (m *Memory) Alloc(n, align int) uint64 {
	gpa := (m.next + uint64(align) - 1) &^ (uint64(align) - 1)
	m.next = gpa + uint64(n)
	if m.next > uint64(len(m.ram)) {
		panic(fmt.Sprintf("virtiotest: %d bytes of RAM used up", len(m.ram)))
	}
	return gpa
}

// Free is the number of bytes that Alloc has left.
func (m *Memory) Free() int { return len(m.ram) - int(m.next) }

// FreeAll takes back all that Alloc handed out.
func (m *Memory) FreeAll() { m.next = pageSize }

// Out places p in memory as a buffer for the device to read.
func (m *Memory) Out(p []byte) Buffer {
	b := Buffer{GPA: m.Alloc(len(p), 8), Len: uint32(len(p))}
	copy(m.ram[b.GPA:], p)
	return b
}

// In reserves a buffer of n bytes for the device to write.
func (m *Memory) In(n int) Buffer {
	return Buffer{GPA: m.Alloc(n, 8), Len: uint32(n), Writable: true}
}

// RAMBuffer is the n bytes at gpa as a buffer for the device to write.
func (m *Memory) RAMBuffer(gpa uint64, n int) Buffer {
	return Buffer{GPA: gpa, Len: uint32(n), Writable: true}
}

// Fork returns a copy that goes its own way, as the memory of a child does.
// Nothing may write to m meanwhile.
func (m *Memory) Fork() *Memory {
	c := NewMemory(len(m.ram))
	copy(c.ram, m.ram)
	c.next = m.next
	return c
}

// Scribble overwrites the bytes at gpa, like a guest with no manners: at any
// time, whoever owns them. What lies outside RAM is dropped. The race
// detector does not watch it.
//
//go:norace
func (m *Memory) Scribble(gpa uint64, p []byte) {
	for i, b := range p {
		if at := gpa + uint64(i); at < uint64(len(m.ram)) {
			m.ram[at] = b
		}
	}
}

// Interrupt is a [devices.Interrupt] for one test.
type Interrupt struct {
	count  atomic.Int64
	raised chan struct{}
}

// NewInterrupt makes one.
func NewInterrupt() *Interrupt {
	return &Interrupt{raised: make(chan struct{}, 1)}
}

// Trigger implements [devices.Interrupt].
func (i *Interrupt) Trigger() {
	i.count.Add(1)
	select {
	case i.raised <- struct{}{}:
	default:
	}
}

// Count is how often Trigger was called.
func (i *Interrupt) Count() int { return int(i.count.Load()) }

// Wait returns nil once Trigger was called since the last Wait, or the error
// of ctx. It is for one goroutine at a time.
func (i *Interrupt) Wait(ctx context.Context) error {
	select {
	case <-i.raised:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
