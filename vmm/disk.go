package vmm

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/blk"
	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/snapshot/disk"
)

// MaxDisks is the largest number of disks of a machine.
const MaxDisks = 8

// Disk describes a disk of the guest, which has them as /dev/vda, /dev/vdb and
// so on. What the guest writes to it is the machine's own; it is captured in
// the same instant as memory, shared with the machines that are started from
// the capture, and kept by nothing but a snapshot.
type Disk struct {
	// Name tells disks of a machine apart: 1 to 20 characters of a–z, 0–9 and
	// . _ -. The guest finds it in /sys/block/vda/serial.
	Name string

	// Image is the path of a file that the disk begins as. It is never
	// written, and must not be changed by others while machines use it. Its
	// length is a multiple of 4096 bytes. If empty, the disk begins as zeros.
	Image string

	// Size is the size in bytes, a multiple of 4096, at most 1 TiB. What lies past the end of
	// Image is zeros. Zero means the length of Image.
	Size int64

	// ReadOnly refuses what would change the disk. Such a disk of an Image is
	// that file and nothing else, however many machines have it.
	ReadOnly bool
}

func (c Config) checkDisks() error {
	if len(c.Disks) > MaxDisks {
		return fmt.Errorf("%d of them, at most %d are possible", len(c.Disks), MaxDisks)
	}
	names := map[string]bool{}
	for _, d := range c.Disks {
		if d.Name == "" || len(d.Name) > 20 || strings.Trim(d.Name, "abcdefghijklmnopqrstuvwxyz0123456789._-") != "" || d.Name == "." || d.Name == ".." {
			return fmt.Errorf("name %.30q is not 1 to 20 characters of a–z, 0–9 and . _ -", d.Name)
		}
		if names[d.Name] {
			return fmt.Errorf("two of the name %s", d.Name)
		}
		names[d.Name] = true
		if d.Size < 0 || d.Size%snapshot.PageSize != 0 || d.Size > maxDiskSize {
			return fmt.Errorf("%s: %d bytes is not a multiple of %d up to 1 TiB", d.Name, d.Size, snapshot.PageSize)
		}
	}
	return nil
}

const maxDiskSize = 1 << 40

var (
	_ blk.Trier    = (*disk.Disk)(nil)
	_ blk.Volatile = (*disk.Disk)(nil)
)

// table is what a disk begins with.
func (d Disk) table() (*snapshot.Table, error) {
	if d.Image == "" {
		if d.Size == 0 {
			return nil, fmt.Errorf("%w: neither an image nor a size", ErrConfig)
		}
		return snapshot.NewTable(d.Size), nil
	}
	f, err := os.OpenFile(d.Image, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe in its place is refused, not waited for
	if err != nil {
		return nil, err
	}
	size, err := imageSize(f)
	if err == nil && d.Size != 0 && d.Size < size {
		err = fmt.Errorf("%w: image of %d bytes for a disk of %d", ErrConfig, size, d.Size)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	layer, err := snapshot.NewLayer(f, size)
	if err != nil {
		f.Close()
		return nil, err
	}
	defer layer.Release()
	zeros := snapshot.NewTable(max(size, d.Size))
	defer zeros.Release()
	return zeros.Overlay(dataOf(layer, f))
}

// maxImageRuns bounds how much is known of where an image has holes.
const maxImageRuns = 4096

// dataOf is the parts of an image that are not holes, as the file system says.
func dataOf(layer *snapshot.Layer, f *os.File) []snapshot.Extent {
	var out []snapshot.Extent
	size := layer.Size()
	for at := int64(0); at < size; {
		start, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return out // zeros up to the end
		}
		end, err2 := f.Seek(max(start, 0), unix.SEEK_HOLE)
		if err != nil || err2 != nil || len(out) == maxImageRuns {
			return append(out, snapshot.Extent{Start: at, Length: size - at, Layer: layer, Offset: at})
		}
		start = max(at, start/snapshot.PageSize*snapshot.PageSize)
		end = min(size, (end+snapshot.PageSize-1)/snapshot.PageSize*snapshot.PageSize)
		if start < end {
			out = append(out, snapshot.Extent{Start: start, Length: end - start, Layer: layer, Offset: start})
		}
		at = end
	}
	return out
}

func imageSize(f *os.File) (int64, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("%w: image %s is not a regular file", ErrConfig, f.Name())
	case info.Size() == 0 || info.Size()%snapshot.PageSize != 0 || info.Size() > maxDiskSize:
		return 0, fmt.Errorf("%w: image %s: %d bytes is not a multiple of %d up to 1 TiB",
			ErrConfig, f.Name(), info.Size(), snapshot.PageSize)
	}
	return info.Size(), nil
}

