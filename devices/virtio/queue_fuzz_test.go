package virtio_test

import (
	"bytes"
	"testing"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

const (
	fuzzRAM  = 4 * 4096
	fuzzBase = 4096 // where the fuzzer's bytes go, which is where rings are
)

// written is what a seed wrote to memory, from fuzzBase on.
func written(mem *virtiotest.Memory) []byte {
	return bytes.TrimRight(mem.RAM()[fuzzBase:], "\x00")
}

// FuzzQueue runs a device over whatever a driver may have left in memory.
func FuzzQueue(f *testing.F) {
	for _, c := range hostile {
		mem := virtiotest.NewMemory(fuzzRAM)
		r := virtiotest.NewRing(mem, 8, allFeatures)
		c.do(mem, r)
		st := r.State()
		f.Add(uint8(3), true, uint32(st.Desc), uint32(st.Avail), uint32(st.Used), uint8(1), written(mem))
	}
	for _, events := range []bool{false, true} {
		mem := virtiotest.NewMemory(fuzzRAM)
		r := virtiotest.NewRing(mem, 8, allFeatures)
		r.Add(mem.Out([]byte("direct")), mem.In(8))
		r.AddIndirect(mem.Out([]byte("indirect")), mem.In(8))
		st := r.State()
		f.Add(uint8(3), events, uint32(st.Desc), uint32(st.Avail), uint32(st.Used), uint8(2), written(mem))
	}
	f.Fuzz(func(t *testing.T, logSize uint8, events bool, desc, avail, used uint32, depth uint8, ram []byte) {
		features := uint64(virtio.FeatureVersion1 | virtio.FeatureIndirectDesc)
		if events {
			features |= virtio.FeatureEventIdx
		}
		mem := virtiotest.NewMemory(fuzzRAM)
		copy(mem.RAM()[fuzzBase:], ram)
		size := uint16(1) << (logSize % 9)
		q, err := virtio.NewQueue(mem, virtio.QueueState{
			MaxSize: size, Size: size,
			Desc: uint64(desc), Avail: uint64(avail), Used: uint64(used),
		}, features)
		if err != nil {
			return
		}
		drive(t, q, int(depth%4)+1)
	})
}

// drive pops up to depth requests at a time and pushes them, until the queue
// is empty or broken. Where the used ring lies on top of the available ring
// that may be never: it gives up after a while.
func drive(t *testing.T, q *virtio.Queue, depth int) {
	for range 1000 {
		var heads []uint16
		for range depth {
			c, err := q.Pop()
			if err != nil {
				if _, again := q.Pop(); again != err {
					t.Fatalf("Pop of a broken queue: %v, want %v", again, err)
				}
				return
			}
			if c == nil {
				break
			}
			touch(t, c)
			heads = append(heads, c.Head)
		}
		if len(heads) == 0 {
			return
		}
		if len(heads) == depth && depth > 1 {
			q.Undo()
			heads = heads[:depth-1]
		}
		for _, h := range heads {
			if err := q.Push(h, 0); err != nil {
				t.Fatalf("Push of what was popped: %v", err)
			}
		}
		q.NeedInterrupt()
		q.SetNotify(true)
		if st := q.State(); st.NextAvail != st.NextUsed {
			t.Fatalf("nothing in flight, but %+v", st)
		}
	}
}

// touch reads and writes the first and last byte of every buffer.
func touch(t *testing.T, c *virtio.Chain) {
	if n := len(c.Readable) + len(c.Writable); n > 256+1024 {
		t.Fatalf("chain of %d buffers", n)
	}
	for _, b := range c.Readable {
		_, _ = b[0], b[len(b)-1]
	}
	for _, b := range c.Writable {
		b[0], b[len(b)-1] = 1, 2
	}
}
