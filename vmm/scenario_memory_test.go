package vmm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/snapshot"
)

// populated is where a memory may hold anything but zeros.
func populated(t *testing.T, m *memory) []run {
	t.Helper()
	private, err := privatePages(m.ram)
	if err != nil {
		t.Fatal(err)
	}
	return union(private, runsOf(m.table))
}

// sameMemory compares two machines that stand still byte by byte, but for what
// a machine gets of its own. It touches no page of which both have zeros.
func sameMemory(t *testing.T, a, b *VM) {
	t.Helper()
	for _, r := range union(populated(t, a.mem), populated(t, b.mem)) {
		for at := r.start; at < r.end; at += pageSize {
			if at == vmgenidAddr&^(pageSize-1) {
				continue
			}
			if !bytes.Equal(a.mem.ram[at:at+pageSize], b.mem.ram[at:at+pageSize]) {
				t.Fatalf("page %#x of RAM differs", at)
			}
		}
	}
}

// stillChild is a child of a paused machine that has not run.
func stillChild(t *testing.T, vm *VM) *VM {
	t.Helper()
	if err := vm.mem.write(haltAddr, guestHalt); err != nil {
		t.Fatal(err)
	}
	image := captureOf(t, vm)
	regs := &image.state.kvm.VCPUs[0].Regs
	regs.RIP, regs.RFLAGS = haltAddr, 2
	return startFrom(t, image, StartOptions{})
}

// haltAddr is where guestHalt is put.
const haltAddr = 0x330000

// countAbove4GiB has a paused guestCounter count in the memory above the gap,
// at the address returned.
func countAbove4GiB(t *testing.T, vm *VM) uint64 {
	t.Helper()
	const pd, counter = 0x340000, gapEnd + 0x5008
	setWord(t, vm, pageTableAddr+pageSize+8*(gapEnd>>30), pd|pagePresent|pageWrite)
	for i := range uint64(512) {
		setWord(t, vm, pd+8*i, gapEnd+i<<21|pagePresent|pageWrite|pageHuge)
	}
	onVCPU(t, vm, 0, func(c *kvm.VCPU) error {
		r, err := c.Regs()
		r.RDI = counter
		return errors.Join(err, c.SetRegs(&r))
	})
	return counter
}

// TestScenarioM20M23TwoSlots has machines of 3.5 and 5 GiB, whose RAM is in two
// pieces, written here and there: at the ends of both and next to the gap, and
// with long clean stretches in between and at the end. Forks, forks of forks
// and snapshots have the same bytes, and their guests go on above 4 GiB.
func TestScenarioM20M23TwoSlots(t *testing.T) {
	for _, size := range []int64{3<<30 + 512<<20, 5 << 30} {
		t.Run(fmt.Sprint(size>>20, "MiB"), func(t *testing.T) {
			vm := startMicro(t, guestCounter, func(c *Config) { c.Memory = size })
			awaitCounter(t, vm, 1)
			pause(t, vm)
			high := countAbove4GiB(t, vm)
			rng := rand.New(rand.NewSource(size))
			scribble := func(gpa uint64) {
				p, err := vm.mem.Slice(gpa, pageSize)
				if err != nil {
					t.Fatal(err)
				}
				rng.Read(p)
			}
			for generation := range 3 {
				scribble(64 << 20)
				switch generation {
				case 0: // all ends
					scribble(gapStart - pageSize)
					scribble(gapEnd)
					scribble(gapEnd + uint64(size) - gapStart - pageSize)
				case 1: // nothing above the gap
					scribble(gapStart - 2*pageSize)
				case 2: // nothing below it but one page
					scribble(gapEnd + 200<<20)
				}
				child := stillChild(t, vm)
				pause(t, child)
				sameMemory(t, vm, child)
				grown := forks(t, vm, 1)[0]
				at := word(t, vm, high)
				awaitMemory(t, grown, func() bool { return word(t, grown, high) > at })
				pause(t, grown)
				vm = grown
			}
			store := openStore(t, t.TempDir())
			info, err := vm.Snapshot(t.Context(), store, SnapshotOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if info.Stored > 64<<20 {
				t.Errorf("a snapshot of a few pages takes %d MiB", info.Stored>>20)
			}
			at := word(t, vm, high)
			restored, err := Restore(t.Context(), store, info.ID, StartOptions{})
			if host, hostErr := hostNeeds(""); hostErr == nil && host.Memory < size && errors.Is(err, snapshot.ErrIncompatible) {
				return // this host says that it has less memory, whatever the guest uses
			}
			if err != nil {
				t.Fatal(err)
			}
			defer closeVM(t, restored)
			awaitMemory(t, restored, func() bool { return word(t, restored, high) > at })
			pause(t, restored)
			// All but what the guest went on with.
			setWord(t, restored, high, at)
			sameMemory(t, vm, restored)
		})
	}
}

// TestScenarioB12ChainOfCapturesAgainstACopy captures a machine again and again
// while its guest, a device and the host write to its memory, and compares each
// capture with a copy of all of it.
func TestScenarioB12ChainOfCapturesAgainstACopy(t *testing.T) {
	vm := startMicro(t, guestSweep)
	awaitCounter(t, vm, 1)
	d := handDriver{t, vm, slotRNG}
	d.start(0)
	rng := rand.New(rand.NewSource(7))
	for nth := range 8 {
		d.offer(0, nth, 64)
		awaitCounter(t, vm, counter(t, vm))
		pause(t, vm)
		for range nth {
			vm.mem.ram[32<<20+rng.Intn(16<<20)] = byte(rng.Int())
		}
		whole := bytes.Clone(vm.mem.ram)
		image := captureOf(t, vm)
		resume(t, vm)
		awaitCounter(t, vm, counter(t, vm)) // the parent writes on
		table, _, err := image.retain()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mapped(t, table).ram, whole) {
			t.Errorf("capture %d is not what was in memory", nth)
		}
		table.Release()
	}
}

