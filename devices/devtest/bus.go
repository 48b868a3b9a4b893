package devtest

import (
	"bytes"
	"math"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/forkvm/forkvm/devices/bus"
)

// Bus tells the suite how to handle a device of type D with state S that sits
// on a bus. What it is given for its surroundings (a clock, a writer) must be
// the same for every device made, so that equal states behave alike.
type Bus[D bus.Device, S any] struct {
	New     func(t testing.TB) D
	Save    func(D) S
	Restore func(t testing.TB, s S) D

	// Size is the length of the device's window in bytes.
	Size uint64
}

// TestBus runs the suite: no access of a guest harms a device, reads answer
// with all their bytes, and a device restored from a state is, to a guest, the
// one the state is of.
func TestBus[D bus.Device, S any](t *testing.T, b Bus[D, S]) {
	for _, c := range []struct {
		name string
		test func(t testing.TB, b *Bus[D, S])
	}{
		{"AnyAccess", testAnyAccess[D, S]},
		{"Concurrency", testBusConcurrency[D, S]},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.test(t, &b) })
		})
	}
	t.Run("Restore", func(t *testing.T) {
		random := rand.New(rand.NewPCG(3, 4))
		for range 50 {
			program := make([]byte, 300)
			for i := range program {
				program[i] = byte(random.Uint32())
			}
			synctest.Test(t, func(t *testing.T) { b.runTwins(t, program) })
		}
	})
}

// testAnyAccess reads and writes at every offset, and far outside, by every
// width.
func testAnyAccess[D bus.Device, S any](t testing.TB, b *Bus[D, S]) {
	d := b.New(t)
	offsets := []uint64{1 << 32, math.MaxInt64, math.MaxUint64 - 1, math.MaxUint64}
	for off := range min(b.Size, 4096) + 16 {
		offsets = append(offsets, off)
	}
	for _, off := range offsets {
		for n := range 17 {
			d.Read(off, make([]byte, n))
			d.Write(off, bytes.Repeat([]byte{byte(n)}, n))
			d.Read(off, make([]byte, n))
		}
	}
}

func testBusConcurrency[D bus.Device, S any](t testing.TB, b *Bus[D, S]) {
	d := b.New(t)
	var wg sync.WaitGroup
	for i := range uint64(4) {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(5, i))
			for range 500 {
				p := make([]byte, 1<<random.IntN(4))
				off := random.Uint64N(b.Size)
				d.Read(off, p)
				d.Write(off, p)
				b.Save(d)
			}
		})
	}
	wg.Wait()
}

// runTwins runs a program on a device and, from a point in the middle on, on a
// second one restored from the first. To the guest there is no difference, and
// to whoever looks at the state neither. The two are handed buffers with
// different rubbish, so that a read which leaves some of it there shows.
func (b *Bus[D, S]) runTwins(t testing.TB, program []byte) {
	one := b.New(t)
	rest := b.run(one, program[:len(program)/2], 0xaa, nil)
	synctest.Wait()
	s := b.Save(one)
	plain(t, s)
	two := b.Restore(t, s)
	b.same(t, two, s)

	program = append(rest, program[len(program)/2:]...)
	var saw, sees [][]byte
	b.run(one, program, 0xaa, &saw)
	b.run(two, program, 0x55, &sees)
	if !reflect.DeepEqual(saw, sees) {
		t.Errorf("a guest reads % x from a restored device and % x from the one it is made of", sees, saw)
	}
	synctest.Wait()
	b.same(t, two, b.Save(one))
}

func (b *Bus[D, S]) same(t testing.TB, d D, want S) {
	t.Helper()
	if got := b.Save(d); !reflect.DeepEqual(got, want) {
		t.Errorf("state of a restored device: %+v, want %+v", got, want)
	}
}

// run interprets a program: an offset, a width whose top bit makes it a read,
// and what is written. It appends what was read to saw and returns a copy of
// what was too short to be an access.
func (b *Bus[D, S]) run(d D, program []byte, rubbish byte, saw *[][]byte) []byte {
	for len(program) >= 2 {
		off, n := uint64(program[0])%(b.Size+2), int(program[1]&0x7f)%9
		read := program[1]&0x80 != 0
		if !read && len(program) < 2+n {
			break
		}
		program = program[2:]
		p := bytes.Repeat([]byte{rubbish}, n)
		if read {
			d.Read(off, p)
			if saw != nil {
				*saw = append(*saw, p)
			}
		} else {
			program = program[copy(p, program):]
			d.Write(off, p)
		}
		synctest.Wait()
	}
	return bytes.Clone(program)
}
