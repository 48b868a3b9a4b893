package blk_test

import (
	"encoding/binary"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/blk"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

const sector = blk.SectorSize

const (
	typeIn          = 0
	typeOut         = 1
	typeFlush       = 4
	typeGetID       = 8
	typeDiscard     = 11
	typeWriteZeroes = 13

	statusOK     = 0
	statusIOErr  = 1
	statusUnsupp = 2

	unmap = 1

	featureFlush = 1 << 9
	everything   = ^uint64(0)
)

// untouched is what the status byte is before the device writes it.
const untouched = 0xee

// header is that of a request.
func header(kind uint32, at uint64) []byte {
	b := binary.LittleEndian.AppendUint32(nil, kind)
	b = binary.LittleEndian.AppendUint32(b, 0)
	return binary.LittleEndian.AppendUint64(b, at)
}

// span is a range of a discard or of zeros, in sectors.
func span(at uint64, n, flags uint32) []byte {
	b := binary.LittleEndian.AppendUint64(nil, at)
	b = binary.LittleEndian.AppendUint32(b, n)
	return binary.LittleEndian.AppendUint32(b, flags)
}

// pattern is n bytes of which no two sectors are alike.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + i/sector*7 + 1)
	}
	return b
}

// call is what a backend was asked for.
type call struct {
	kind  uint32 // as a request type
	off   int64
	n     int64
	unmap bool
}

// disk is a backend that notes what it is asked for, and blocks or fails on
// demand.
type disk struct {
	memory *blk.Memory
	bytes  []byte // what memory has

	mu    sync.Mutex
	calls []call
	// hook, if not nil, is called first, without mu.
	hook func(call) error
}

func newDisk(sectors int) *disk {
	b := pattern(sectors * sector)
	return &disk{memory: blk.NewMemory(b), bytes: b}
}

func (d *disk) note(c call) error {
	d.mu.Lock()
	d.calls = append(d.calls, c)
	hook := d.hook
	d.mu.Unlock()
	if hook != nil {
		return hook(c)
	}
	return nil
}

// take returns the calls since the last take.
func (d *disk) take() []call {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls = nil
	return calls
}

func total(bufs [][]byte) (n int64) {
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}

func (d *disk) Size() int64 { return d.memory.Size() }

func (d *disk) ReadAt(bufs [][]byte, off int64) error {
	if err := d.note(call{kind: typeIn, off: off, n: total(bufs)}); err != nil {
		return err
	}
	return d.memory.ReadAt(bufs, off)
}

func (d *disk) WriteAt(bufs [][]byte, off int64) error {
	if err := d.note(call{kind: typeOut, off: off, n: total(bufs)}); err != nil {
		return err
	}
	return d.memory.WriteAt(bufs, off)
}

func (d *disk) Flush() error { return d.note(call{kind: typeFlush}) }

func (d *disk) WriteZeroes(off, n int64, unmap bool) error {
	if err := d.note(call{typeWriteZeroes, off, n, unmap}); err != nil {
		return err
	}
	return d.memory.WriteZeroes(off, n, unmap)
}

func (d *disk) Discard(off, n int64) error {
	if err := d.note(call{kind: typeDiscard, off: off, n: n}); err != nil {
		return err
	}
	return d.memory.Discard(off, n)
}

// guest is a driver with a device that is live.
type guest struct {
	*virtiotest.Driver
	disk *disk
	cfg  blk.Config
	dev  *blk.Device
	irq  *virtiotest.Interrupt
	mmio *virtio.MMIO
}

// diskSectors is how long the disk of a guest is.
const diskSectors = 256

// boot runs test in a bubble, with a guest that has accepted all features.
func boot(t *testing.T, cfg blk.Config, test func(t *testing.T, g *guest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := cold(t, cfg)
		g.start(t, everything)
		test(t, g)
	})
}

// cold makes a guest whose driver has not come yet.
func cold(t testing.TB, cfg blk.Config) *guest {
	t.Helper()
	return coldWith(t, cfg, 1<<20)
}

