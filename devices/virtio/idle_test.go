package virtio_test

import (
	"fmt"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/devices/virtio"
)

// mapped is guest memory from address 0 on that faults on a store.
type mapped []byte

func (m mapped) Slice(gpa, n uint64) ([]byte, error) {
	if size := uint64(len(m)); gpa > size || n > size-gpa {
		return nil, fmt.Errorf("%d bytes at %#x: not RAM", n, gpa)
	}
	return m[gpa:][:n:n], nil
}

func readOnly(t *testing.T, ram []byte) mapped {
	t.Helper()
	m, err := unix.Mmap(-1, 0, len(ram), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m) })
	copy(m, ram)
	if err := unix.Mprotect(m, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	return m
}

// A restored device looks at all of its queues. Where there is nothing to do
// it stores nothing either, so that no child gets copies of its rings' pages.
func TestLookingAtAnIdleQueueStoresNothing(t *testing.T) {
	for _, features := range []uint64{virtio.FeatureVersion1, allFeatures} {
		t.Run(fmt.Sprintf("features %#x", features), func(t *testing.T) {
			p := newPair(t, 8, features)
			for range 3 {
				p.ring.Add(p.mem.Out([]byte("ab")), p.mem.In(4))
				p.serve(t)
				p.take(t)
			}
			p.queue.SetNotify(true)
			debug.SetPanicOnFault(true) // of this goroutine
			defer func() {
				if fault := recover(); fault != nil {
					t.Error(fault)
				}
			}()
			q, err := virtio.NewQueue(readOnly(t, p.mem.RAM()), p.queue.State(), features)
			if err != nil {
				t.Fatal(err)
			}
			if c, err := q.Pop(); c != nil || err != nil {
				t.Errorf("popped %v, %v", c, err)
			}
			if q.SetNotify(true) {
				t.Error("an idle queue has something to pop")
			}
		})
	}
}
