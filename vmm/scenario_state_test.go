package vmm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/snapshot"
)

// The XSAVE area in the format that KVM uses: Intel SDM volume 1, 13.4.
const (
	xsaveXMM    = 160 // XMM0, 16 bytes each
	xsaveHeader = 512 // XSTATE_BV first
	xsaveYMM    = 576 // upper half of YMM0, 16 bytes each
	xsaveAVX    = 7   // XSTATE_BV: x87, SSE, AVX

	cr4OSFXSR, cr4OSXMMEXCPT, cr4OSXSAVE = 1 << 9, 1 << 10, 1 << 18
)

const avxAddr, avxOut = 0x320000, 0x311000

// guestAVX stores YMM7 to avxOut and counts, for ever.
var guestAVX = []byte{
	0xc5, 0xfe, 0x7f, 0x3c, 0x25, 0x00, 0x10, 0x31, 0x00, // vmovdqu [avxOut], ymm7
	0x48, 0xff, 0x04, 0x25, 0x00, 0x00, 0x30, 0x00, // inc qword [counterAddr]
	0xeb, 0xed, // jmp back
}

// enterAVX has a paused machine go on with guestAVX at privilege level 3, with
// pattern in YMM7.
func enterAVX(t *testing.T, vm *VM, pattern []byte) {
	t.Helper()
	if err := vm.mem.write(avxAddr, guestAVX); err != nil {
		t.Fatal(err)
	}
	const user = 1 << 2
	for i := range uint64(512) {
		setWord(t, vm, pageTableAddr+2*pageSize+8*i, i<<21|pagePresent|pageWrite|pageHuge|user)
	}
	setWord(t, vm, pageTableAddr, pageTableAddr+pageSize|pagePresent|pageWrite|user)
	setWord(t, vm, pageTableAddr+pageSize, pageTableAddr+2*pageSize|pagePresent|pageWrite|user)
	onVCPU(t, vm, 0, func(c *kvm.VCPU) error {
		s, err := c.Sregs()
		if err != nil {
			return err
		}
		s.CR4 |= cr4OSFXSR | cr4OSXMMEXCPT | cr4OSXSAVE
		for _, seg := range []*kvm.Segment{&s.CS, &s.SS} {
			seg.DPL, seg.Selector = 3, seg.Selector|3
		}
		x, err := c.XSAVE2(vm.shell.xsaveSize)
		if err != nil {
			return err
		}
		copy(x[xsaveXMM+7*16:], pattern[:16])
		copy(x[xsaveYMM+7*16:], pattern[16:])
		binary.LittleEndian.PutUint64(x[xsaveHeader:], binary.LittleEndian.Uint64(x[xsaveHeader:])|xsaveAVX)
		xcrs := kvm.XCRs{NrXCRs: 1}
		xcrs.XCRs[0].Value = xsaveAVX
		return errors.Join(c.SetSregs(&s), c.SetXCRs(&xcrs), c.SetXSAVE2(x), c.SetRegs(&kvm.Regs{RIP: avxAddr, RFLAGS: 2}))
	})
}

