package vmm

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
)

// Micro-guests of the scenarios. All are entered in 64-bit mode at testEntry,
// with the first GiB of memory mapped one to one.

// patience is how long a guest may take for what it does in milliseconds.
const patience = 30 * time.Second

// Where an interrupt guest keeps its data, and what it tells.
const (
	guestIDTR     = 0x3e0 // offsets into the guest's image
	guestInterval = 0x3f0
	guestIDT      = 0x400
	guestVector   = 0x20

	tickerLate  = counterAddr + 0x8  // cycles by which the latest tick was late
	tickerEarly = counterAddr + 0x10 // ticks that came before their time
	tickPort    = 0x80               // written at every tick
)

// guestTicker has the timer of its LAPIC interrupt it at a TSC deadline, again
// and again, and halts in between. It counts ticks at counterAddr.
var guestTicker = interruptGuest{handler: 0x61, code: []byte{
	0x0f, 0x01, 0x1c, 0x25, 0xe0, 0x03, 0x20, 0x00, // lidt [0x2003e0]
	0xb9, 0x1b, 0x00, 0x00, 0x00, // mov ecx, 0x1b: APIC_BASE
	0x0f, 0x32, // rdmsr
	0x0d, 0x00, 0x0c, 0x00, 0x00, // or eax, 0xc00: x2APIC
	0x0f, 0x30, // wrmsr
	0xb9, 0x0f, 0x08, 0x00, 0x00, // mov ecx, 0x80f: spurious vector
	0xb8, 0xff, 0x01, 0x00, 0x00, // mov eax, 0x1ff: enabled
	0x31, 0xd2, // xor edx, edx
	0x0f, 0x30, // wrmsr
	0xb9, 0x32, 0x08, 0x00, 0x00, // mov ecx, 0x832: LVT timer
	0xb8, 0x20, 0x00, 0x04, 0x00, // mov eax, 0x40020: TSC deadline, guestVector
	0x0f, 0x30, // wrmsr
	0xe8, 0x04, 0x00, 0x00, 0x00, // call arm
	0xfb, // sti
	// idle:
	0xf4,       // hlt
	0xeb, 0xfd, // jmp idle
	// arm:
	0x0f, 0x31, // rdtsc
	0x48, 0xc1, 0xe2, 0x20, // shl rdx, 32
	0x48, 0x09, 0xd0, // or rax, rdx
	0x48, 0x03, 0x04, 0x25, 0xf0, 0x03, 0x20, 0x00, // add rax, [0x2003f0]
	0x48, 0x89, 0x04, 0x25, 0x18, 0x00, 0x30, 0x00, // mov [0x300018], rax
	0x48, 0x89, 0xc2, // mov rdx, rax
	0x48, 0xc1, 0xea, 0x20, // shr rdx, 32
	0xb9, 0xe0, 0x06, 0x00, 0x00, // mov ecx, 0x6e0: TSC_DEADLINE
	0x0f, 0x30, // wrmsr
	0xc3, // ret
	// handler:
	0x50, 0x51, 0x52, // push rax; push rcx; push rdx
	0x0f, 0x31, // rdtsc
	0x48, 0xc1, 0xe2, 0x20, // shl rdx, 32
	0x48, 0x09, 0xd0, // or rax, rdx
	0x48, 0x2b, 0x04, 0x25, 0x18, 0x00, 0x30, 0x00, // sub rax, [0x300018]
	0x79, 0x0a, // jns late
	0x48, 0xff, 0x04, 0x25, 0x10, 0x00, 0x30, 0x00, // inc qword [tickerEarly]
	0xeb, 0x12, // jmp end
	// late:
	0x48, 0x3b, 0x04, 0x25, 0x08, 0x00, 0x30, 0x00, // cmp rax, [tickerLate]
	0x7e, 0x08, // jle end
	0x48, 0x89, 0x04, 0x25, 0x08, 0x00, 0x30, 0x00, // mov [tickerLate], rax
	// end:
	0xb9, 0x0b, 0x08, 0x00, 0x00, // mov ecx, 0x80b: EOI
	0x31, 0xc0, // xor eax, eax
	0x31, 0xd2, // xor edx, edx
	0x0f, 0x30, // wrmsr
	0xe8, 0x96, 0xff, 0xff, 0xff, // call arm
	0x48, 0xff, 0x04, 0x25, 0x00, 0x00, 0x30, 0x00, // inc qword [counterAddr]
	0xe6, 0x80, // out tickPort, al
	0x5a, 0x59, 0x58, // pop rdx; pop rcx; pop rax
	0x48, 0xcf, // iretq
}}

