package main

import (
	"context"
	"sync"
	"time"
)

// usage is what a server is used for.
type usage struct {
	mu       sync.Mutex
	requests int       // under way
	last     time.Time // when it was last seen to be used
}

func newUsage() *usage { return &usage{last: time.Now()} }

// begin notes a request, until end is called.
func (u *usage) begin() (end func()) {
	u.add(1)
	return func() { u.add(-1) }
}

func (u *usage) add(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.requests += n
	u.last = time.Now()
}

// unused is for how long it has not been used; busy tells that it is, if only by
// sandboxes that run.
func (u *usage) unused(busy bool) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if busy || u.requests > 0 {
		u.last = time.Now()
	}
	return time.Since(u.last)
}

// looks is how often it is looked, in the time after which a server ends, whether
// a sandbox runs: so it may end that much later.
const looks = 16

// waitUnused returns when it has not been used for a time and claim, which is
// asked then, agrees: it may give back what it claimed if that was in vain. It is
// false if ctx ended before.
func (u *usage) waitUnused(ctx context.Context, after time.Duration, busy func() bool, claim func() (giveBack func(), ok bool)) bool {
	for {
		left := after - u.unused(busy())
		if left <= 0 {
			giveBack, ok := claim()
			if ok && u.unused(busy()) >= after {
				return true
			}
			if ok { // it was used meanwhile
				giveBack()
			} else {
				u.unused(true)
			}
			left = after
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(min(left, max(after/looks, time.Millisecond))):
		}
	}
}