// TestScenarioM10ExtendedRegisters has a guest hold a pattern in a YMM
// register, at a time at which it is nowhere else.
func TestScenarioM10ExtendedRegisters(t *testing.T) {
	vm := startMicro(t, guestCounter)
	awaitCounter(t, vm, 1)
	pattern := make([]byte, 32)
	for i := range pattern {
		pattern[i] = byte(0xa0 + i)
	}
	pause(t, vm)
	enterAVX(t, vm, pattern)
	out := func(vm *VM) []byte {
		p, err := vm.mem.Slice(avxOut, 32)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for generation := range 4 {
		clear(out(vm))
		at := counter(t, vm)
		image := captureOf(t, vm)
		x := image.state.kvm.VCPUs[0].XSAVE
		if !bytes.Equal(x[xsaveXMM+7*16:][:16], pattern[:16]) || !bytes.Equal(x[xsaveYMM+7*16:][:16], pattern[16:]) {
			t.Errorf("generation %d: saved XMM7 % x, upper half % x", generation, x[xsaveXMM+7*16:][:16], x[xsaveYMM+7*16:][:16])
		}
		child := startFrom(t, image, StartOptions{})
		awaitCounter(t, child, at)
		pause(t, child)
		if !bytes.Equal(out(child), pattern) {
			t.Fatalf("generation %d: the guest finds % x in YMM7", generation, out(child))
		}
		vm = child
	}
}

// TestScenarioM12OtherXSAVESizeIsRefused restores areas that are not of the
// size that this host's KVM reads and writes.
func TestScenarioM12OtherXSAVESizeIsRefused(t *testing.T) {
	vm := startMicro(t, guestCounter, func(c *Config) { c.VCPUs = 2 })
	awaitCounter(t, vm, 1)
	image := captureOf(t, vm)
	for id := range 2 {
		good := image.state.kvm.VCPUs[id].XSAVE
		if n, err := vm.shell.vm.CheckExtension(kvm.CapXSAVE2); err != nil || len(good) != n {
			t.Errorf("vCPU %d: an area of %d bytes, KVM_CAP_XSAVE2 is %d, %v", id, len(good), n, err)
		}
		for _, bad := range [][]byte{nil, good[:len(good)-64], make([]byte, len(good)+4096)} {
			image.state.kvm.VCPUs[id].XSAVE = bad
			child, err := image.Start(t.Context(), StartOptions{})
			if child != nil || err == nil || !strings.Contains(err.Error(), "XSAVE") {
				t.Errorf("vCPU %d: area of %d bytes for %d: %v", id, len(bad), len(good), err)
			}
		}
		image.state.kvm.VCPUs[id].XSAVE = good
	}
	startFrom(t, image, StartOptions{})

	// A snapshot of another host, whose area is larger.
	store := openStore(t, t.TempDir())
	first := &image.state.kvm.VCPUs[0]
	first.XSAVE = append(slices.Clone(first.XSAVE), make([]byte, 8192)...)
	info, err := image.Save(t.Context(), store, SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if child, err := Restore(t.Context(), store, info.ID, StartOptions{}); child != nil || !errors.Is(err, snapshot.ErrIncompatible) {
		t.Errorf("Restore: %v, want ErrIncompatible", err)
	}
}

// TestScenarioM13NoAMXWithoutPermission checks that no guest is shown tile
// registers. A process has to ask for them before it makes a VM, kernels
// without that answer EINVAL, and their state is larger than what is saved.
func TestScenarioM13NoAMXWithoutPermission(t *testing.T) {
	vm := startMicro(t, guestCounter)
	const tiles = 3 << 17 // XTILECFG, XTILEDATA
	for _, e := range vm.shell.cpuid {
		if e.Function == leafXSAVE && e.Index == 0 {
			if e.EAX&tiles != 0 {
				t.Errorf("the guest may enable tiles: XCR0 %#x", e.EAX)
			}
			if int(e.ECX) > vm.shell.xsaveSize {
				t.Errorf("the guest's state is up to %d bytes, %d are saved", e.ECX, vm.shell.xsaveSize)
			}
		}
		if e.Function == leafXSAVE && (e.Index == 17 || e.Index == 18) {
			t.Errorf("the guest is told of tiles: %+v", e)
		}
	}
	// Neither do they come by the back door of a state that enables them.
	image := captureOf(t, vm)
	image.state.kvm.VCPUs[0].XCRs.XCRs[0].Value |= tiles
	if child, err := image.Start(t.Context(), StartOptions{}); child != nil || err == nil {
		t.Errorf("XCR0 with tiles is restored: %v", err)
	}
}

// TestScenarioM25AllThreeChips gives every interrupt controller a state of its
// own and compares all of them in a child and in a grandchild.
func TestScenarioM25AllThreeChips(t *testing.T) {
	vm := startMicro(t, guestCounter) // with interrupts off
	awaitCounter(t, vm, 1)
	pause(t, vm)
	want := make(map[uint32]kvm.IRQChip)
	for _, id := range []uint32{kvm.PICMaster, kvm.PICSlave, kvm.IOAPIC} {
		chip, err := vm.shell.vm.IRQChip(id)
		if err != nil {
			t.Fatal(err)
		}
		var state any
		if id == kvm.IOAPIC {
			s := chip.IOAPIC()
			for pin := range s.RedirTbl {
				const masked, level = 1 << 16, 1 << 15
				s.RedirTbl[pin] = uint64(0x30+pin) | masked | uint64(pin%2)*level
			}
			s.IORegSel, s.ID = 0x12, 3
			state = s
		} else {
			s := chip.PIC()
			s.IRQBase, s.IMR, s.AutoEOI, s.ReadRegSelect = uint8(0x40+8*id), 0xa5+uint8(id), uint8(id), 1
			s.SpecialMask, s.Init4, s.ELCR = 1, 1, s.ELCRMask&0x28
			state = s
		}
		if _, err := binary.Encode(chip.Chip[:], binary.LittleEndian, state); err != nil {
			t.Fatal(err)
		}
		if err := vm.shell.vm.SetIRQChip(chip); err != nil {
			t.Fatal(err)
		}
		want[id] = chip
	}
	for range 2 {
		vm = forks(t, vm, 1)[0]
		pause(t, vm)
		for id, w := range want {
			got, err := vm.shell.vm.IRQChip(id)
			if err != nil {
				t.Fatal(err)
			}
			// But for the edge that tells the guest of its new identity.
			var diff string
			if id == kvm.IOAPIC {
				w, g := withoutPadding(w.IOAPIC()), withoutPadding(got.IOAPIC())
				g.IRR &^= 1 << vmgenidGSI
				diff = cmp.Diff(w, g)
			} else {
				g := got.PIC()
				g.IRR &^= uint8(uint(identityIRR) >> (8 * id))
				diff = cmp.Diff(w.PIC(), g)
			}
			if diff != "" {
				t.Errorf("controller %d differs (-parent +child):\n%s", id, diff)
			}
		}
	}
}

// identityIRR is where both 8259s request the interrupt of the VMGenID: the
// slave's inputs from bit 8 on, and that by which it hangs on the master.
const identityIRR = 1<<vmgenidGSI | 1<<2

// withoutPadding is what of an IOAPIC can be compared.
func withoutPadding(s kvm.IOAPICState) (plain struct {
	BaseAddress       uint64
	IORegSel, ID, IRR uint32
	RedirTbl          [24]uint64
}) {
	plain.BaseAddress, plain.IORegSel, plain.ID, plain.IRR, plain.RedirTbl = s.BaseAddress, s.IORegSel, s.ID, s.IRR, s.RedirTbl
	return plain
}