// TestScenarioB17ParentWritesDoNotReachTheCapture captures a guest that writes
// without pause, with the host writing beside it. What is captured is of one
// instant, and stays.
func TestScenarioB17ParentWritesDoNotReachTheCapture(t *testing.T) {
	const hostWrites = 48 << 20
	vm := startMicro(t, guestSweep)
	awaitCounter(t, vm, 1)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() { // as a device would, while the machine runs or not
		for i := uint64(0); !stop.Load(); i++ {
			p, _ := vm.mem.Slice(hostWrites+i%1024*pageSize, 8)
			p[0]++
		}
	})
	defer wg.Wait()
	defer stop.Store(true)
	for range 8 {
		image := captureOf(t, vm)
		table, _, err := image.retain()
		if err != nil {
			t.Fatal(err)
		}
		frozen := mapped(t, table)
		written := func(m *memory) []byte { // by guest and host
			return append(bytes.Clone(m.ram[sweepAddr:sweepAddr+sweepPages*pageSize]), m.ram[hostWrites:hostWrites+1024*pageSize]...)
		}
		before := written(frozen)
		if page, bad := torn(func(gpa uint64) uint64 { return wordOf(t, frozen, gpa) }); bad {
			t.Errorf("page %d is of another instant", page)
		}
		child := startFrom(t, image, StartOptions{})
		awaitRun(t, vm)
		if !bytes.Equal(written(mapped(t, table)), before) {
			t.Error("the capture changed after it was taken")
		}
		pause(t, child)
		if page, bad := torn(func(gpa uint64) uint64 { return word(t, child, gpa) }); bad {
			t.Errorf("in the child page %d is of another instant", page)
		}
		closeVM(t, child)
		table.Release()
		image.Close()
	}
}

