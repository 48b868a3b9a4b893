package vmm

import (
	"context"
	"sync"
)

// Closing a KVM machine takes the kernel 10 ms and more, nearly all of it
// spent waiting for grace periods. Nobody has to wait along: machines are
// freed in the background, many at once, since the waits overlap. Shells are
// built ahead there too.
const maxBackground = 16

// backgroundWork counts what is under way.
var backgroundWork = struct {
	slots chan struct{}
	mu    sync.Mutex
	n     int           // guarded by mu
	idle  chan struct{} // guarded by mu: closed when n is 0 again; nil if it is
}{slots: make(chan struct{}, maxBackground)}

// inBackground runs f in the background, when it is its turn.
func inBackground(f func()) {
	inBackgroundAtOnce(func() {
		backgroundWork.slots <- struct{}{}
		f()
		<-backgroundWork.slots
	})
}

// inBackgroundAtOnce is for what others may have to wait for, in the background
// as well.
func inBackgroundAtOnce(f func()) {
	backgroundWork.mu.Lock()
	backgroundWork.n++
	if backgroundWork.idle == nil {
		backgroundWork.idle = make(chan struct{})
	}
	backgroundWork.mu.Unlock()
	go func() {
		f()
		backgroundWork.mu.Lock()
		defer backgroundWork.mu.Unlock()
		if backgroundWork.n--; backgroundWork.n == 0 {
			close(backgroundWork.idle)
			backgroundWork.idle = nil
		}
	}()
}

// WaitFreed returns when everything of the machines closed so far is freed, in
// the kernel as well: descriptors, threads, memory. Only who counts those has
// a use for it. It fails if ctx ends first.
func WaitFreed(ctx context.Context) error {
	backgroundWork.mu.Lock()
	idle := backgroundWork.idle
	backgroundWork.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
