package vmm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Where guest memory is: above what Go uses for its heap and its race detector
// for itself, and below where the kernel puts what asks for no place. The start
// is a random one.
const (
	lowestAddress  = 0x3800_0000_0000 // 56 TiB
	highestAddress = 0x7000_0000_0000 // 112 TiB
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
	all  []addressRange      // guarded by mu: every range ever handed out
	free map[int64][]uintptr // guarded by mu: those of them that were given back, by size
}

type addressRange struct{ start, end uintptr }

var addresses = newAddressSpace()

func newAddressSpace() *addressSpace { return &addressSpace{free: make(map[int64][]uintptr)} }

// take returns the start of a range of size bytes.
func (a *addressSpace) take(size int64) (uintptr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.free[size]) > 0 {
		free := a.free[size]
		addr := free[len(free)-1]
		a.free[size] = free[:len(free)-1]
		// Unless somebody else has mapped there: then it is theirs.
		if err := checkUnmapped(addr, size); !errors.Is(err, unix.EEXIST) {
			return addr, err
		}
	}
	const tries = 64 // each at a place of its own
	room := highestAddress - lowestAddress - size
	for n := 0; n < tries && room > 0; n++ {
		addr := a.next
		if addr == 0 || addr+uintptr(size) > highestAddress {
			addr = (lowestAddress + uintptr(rand.Int64N(room))) &^ (addressAlign - 1)
		}
		a.next = 0
		r := addressRange{addr, addr + uintptr(size)}
		if a.overlaps(r) {
			continue
		}
		err := checkUnmapped(addr, size)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return 0, err
		}
		a.all = append(a.all, r)
		a.next = (r.end + 2*addressAlign - 1) &^ (addressAlign - 1) // apart from the next
		return addr, nil
	}
	return 0, fmt.Errorf("no unused addresses for %d MiB", size>>20)
}

// overlaps tells whether a range was handed out before, in part or as part of
// another one: while nothing is mapped there, only this knows.
func (a *addressSpace) overlaps(r addressRange) bool {
	return slices.ContainsFunc(a.all, func(o addressRange) bool { return r.start < o.end && o.start < r.end })
}

// give takes back a range that take has returned and in which nothing is mapped
// any more.
func (a *addressSpace) give(addr uintptr, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free[size] = append(a.free[size], addr)
}