// TestScenarioB15LayersCannotChange tries to write to and to cut off what
// machines have mapped, in memory and in files.
func TestScenarioB15LayersCannotChange(t *testing.T) {
	vm := startMicro(t, guestSweep)
	awaitCounter(t, vm, 1)
	store := openStore(t, t.TempDir())
	info, err := vm.Snapshot(t.Context(), store, SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	restored, err := Restore(t.Context(), store, info.ID, StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeVM(t, restored)
	tried := 0
	for name, m := range map[string]*VM{"forked": forks(t, vm, 1)[0], "restored": restored} {
		for _, e := range m.mem.table.Extents() {
			fd := e.Layer.FD()
			if n, err := unix.Pwrite(fd, []byte{1}, e.Offset); err == nil {
				t.Errorf("%s: wrote %d bytes to a layer", name, n)
			}
			if err := unix.Ftruncate(fd, 0); err == nil {
				t.Fatalf("%s: cut a layer off", name)
			}
			if _, err := unix.Mmap(fd, e.Offset, pageSize, unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
				t.Errorf("%s: mapped a layer for writing", name)
			}
			tried++
		}
	}
	if tried == 0 {
		t.Error("no layer was tried")
	}
}

// TestScenarioB16MemoryIsCountedOnce starts machines from one capture of a
// guest with 8 MiB. Only what they write is added.
func TestScenarioB16MemoryIsCountedOnce(t *testing.T) {
	vm := startMicro(t, guestSweep)
	awaitCounter(t, vm, 1)
	pause(t, vm)
	stillChild(t, vm) // so that guestHalt is there
	image := captureOf(t, vm)
	image.state.kvm.VCPUs[0].Regs.RIP = haltAddr
	const n = 20
	before := residentMemory(t)
	for range n {
		child := startFrom(t, image, StartOptions{})
		for i := range uint64(sweepPages) { // every page is looked at
			_ = word(t, child, sweepAddr+i*pageSize)
		}
	}
	after := residentMemory(t)
	if added := (after["RssAnon"] - before["RssAnon"]) / n; added > 1<<20 {
		t.Errorf("a child that writes nothing adds %d KiB", added>>10)
	}
}

// TestScenarioB16ForkPastTheBudgetIsRefused leaves room for one machine's
// mappings and asks for two machines.
func TestScenarioB16ForkPastTheBudgetIsRefused(t *testing.T) {
	vm := startMicro(t, guestCounter, withoutSpare)
	awaitCounter(t, vm, 1)
	forkAndClose(t, vm, 1)
	for _, b := range []*budget{mappings, threads} {
		if err := WaitFreed(t.Context()); err != nil {
			t.Fatal(err)
		}
		limit := b.limit
		b.limit = b.used.Load() + 1
		children, err := vm.Fork(t.Context(), 2)
		b.limit = limit
		if !errors.Is(err, ErrTooMany) || children != nil {
			t.Errorf("%s: %v, want ErrTooMany", b.what, err)
		}
		awaitCounter(t, vm, counter(t, vm))
	}
	forkAndClose(t, vm, 2)
}

// residentMemory is what /proc/self/status says of memory, in bytes.
func residentMemory(t testing.TB) map[string]int64 {
	t.Helper()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]int64)
	for _, name := range []string{"RssAnon", "RssFile", "RssShmem", "VmPTE"} {
		i := bytes.Index(status, []byte("\n"+name+":"))
		var kib int64
		if i < 0 {
			t.Fatalf("no %s in /proc/self/status", name)
		}
		if _, err := fmt.Sscan(string(status[i+len(name)+2:]), &kib); err != nil {
			t.Fatal(err)
		}
		m[name] = kib << 10
	}
	return m
}

// scribble writes n bytes of a machine's memory that no two calls write alike.
func scribble(t testing.TB, vm *VM, n int) {
	t.Helper()
	p, err := vm.mem.Slice(16<<20, uint64(n))
	if err != nil {
		t.Fatal(err)
	}
	pause(t, vm)
	defer resume(t, vm)
	rand.New(rand.NewSource(time.Now().UnixNano())).Read(p)
}

// TestScenarioP11NothingIsKept forks and captures a machine a hundred times. As
// much is mapped, open and resident afterwards as before.
func TestScenarioP11NothingIsKept(t *testing.T) {
	vm := startMicro(t, guestCounter)
	store := openStore(t, t.TempDir())
	const written = 2 << 20 // between two captures
	cycle := func() {
		scribble(t, vm, written)
		image, err := vm.Capture(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// Holes of the guest are not filled by looking at them.
		table, _, err := image.retain()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range table.Extents() {
			var st unix.Stat_t
			if err := unix.Fstat(e.Layer.FD(), &st); err != nil {
				t.Fatal(err)
			}
			if got := st.Blocks * 512; got > 4*written {
				t.Errorf("a layer of %d KiB, %d KiB were written", got>>10, written>>10)
			}
		}
		table.Release()
		image.Close()
		scribble(t, vm, written)
		forkAndClose(t, vm, 1)
	}
	snapshot := func() {
		scribble(t, vm, written)
		info, err := vm.Snapshot(t.Context(), store, SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Delete(t.Context(), info.ID); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		cycle()
		snapshot()
	}
	before, resident := holdings(t, vm), residentMemory(t)
	rounds(t, 100, 50, func(int) { cycle() })
	for range 10 {
		snapshot()
	}
	sameHoldings(t, before, vm)
	const slack = 10 * written // the least number of rounds leaves ten times as much
	for kind, now := range residentMemory(t) {
		if now > resident[kind]+slack {
			t.Errorf("%s: %d KiB before, %d KiB after", kind, resident[kind]>>10, now>>10)
		}
	}
}

// TestScenarioB13CapturesHoldTheirTime takes captures back to back, and stores
// each. The last take as long as the first.
func TestScenarioB13CapturesHoldTheirTime(t *testing.T) {
	vm := startMicro(t, guestCounter)
	store := openStore(t, t.TempDir())
	const n = 24
	var took [n]time.Duration
	for i := range took {
		scribble(t, vm, 1<<20)
		begin := time.Now()
		if _, err := vm.Snapshot(t.Context(), store, SnapshotOptions{}); err != nil {
			t.Fatal(err)
		}
		took[i] = time.Since(begin)
	}
	early, late := median(took[:n/3]), median(took[n-n/3:])
	t.Logf("first %v, last %v", early, late)
	if late > 3*early+50*time.Millisecond {
		t.Errorf("%v at first, %v at last: %v", early, late, took)
	}
}
