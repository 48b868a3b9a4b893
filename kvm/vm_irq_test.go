package kvm_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
)

// interruptible builds a guest with interrupt controllers that enables
// interrupts and halts; each of the given vectors has a handler that writes the
// vector to port 0x80 and returns. The PICs deliver from vector 0x20 on, with
// all of the master's inputs open, and the local APIC is enabled.
func interruptible(t *testing.T, vectors ...uint8) *kvmtest.Guest {
	t.Helper()
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{IRQChip: true, Code: []byte{
		0xfb,       // sti
		0xf4,       // hlt
		0xeb, 0xfd, // jmp to the hlt
	}})
	handlers(g, vectors...)

	pic, err := g.VM.IRQChip(kvm.PICMaster)
	check(t, err)
	pic.Chip[2] = 0    // imr
	pic.Chip[5] = 0x20 // irq_base
	check(t, g.VM.SetIRQChip(pic))
	lapic, err := g.VCPU.LAPIC()
	check(t, err)
	lapic.SetRegister(0xf0, lapic.Register(0xf0)|0x100) // spurious vector: enable
	lapic.SetRegister(0x350, 0x700)                     // LVT LINT0: ExtINT, the PICs
	check(t, g.VCPU.SetLAPIC(&lapic))
	return g
}

// handlers installs real-mode interrupt handlers.
func handlers(g *kvmtest.Guest, vectors ...uint8) {
	for i, v := range vectors {
		at := 0x3000 + 16*i
		binary.LittleEndian.PutUint32(g.Memory[4*int(v):], uint32(at))
		copy(g.Memory[at:], []byte{
			0xb0, v, // mov al, v
			0xe6, 0x80, // out 0x80, al
			0xcf, // iret
		})
	}
}

// expectVector runs the guest until a handler reports its vector.
func expectVector(t *testing.T, g *kvmtest.Guest, want uint8) {
	t.Helper()
	g.Run(t, kvm.ExitIO)
	if e := g.VCPU.IO(); !e.Out || e.Port != 0x80 || len(e.Data) != 1 || e.Data[0] != want {
		t.Fatalf("interrupt %+v, want %#x", e, want)
	}
}

func TestIRQLine(t *testing.T) {
	g := interruptible(t, 0x24)
	check(t, g.VM.IRQLine(4, 1))
	check(t, g.VM.IRQLine(4, 0))
	expectVector(t, g, 0x24)
}

func TestIRQLineStatus(t *testing.T) {
	g := interruptible(t, 0x25)
	status, err := g.VM.IRQLineStatus(5, 1)
	if err != nil || status <= 0 {
		t.Errorf("IRQLineStatus of the first edge = %d, %v", status, err)
	}
	if status, err = g.VM.IRQLineStatus(5, 0); err != nil {
		t.Errorf("IRQLineStatus = %d, %v", status, err)
	}
	expectVector(t, g, 0x25)
}

func TestSignalMSI(t *testing.T) {
	g := interruptible(t, 0x55)
	kvmtest.NeedCap(t, g.VM, kvm.CapSignalMSI)
	n, err := g.VM.SignalMSI(kvm.MSI{AddressLo: 0xfee00000, Data: 0x55})
	if n <= 0 || err != nil {
		t.Errorf("SignalMSI() = %d, %v", n, err)
	}
	expectVector(t, g, 0x55)
}

func TestGSIRouting(t *testing.T) {
	g := interruptible(t, 0x26, 0x56)
	check(t, g.VM.SetGSIRouting([]kvm.IRQRoutingEntry{
		kvm.IRQChipRoute(30, kvm.PICMaster, 6),
		kvm.MSIRoute(31, kvm.MSI{AddressLo: 0xfee00000, Data: 0x56}),
	}))
	check(t, g.VM.IRQLine(30, 1))
	expectVector(t, g, 0x26)
	check(t, g.VM.IRQLine(31, 1))
	expectVector(t, g, 0x56)

	check(t, g.VM.SetGSIRouting(nil))
	if status, err := g.VM.IRQLineStatus(31, 1); err != nil || status > 0 {
		t.Errorf("IRQLineStatus without a route = %d, %v", status, err)
	}
	tooMany := make([]kvm.IRQRoutingEntry, 5000)
	if err := g.VM.SetGSIRouting(tooMany); !errors.Is(err, unix.EINVAL) {
		t.Errorf("SetGSIRouting of %d entries: %v", len(tooMany), err)
	}
}