// guestPIT has the i8254 interrupt it every millisecond through the master
// 8259, and halts in between. It counts ticks at counterAddr.
var guestPIT = interruptGuest{handler: 0x2c, code: []byte{
	0x0f, 0x01, 0x1c, 0x25, 0xe0, 0x03, 0x20, 0x00, // lidt [0x2003e0]
	0xb0, 0x11, 0xe6, 0x20, // 8259: initialize
	0xb0, 0x20, 0xe6, 0x21, // vectors from guestVector on
	0xb0, 0x04, 0xe6, 0x21, // the slave is at input 2
	0xb0, 0x01, 0xe6, 0x21, // 8086 mode
	0xb0, 0xfe, 0xe6, 0x21, // mask all but IRQ 0
	0xb0, 0x34, 0xe6, 0x43, // 8254: channel 0, rate generator
	0xb0, 0xa9, 0xe6, 0x40, // 1193 = 0x4a9 cycles
	0xb0, 0x04, 0xe6, 0x40,
	0xfb, // sti
	// idle:
	0xf4,       // hlt
	0xeb, 0xfd, // jmp idle
	// handler:
	0x50,                   // push rax
	0xb0, 0x20, 0xe6, 0x20, // end of interrupt
	0x48, 0xff, 0x04, 0x25, 0x00, 0x00, 0x30, 0x00, // inc qword [counterAddr]
	0xe6, 0x80, // out tickPort, al
	0x58,       // pop rax
	0x48, 0xcf, // iretq
}}

// Where guestSweep writes.
const sweepAddr, sweepPages = 0x400000, 2048

// guestSweep counts sweeps over sweepPages pages, and writes the number of the
// sweep into each. At any instant no page has more than the one before it, and
// the first no more than one above the last.
var guestSweep = []byte{
	0x31, 0xc0, // xor eax, eax
	// sweep:
	0x48, 0xff, 0xc0, // inc rax
	0xbf, 0x00, 0x00, 0x40, 0x00, // mov edi, sweepAddr
	0xb9, 0x00, 0x08, 0x00, 0x00, // mov ecx, sweepPages
	// page:
	0x48, 0x89, 0x07, // mov [rdi], rax
	0x48, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, // add rdi, 4096
	0xff, 0xc9, // dec ecx
	0x75, 0xf2, // jnz page
	0x48, 0x89, 0x04, 0x25, 0x00, 0x00, 0x30, 0x00, // mov [counterAddr], rax
	0xeb, 0xdb, // jmp sweep
}

// torn says where pages that guestSweep wrote are not of one instant.
func torn(at func(gpa uint64) uint64) (page int, bad bool) {
	first := at(sweepAddr)
	last := first
	for i := range sweepPages {
		v := at(sweepAddr + uint64(i)*pageSize)
		if v > last || v+1 < first {
			return i, true
		}
		last = v
	}
	return 0, false
}

// interruptGuest is code with an interrupt handler.
type interruptGuest struct {
	code    []byte
	handler uint64 // offset into code
}

// image is the code with an IDT of the one handler. interval is how many TSC
// cycles guestTicker has between two ticks.
func (g interruptGuest) image(interval uint64) []byte {
	le := binary.LittleEndian
	image := make([]byte, guestIDT+(guestVector+1)*16)
	copy(image, g.code)
	le.PutUint16(image[guestIDTR:], (guestVector+1)*16-1)
	le.PutUint64(image[guestIDTR+2:], testEntry+guestIDT)
	le.PutUint64(image[guestInterval:], interval)
	// An interrupt gate, AMD64 manual volume 2, 4.8.4.
	const present64 = 0x8e00
	gate, h := image[guestIDT+guestVector*16:], testEntry+g.handler
	le.PutUint64(gate, h&0xffff|bootCS<<16|present64<<32|h>>16&0xffff<<48)
	le.PutUint64(gate[8:], h>>32)
	return image
}

// startTicker starts a guestTicker.
func startTicker(t testing.TB, every time.Duration, edit ...func(*Config)) *VM {
	t.Helper()
	return startMicro(t, guestTicker.image(cycles(uint64(every), hostTSCKHz(t))), edit...)
}

// hostTSCKHz is the frequency that a guest's counter has here.
func hostTSCKHz(t testing.TB) uint32 {
	t.Helper()
	g := kvmtest.New(t, kvmtest.OpenOrSkip(t), kvmtest.Config{})
	khz, err := g.VCPU.TSCKHz()
	if err != nil {
		t.Fatal(err)
	}
	return khz
}

