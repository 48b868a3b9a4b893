package devtest

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// hostileRAM is little, so that programs hit what they aim at.
const hostileRAM = 192 << 10

// maxSteps is how much of a program is run: enough to get anywhere, few enough
// for thousands of programs.
const maxSteps = 400

// testHostile runs random programs against the device. None may make it panic
// or hang, and after a reset it serves as ever.
func testHostile[D virtio.Device, S any](t *testing.T, v *Virtio[D, S]) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		program := make([]byte, 2000)
		for i := range program {
			program[i] = byte(random.Uint32())
		}
		synctest.Test(t, func(t *testing.T) { v.runHostile(t, program) })
	}
}

// FuzzVirtio is a fuzz target that plays a hostile driver: a byte string
// interpreted as accesses to registers, rings and memory.
func FuzzVirtio[D virtio.Device, S any](f *testing.F, v Virtio[D, S]) {
	for _, p := range programs(v.Request.Queue) {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		synctest.Test(t, func(t *testing.T) { v.runHostile(t, program) })
	})
}

// runHostile interprets a program and has the device reset and put to proper
// use afterwards.
func (v *Virtio[D, S]) runHostile(t testing.TB, program []byte) {
	h := &villain[D, S]{machine: v.machine(t, hostileRAM), program: program}
	for range maxSteps {
		if len(h.program) == 0 {
			break
		}
		h.step(t)
	}
	m := h.machine
	m.mmio.Resume()
	m.mmio.Reset()
	w := m.watch()
	w.check(t)
	clear(m.mem.RAM())
	m.mem.FreeAll()
	m.start(t, everything)
	m.request(t)
	m.mmio.Reset()
}

// villain is a driver that runs a program.
type villain[D virtio.Device, S any] struct {
	*machine[D, S]
	program []byte
}

// take removes n bytes from the program; there are zeros behind its end.
func (h *villain[D, S]) take(n int) []byte {
	b := make([]byte, n)
	h.program = h.program[copy(b, h.program):]
	return b
}

func (h *villain[D, S]) byte() byte     { return h.take(1)[0] }
func (h *villain[D, S]) uint16() uint16 { return binary.LittleEndian.Uint16(h.take(2)) }

// gpa is an address: mostly in the part of RAM where the rings are, at times
// anywhere.
func (h *villain[D, S]) gpa() uint64 {
	a := uint64(h.uint16())
	switch {
	case a >= 0xfff0:
		return ^uint64(0) - a&15
	case a >= 0xff00:
		return uint64(h.mem.Size()) - a&0xff
	}
	return a
}

// Steps of a program.
const (
	opWriteRegister = iota
	opReadRegister
	opScribble
	opStart
	opDescriptor
	opOffer
	opAvailIdx
	opNotify
	opRequest
	opQuiesce
	opResume
	opRestore
	opReset
	opConfigChanged
	opHost
	opWait
	ops
)

func (h *villain[D, S]) step(t testing.TB) {
	op := h.byte() % ops
	switch op {
	case opDescriptor, opOffer, opRequest:
		h.settle() // to write what the device may be reading is for opScribble
	}
	switch op {
	case opWriteRegister:
		h.mmio.Write(uint64(h.uint16()%0x210), h.take(int(h.byte())%9))
	case opReadRegister:
		h.mmio.Read(uint64(h.uint16()%0x210), make([]byte, h.byte()%9))
	case opScribble:
		h.mem.Scribble(h.gpa(), h.take(int(h.byte())%64))
	case opStart:
		h.restart()
	case opDescriptor:
		h.descriptor()
	case opOffer:
		if r := h.anyRing(); r != nil {
			r.Offer(h.uint16() % 70)
		}
	case opAvailIdx:
		if r := h.anyRing(); r != nil {
			r.SetAvailIdx(h.uint16())
		}
	case opNotify:
		h.drv.Notify(int(h.byte()) % 5)
	case opRequest:
		h.honest()
	case opQuiesce:
		h.mmio.Quiesce()
	case opResume:
		h.mmio.Resume()
	case opRestore:
		h.reborn(t)
	case opReset:
		h.mmio.Reset()
	case opConfigChanged:
		h.mmio.ConfigChanged()
	case opHost:
		if h.v.Host != nil {
			h.v.Host(t, h.dev)
		}
	case opWait:
		// Lets timers of the device run as well.
		time.Sleep(time.Duration(h.byte()) * time.Second)
		h.settle()
	}
}