func newEventFD(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	check(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestIRQFD(t *testing.T) {
	g := interruptible(t, 0x27)
	fd := newEventFD(t)
	check(t, g.VM.IRQFD(kvm.IRQFD{FD: uint32(fd), GSI: 7}))
	one := binary.NativeEndian.AppendUint64(nil, 1)
	if _, err := unix.Write(fd, one); err != nil {
		t.Fatal(err)
	}
	expectVector(t, g, 0x27)
	check(t, g.VM.IRQFD(kvm.IRQFD{FD: uint32(fd), GSI: 7, Flags: kvm.IRQFDDeassign}))
	if err := g.VM.IRQFD(kvm.IRQFD{FD: 1 << 20, GSI: 7}); !errors.Is(err, unix.EBADF) {
		t.Errorf("IRQFD of no descriptor: %v", err)
	}
}

// signalled tells how often an eventfd was signalled since the last look.
func signalled(t *testing.T, fd int) uint64 {
	t.Helper()
	b := make([]byte, 8)
	if _, err := unix.Read(fd, b); errors.Is(err, unix.EAGAIN) {
		return 0
	} else if err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(b)
}

func TestIOEventFDPort(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: []byte{
		0xb0, 0x07, // mov al, 7
		0xe6, 0x50, // out 0x50, al
		0xe6, 0x50, // out 0x50, al
		0xb0, 0x08, // mov al, 8
		0xe6, 0x50, // out 0x50, al
		0xf4, // hlt
	}})
	fd := newEventFD(t)
	f := kvm.IOEventFD{
		Addr: 0x50, Len: 1, Datamatch: 7, FD: int32(fd),
		Flags: kvm.IOEventFDPIO | kvm.IOEventFDDatamatch,
	}
	check(t, g.VM.IOEventFD(f))
	g.Run(t, kvm.ExitIO) // of another value than 7
	if e := g.VCPU.IO(); e.Port != 0x50 || len(e.Data) != 1 || e.Data[0] != 8 {
		t.Errorf("IO() = %+v", e)
	}
	if n := signalled(t, fd); n != 2 {
		t.Errorf("signalled %d times, want 2", n)
	}
	f.Flags |= kvm.IOEventFDDeassign
	check(t, g.VM.IOEventFD(f))
	g.RealMode(t, nil)
	g.Run(t, kvm.ExitIO)
	if n := signalled(t, fd); n != 0 {
		t.Errorf("signalled %d times after it was deassigned", n)
	}
}

func TestIOEventFDMemory(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: []byte{
		0x66, 0xc7, 0x06, 0x50, 0x90, 1, 0, 0, 0, // mov dword [0x9050], 1
		0xf4, // hlt
	}})
	fd := newEventFD(t)
	check(t, g.VM.IOEventFD(kvm.IOEventFD{Addr: 0x9050, Len: 4, FD: int32(fd)}))
	g.Run(t, kvm.ExitHLT)
	if n := signalled(t, fd); n != 1 {
		t.Errorf("signalled %d times, want 1", n)
	}
}

