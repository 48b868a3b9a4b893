package vmm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"golang.org/x/sys/unix"
)

// Where guest memory is: above what Go uses for its heap, and far below where
// the kernel puts what asks for no place. The start is a random one.
const (
	lowestAddress  = 0x1000_0000_0000 // 16 TiB
	highestAddress = 0x6000_0000_0000 // 96 TiB
	addressAlign   = 1 << 30          // of page tables that map 2 MiB pages
)

// addressSpace hands out ranges of the process's addresses in which nothing is
// mapped, and keeps track of them, as the kernel does not.
//
// A memslot is put over such a range, and only then is memory mapped there. To
// map over another mapping would cost more: the kernel has to tell every VM of
// the process what goes away, and KVM to look at each page of the slot. Where
// nothing was, nothing goes away.
type addressSpace struct {
	mu   sync.Mutex
	next uintptr             // guarded by mu: behind the last range handed out; 0 before the first
	free map[int64][]uintptr // guarded by mu: ranges given back, by size
}

var addresses = addressSpace{free: make(map[int64][]uintptr)}

// take returns the start of a range of size bytes.
func (a *addressSpace) take(size int64) (uintptr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if free := a.free[size]; len(free) > 0 {
		addr := free[len(free)-1]
		a.free[size] = free[:len(free)-1]
		return addr, nil
	}
	const tries = 64 // each at a place of its own
	room := highestAddress - lowestAddress - size
	for n := 0; n < tries && room > 0; n++ {
		addr := a.next
		if addr == 0 || addr+uintptr(size) > highestAddress {
			addr = (lowestAddress + uintptr(rand.Int64N(room))) &^ (addressAlign - 1)
		}
		a.next = 0
		err := checkUnmapped(addr, size)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return 0, err
		}
		a.next = (addr + uintptr(size) + 2*addressAlign - 1) &^ (addressAlign - 1) // apart from the next
		return addr, nil
	}
	return 0, fmt.Errorf("no unused addresses for %d MiB", size>>20)
}

// give takes back a range in which nothing is mapped any more.
func (a *addressSpace) give(addr uintptr, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free[size] = append(a.free[size], addr)
}