// restart brings the device up, with one queue or all, so that what follows
// reaches it. A device may refuse to do without a queue.
func (h *villain[D, S]) restart() {
	how := h.byte()
	h.mem.FreeAll()
	features := uint64(everything)
	if how&1 != 0 {
		features &^= virtio.FeatureEventIdx
	}
	if how&2 != 0 {
		features &^= virtio.FeatureIndirectDesc
	}
	if how&4 != 0 {
		h.drv.Start(features, int(how>>4))
		return
	}
	if h.drv.Start(features) == nil && h.v.Prime != nil && how&8 != 0 {
		h.v.Prime(h.drv)
	}
}

// descriptor puts one anywhere in a descriptor table. Chance alone would
// hardly ever get one right.
func (h *villain[D, S]) descriptor() {
	r := h.anyRing()
	if r == nil {
		return
	}
	i := h.uint16() % r.Size()
	r.SetDesc(i, virtiotest.Desc{
		Addr: h.gpa(), Len: uint32(h.uint16()) << (h.byte() % 17), Flags: uint16(h.byte()), Next: uint16(h.byte()),
	})
}

func (h *villain[D, S]) anyRing() *virtiotest.Ring {
	i := int(h.byte())
	if len(h.drv.Rings) == 0 {
		return nil
	}
	return h.drv.Rings[i%len(h.drv.Rings)]
}

// honest makes a real request, or one whose bytes are the program's.
func (h *villain[D, S]) honest() {
	forge, size := h.byte()%2 == 1, int(h.byte())
	if h.v.Request.Queue >= len(h.drv.Rings) || h.ring() == nil || h.ring().Free() < 2 || h.mem.Free() < 1<<16 {
		return
	}
	if !forge {
		h.offer()
	} else {
		h.ring().Add(h.mem.Out(h.take(size+1)), h.mem.In(size+1))
	}
	h.drv.Notify(h.v.Request.Queue)
}

// reborn goes on in a child. Whatever state a driver brings a machine into,
// it can be restored.
func (h *villain[D, S]) reborn(t testing.TB) {
	old := h.machine
	h.machine = old.capture(t).restore(t)
	h.mmio.Resume()
	old.mmio.Reset()
}

// programs are seeds that get somewhere.
func programs(queue int) [][]byte {
	q := byte(queue)
	start := []byte{opStart, 0}
	request := []byte{opRequest, 0, 0, opWait, 0}
	join := func(parts ...[]byte) (p []byte) {
		for _, part := range parts {
			p = append(p, part...)
		}
		return p
	}
	return [][]byte{
		join(start, request, request),
		join([]byte{opStart, 8}, []byte{opHost}, request),
		join([]byte{opStart, 3}, request, []byte{opQuiesce}, request, []byte{opRestore}, request),
		join(start, []byte{opRequest, 1, 43}, make([]byte, 44), request),
		join(start, []byte{opAvailIdx, q, 200, 0, opNotify, q, opRestore}, request),
		join(start, []byte{opDescriptor, q, 0, 0, 0, 0x10, 16, 0, 0, 1, 0, opOffer, q, 0, 0, opNotify, q}),
		join(start, []byte{opDescriptor, q, 0, 0, 0, 0x10, 0xff, 0, 4, 2, 0, opOffer, q, 0, 0, opNotify, q, opReset}, start, request),
		join([]byte{opWriteRegister, 0x70, 0, 4, 15, 0, 0, 0, opReadRegister, 0x00, 1, 8}, start),
		join(start, []byte{opWriteRegister, 0x44, 0, 4, 0, 0, 0, 0}, request),
		join(start, []byte{opScribble, 0, 0x10, 16}, make([]byte, 16), request),
	}
}