func TestIRQChips(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{IRQChip: true})
	for _, id := range []uint32{kvm.PICMaster, kvm.PICSlave} {
		c, err := g.VM.IRQChip(id)
		check(t, err)
		if c.ID != id {
			t.Errorf("chip %d says it is %d", id, c.ID)
		}
		c.Chip[2], c.Chip[5] = 0x5a, 0x70
		check(t, g.VM.SetIRQChip(c))
		got, err := g.VM.IRQChip(id)
		check(t, err)
		if p := got.PIC(); p.IMR != 0x5a || p.IRQBase != 0x70 {
			t.Errorf("chip %d: %+v", id, p)
		}
	}
	c, err := g.VM.IRQChip(kvm.IOAPIC)
	check(t, err)
	if a := c.IOAPIC(); a.BaseAddress != 0xfec00000 {
		t.Errorf("IOAPIC: %+v", a)
	}
	const entry = 1<<16 | 0x41 // masked, vector 0x41
	binary.LittleEndian.PutUint64(c.Chip[24+5*8:], entry)
	check(t, g.VM.SetIRQChip(c))
	c, err = g.VM.IRQChip(kvm.IOAPIC)
	check(t, err)
	if a := c.IOAPIC(); a.RedirTbl[5] != entry {
		t.Errorf("IOAPIC pin 5: %#x, want %#x", a.RedirTbl[5], entry)
	}
	if _, err := g.VM.IRQChip(3); !errors.Is(err, unix.EINVAL) {
		t.Errorf("chip 3: %v", err)
	}
}

func TestPIT2(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{IRQChip: true, Code: []byte{
		0xb0, 0x34, // mov al, 0x34: counter 0, low and high byte, mode 2
		0xe6, 0x43, // out 0x43, al
		0xb0, 0xcd, // mov al, 0xcd
		0xe6, 0x40, // out 0x40, al
		0xb0, 0xab, // mov al, 0xab
		0xe6, 0x40, // out 0x40, al
		0xe6, 0x80, // out 0x80, al
	}})
	g.Run(t, kvm.ExitIO)
	s, err := g.VM.PIT2()
	check(t, err)
	if c := s.Channels[0]; c.Count != 0xabcd || c.Mode != 2 {
		t.Errorf("the guest's counter: %+v", c)
	}
	s.Channels[2].Count = 0x1234
	s.Flags |= kvm.PITSpeakerDataOn
	check(t, g.VM.SetPIT2(&s))
	got, err := g.VM.PIT2()
	check(t, err)
	for i := range s.Channels {
		s.Channels[i].CountLoadTime, got.Channels[i].CountLoadTime = 0, 0
	}
	if got != s {
		t.Errorf("read back %+v, want %+v", got, s)
	}
}

func TestNMI(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: []byte{0xf4}})
	handlers(g, 2)
	check(t, g.VCPU.NMI())
	expectVector(t, g, 2)
}

// TestInterrupt injects an interrupt from here: without interrupt controllers
// in the kernel the VMM waits for the window in which it can.
func TestInterrupt(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: []byte{
		0xe6, 0x10, // out 0x10, al
		0xfb,       // sti
		0xeb, 0xfe, // jmp $
	}})
	handlers(g, 0x30)
	g.VCPU.RequestInterruptWindow(true)
	g.Run(t, kvm.ExitIO)
	if g.VCPU.ReadyForInterruptInjection() || g.VCPU.IFFlag() {
		t.Error("ready for an interrupt while they are disabled")
	}
	g.Run(t, kvm.ExitIRQWindowOpen)
	if !g.VCPU.ReadyForInterruptInjection() || !g.VCPU.IFFlag() {
		t.Error("not ready for an interrupt though the window is open")
	}
	g.VCPU.RequestInterruptWindow(false)
	check(t, g.VCPU.Interrupt(0x30))
	expectVector(t, g, 0x30)
	if err := g.VCPU.Interrupt(256); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Interrupt(256): %v", err)
	}
}

// TestCR8 hands the task priority through the shared page, as it is done
// without interrupt controllers in the kernel.
func TestCR8(t *testing.T) {
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{Code: []byte{0xf4}})
	g.VCPU.SetCR8(5)
	g.Run(t, kvm.ExitHLT)
	if cr8 := sregs(t, g.VCPU).CR8; cr8 != 5 || g.VCPU.CR8() != 5 {
		t.Errorf("CR8 = %d, in the page %d", cr8, g.VCPU.CR8())
	}
	if base := g.VCPU.APICBase(); base&^0xfff != 0xfee00000 {
		t.Errorf("APICBase() = %#x", base)
	}
}