// word reads 8 bytes of guest memory.
func word(t testing.TB, vm *VM, gpa uint64) uint64 {
	t.Helper()
	return wordOf(t, vm.mem, gpa)
}

func wordOf(t testing.TB, m *memory, gpa uint64) uint64 {
	t.Helper()
	p, err := m.Slice(gpa, 8)
	if err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(p)
}

// setWord writes 8 bytes of guest memory.
func setWord(t testing.TB, vm *VM, gpa, v uint64) {
	t.Helper()
	if err := vm.mem.write(gpa, binary.LittleEndian.AppendUint64(nil, v)); err != nil {
		t.Fatal(err)
	}
}

// ticks returns a trace to start a guest with, and the times of its ticks as
// far as somebody reads them.
func ticks() (trace func(TraceEvent), at <-chan time.Time) {
	c := make(chan time.Time, 1)
	return func(e TraceEvent) {
		if e.Addr == tickPort {
			select {
			case c <- time.Now():
			default:
			}
		}
	}, c
}

// awaitTick waits for a tick and leaves the guest alone meanwhile.
func awaitTick(t testing.TB, vm *VM, at <-chan time.Time) {
	t.Helper()
	select {
	case <-at:
	case <-time.After(patience):
		t.Fatalf("the guest's timer does not tick:\n%s", timers(t, vm))
	}
}

// timers describes what could make a guest's vCPU go on.
func timers(t testing.TB, vm *VM) string {
	t.Helper()
	pause(t, vm)
	var b strings.Builder
	onVCPU(t, vm, 0, func(c *kvm.VCPU) error {
		st := new(vcpuState)
		err := saveVCPU(vm.shell.vcpus[0], st, vm.shell.xsaveSize, &msrList{indices: []uint32{msrTSC}})
		const isr, irr, ppr = 0x100, 0x200, 0xa0
		vector := guestVector / 32 * 16
		fmt.Fprintf(&b, "state %+v, rip %#x, rflags %#x, events %+v\nLAPIC: timer %#x, PPR %#x, ISR %#x, IRR %#x, deadline %d, counter %d\n",
			st.MPState, st.Regs.RIP, st.Regs.RFLAGS, st.Events, st.LAPIC.Register(lapicLVTTimer), st.LAPIC.Register(ppr),
			st.LAPIC.Register(isr+vector), st.LAPIC.Register(irr+vector), st.Deadline, st.MSRs[0].Data)
		return err
	})
	chips := new(chipState)
	if err := vm.shell.saveChips(chips); err != nil {
		t.Error(err)
	}
	fmt.Fprintf(&b, "8254: %+v\n8259: %+v", chips.PIT.Channels[0], chips.Master.PIC())
	return b.String()
}

// withoutSpare has a machine's forks build their KVM machines themselves.
func withoutSpare(c *Config) { c.Spare = -1 }

// onVCPU runs f on the thread of a machine's vCPU.
func onVCPU(t testing.TB, vm *VM, id int, f func(c *kvm.VCPU) error) {
	t.Helper()
	var err error
	c := vm.shell.vcpus[id]
	if !c.do(func() { err = f(c.kvm) }) {
		err = ErrClosed
	}
	if err != nil {
		t.Fatal(err)
	}
}

func resume(t testing.TB, vm *VM) {
	t.Helper()
	if err := vm.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func captureOf(t testing.TB, vm *VM) *Image {
	t.Helper()
	image, err := vm.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { image.Close() })
	return image
}

// startFrom starts a machine from an image; it is closed when the test ends.
func startFrom(t testing.TB, image *Image, o StartOptions) *VM {
	t.Helper()
	vm, err := image.Start(context.WithoutCancel(t.Context()), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeVM(t, vm) })
	return vm
}

// awaitArmed returns when a guestTicker has armed its timer and halted.
func awaitArmed(t testing.TB, vm *VM) {
	t.Helper()
	const armed = counterAddr + 0x18
	awaitMemory(t, vm, func() bool { return word(t, vm, armed) != 0 })
	// Halted: the pause finds it after sti.
	awaitMemory(t, vm, func() bool {
		var flags uint64
		onVCPU(t, vm, 0, func(c *kvm.VCPU) error {
			r, err := c.Regs()
			flags = r.RFLAGS
			return err
		})
		const interruptFlag = 1 << 9
		return flags&interruptFlag != 0
	})
}