// coldWith is cold with so many bytes of RAM.
func coldWith(t testing.TB, cfg blk.Config, ram int) *guest {
	t.Helper()
	return coldOn(t, cfg, ram, func(d *disk) blk.Backend { return d })
}

// coldOn is coldWith what backend makes of the guest's disk.
func coldOn(t testing.TB, cfg blk.Config, ram int, backend func(*disk) blk.Backend) *guest {
	t.Helper()
	disk := newDisk(diskSectors)
	dev, err := blk.New(cfg, blk.Env{Backend: backend(disk)})
	if err != nil {
		t.Fatal(err)
	}
	mem, irq := virtiotest.NewMemory(ram), virtiotest.NewInterrupt()
	m := virtio.NewMMIO(dev, mem, irq)
	t.Cleanup(m.Reset)
	return &guest{virtiotest.NewDriver(m, mem), disk, cfg, dev, irq, m}
}

func (g *guest) start(t testing.TB, features uint64) {
	t.Helper()
	if err := g.Start(features); err != nil {
		t.Fatalf("%v; %v", err, g.mmio.Failure())
	}
}

// fork makes a child that stays quiet, with a disk of its own. The parent
// stays quiet as well.
func (g *guest) fork(t testing.TB) *guest {
	t.Helper()
	g.mmio.Quiesce()
	disk := newDisk(diskSectors)
	copy(disk.bytes, g.disk.bytes)
	dev, err := blk.Restore(g.cfg, blk.Env{Backend: disk}, g.dev.Save())
	if err != nil {
		t.Fatal(err)
	}
	mem, irq := g.Mem.Fork(), virtiotest.NewInterrupt()
	m, err := virtio.RestoreMMIO(dev, mem, irq, g.mmio.State())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Reset)
	return &guest{g.Fork(m, mem), disk, g.cfg, dev, irq, m}
}

// pending is a request that was made.
type pending struct {
	head   uint16
	status uint64   // where the last writable byte is
	in     []uint64 // where the others are, one by one
}

// add makes a request of bufs available.
func (g *guest) add(queue int, bufs ...virtiotest.Buffer) pending {
	var p pending
	for _, b := range bufs {
		if b.Writable {
			for i := range uint64(b.Len) {
				p.in = append(p.in, b.GPA+i)
			}
		}
	}
	if last := len(p.in) - 1; last >= 0 {
		p.status, p.in = p.in[last], p.in[:last]
		g.Mem.RAM()[p.status] = untouched
	}
	p.head = g.Rings[queue].Add(bufs...)
	return p
}

// request makes a request available in two buffers: what the device reads, and
// room for so many bytes and the status.
func (g *guest) request(queue int, out []byte, in int) pending {
	return g.add(queue, g.Mem.Out(out), g.Mem.In(in+1))
}

// data is what the device wrote before the status.
func (g *guest) data(p pending) []byte {
	var b []byte
	for _, at := range p.in {
		b = append(b, g.Mem.RAM()[at])
	}
	return b
}

// answer returns the status and the length of a request that must have been
// answered, and no other before it.
func (g *guest) answer(t testing.TB, queue int, p pending) (status byte, n uint32) {
	t.Helper()
	u, ok := g.Rings[queue].Take()
	if !ok {
		t.Fatal("request not answered")
	}
	if u.Head != p.head {
		t.Fatalf("answer to request %d, want %d", u.Head, p.head)
	}
	return g.Mem.RAM()[p.status], u.Len
}

// ask makes one request of bufs and returns its status, its length, and the
// data that the device was to write.
func (g *guest) ask(t testing.TB, bufs ...virtiotest.Buffer) (status byte, n uint32, data []byte) {
	t.Helper()
	p := g.add(0, bufs...)
	g.Kick(0)
	synctest.Wait()
	status, n = g.answer(t, 0, p)
	return status, n, g.data(p)
}

// do is ask of a request in two buffers.
func (g *guest) do(t testing.TB, out []byte, in int) (status byte, n uint32, data []byte) {
	t.Helper()
	return g.ask(t, g.Mem.Out(out), g.Mem.In(in+1))
}