// tables are what the disks of one machine hold at one instant. Whoever has
// them releases them.
type tables []*snapshot.Table

func openDisks(disks []Disk) (tables, error) {
	var all tables
	for _, d := range disks {
		t, err := d.table()
		if err != nil {
			all.release()
			return nil, fmt.Errorf("vmm: disk %s: %w", d.Name, err)
		}
		all = append(all, t)
	}
	return all, nil
}

func (t tables) retain() tables {
	for _, t := range t {
		t.Retain()
	}
	return t
}

func (t tables) release() {
	for _, t := range t {
		t.Release()
	}
}

// disks are the disks of a machine.
type disks struct {
	birth tables // what they began with, and go back to by a reset
	now   []*disk.Disk
}

// newDisks makes disks that begin as birth says, which it takes over.
func newDisks(birth tables, dir string) disks {
	d := disks{birth: birth}
	d.renew(dir)
	return d
}

// renew forgets what was written. No device uses the disks.
func (d *disks) renew(dir string) {
	for _, k := range d.now {
		k.Close()
	}
	d.now = nil
	for _, t := range d.birth {
		d.now = append(d.now, disk.New(t, disk.Options{Dir: dir}))
	}
}

func (d *disks) close() {
	for _, k := range d.now {
		k.Close()
	}
	d.birth.release()
	d.birth, d.now = nil, nil
}

// frozen are the disks of a machine that stood still.
type frozen []*disk.Frozen

func (d *disks) freeze() (frozen, error) {
	var all frozen
	for _, k := range d.now {
		f, err := k.Freeze()
		if err != nil {
			all.close()
			return nil, fmt.Errorf("vmm: %w", err)
		}
		all = append(all, f)
	}
	return all, nil
}

func (f frozen) tables() (tables, error) {
	var all tables
	for _, d := range f {
		t, err := d.Table()
		if err != nil {
			all.release()
			return nil, fmt.Errorf("vmm: %w", err)
		}
		all = append(all, t)
	}
	return all, nil
}

func (f frozen) close() {
	for _, d := range f {
		d.Close()
	}
}

// diskState is the state of a disk's device.
type diskState struct {
	Virtio virtio.MMIOState
	Block  blk.State
}

// newBlk makes the device of disk i, cold or, if st is not nil, warm.
func (e boardEnv) newBlk(i int, st *diskState) (*blk.Device, error) {
	d := e.cfg.Disks[i]
	cfg := blk.Config{ID: d.Name, ReadOnly: d.ReadOnly, Queues: e.cfg.VCPUs}
	env := blk.Env{Backend: e.disks[i]}
	if st == nil {
		return blk.New(cfg, env)
	}
	return blk.Restore(cfg, env, st.Block)
}

// DiskUsage is what one disk of a machine takes.
type DiskUsage struct {
	Name string
	Size int64 // bytes that the guest sees
	// Own is the number of bytes that the machine has written since it was
	// started or last captured, and nobody shares.
	Own int64
	// Shared is the number of bytes of layers below, which others may use.
	Shared int64
}

// renewDisks has the disks begin again. The caller has the turn, and the devices
// are closed.
func (vm *VM) renewDisks() {
	vm.disksMu.Lock()
	defer vm.disksMu.Unlock()
	vm.disks.renew(vm.cfg.Scratch)
}

// Disks says what the disks take, in their order. It waits for nothing that is
// done to the machine. Of one that is closed it says nothing.
func (vm *VM) Disks() ([]DiskUsage, error) {
	vm.disksMu.RLock()
	defer vm.disksMu.RUnlock()
	var all []DiskUsage
	for i, d := range vm.disks.now {
		own, shared, err := d.Usage()
		if err != nil {
			return nil, fmt.Errorf("vmm: %w", err)
		}
		all = append(all, DiskUsage{vm.cfg.Disks[i].Name, d.Size(), own, shared})
	}
	return all, nil
}