// awaitMemory pauses the machine again and again until done is true.
func awaitMemory(t testing.TB, vm *VM, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		pause(t, vm)
		ok := done()
		resume(t, vm)
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the guest does not get there")
		}
	}
}

// awaitRun returns when a guestCounter has counted, without a pause.
func awaitRun(t testing.TB, vm *VM) {
	t.Helper()
	n := word(t, vm, counterAddr)
	for deadline := time.Now().Add(patience); word(t, vm, counterAddr) == n; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("the guest counts no further than %d", n)
		}
	}
}

// The clock that KVM keeps in guest memory: struct pvclock_vcpu_time_info of
// Documentation/virt/kvm/x86/msr.rst.
const (
	pvclockAddr       = 0x310000
	pvclockSystemTime = 16
	pvclockFlags      = 29 // the byte; what follows it is padding

	msrSystemTimeNew = 0x4b564d01
	pvclockStopped   = 1 << 1
)

type pvclock struct {
	systemTime uint64
	stopped    bool
}

// useKVMClock has the first vCPU use the KVM clock, as a kernel would.
func useKVMClock(t testing.TB, vm *VM) {
	t.Helper()
	onVCPU(t, vm, 0, func(c *kvm.VCPU) error {
		_, err := c.SetMSRs([]kvm.MSREntry{{Index: msrSystemTimeNew, Data: pvclockAddr | 1}})
		return err
	})
}

func readPVClock(t testing.TB, vm *VM) pvclock {
	t.Helper()
	pause(t, vm)
	defer resume(t, vm)
	p, err := vm.mem.Slice(pvclockAddr, 32)
	if err != nil {
		t.Fatal(err)
	}
	return pvclock{binary.LittleEndian.Uint64(p[pvclockSystemTime:]), p[pvclockFlags]&pvclockStopped != 0}
}

// programPIT has channel 0 of the i8254 tick every millisecond, and the IOAPIC
// deliver that as guestVector.
func programPIT(t testing.TB, vm *VM) {
	t.Helper()
	// First the IOAPIC: KVM drops what its PIT raises at a masked input, and
	// raises nothing more until that is acknowledged.
	chip, err := vm.shell.vm.IRQChip(kvm.IOAPIC)
	if err != nil {
		t.Fatal(err)
	}
	ioapic := chip.IOAPIC()
	ioapic.RedirTbl[0] = guestVector // KVM's own route of GSI 0
	if _, err := binary.Encode(chip.Chip[:], binary.LittleEndian, ioapic); err != nil {
		t.Fatal(err)
	}
	if err := vm.shell.vm.SetIRQChip(chip); err != nil {
		t.Fatal(err)
	}
	pit, err := vm.shell.vm.PIT2()
	if err != nil {
		t.Fatal(err)
	}
	pit.Channels[0].Mode, pit.Channels[0].Count, pit.Channels[0].RWMode = 2, 1193, 3
	if err := vm.shell.vm.SetPIT2(&pit); err != nil {
		t.Fatal(err)
	}
}

// sameHoldings checks that the process has no more than before of what the
// kernel gives. The Go runtime may take a thread or an arena more; whatever is
// left by each of many machines shows.
func sameHoldings(t testing.TB, before map[string]int, living ...*VM) {
	t.Helper()
	// The Go runtime keeps a thread, with some mappings, for each system call
	// that ever blocked at the same time as others: those that free machines.
	slack := map[string]int{"fd": 10, "goroutines": 10, "task": 10 + maxBackground, "maps": 10 + 3*maxBackground}
	after := holdings(t, living...)
	for kind, n := range slack {
		if after[kind] > before[kind]+n {
			t.Errorf("%s: %d before, %d after", kind, before[kind], after[kind])
		}
	}
}

// guestStamp writes its time-stamp counter to counterAddr for ever.
var guestStamp = []byte{
	0x0f, 0x31, // rdtsc
	0x48, 0xc1, 0xe2, 0x20, // shl rdx, 32
	0x48, 0x09, 0xd0, // or rax, rdx
	0x48, 0x89, 0x04, 0x25, 0x00, 0x00, 0x30, 0x00, // mov [counterAddr], rax
	0xeb, 0xed, // jmp back
}

// frozenWord reads 8 bytes of an image's memory.
func frozenWord(t *testing.T, image *Image, gpa uint64) uint64 {
	t.Helper()
	table, _, err := image.retain()
	if err != nil {
		t.Fatal(err)
	}
	defer table.Release()
	return wordOf(t, mapped(t, table), gpa)
}

// median is the middle of an odd number of durations, or one of the middle two.
func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}
