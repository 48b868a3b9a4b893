package probe

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
)

// loop is the guest, in 32-bit protected mode. The host runs the same two
// instructions in spin.
var loop = []byte{
	0x49,       // again: dec ecx
	0x75, 0xfd, // jnz again
	0xe6, 0x80, // out 0x80, al
	0xeb, 0xf9, // jmp again
}

const insnsPerRound = 2

// patience is how long a guest may take for one exit.
const patience = 10 * time.Second

var errNoExit = errors.New("the guest does not come back")

// guest is a VM of one page with a vCPU that runs loop.
type guest struct {
	vm     *kvm.VM
	vcpu   *kvm.VCPU
	memory []byte
}

func newGuest(s *kvm.System) (*guest, error) {
	g := &guest{}
	if err := g.build(s); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *guest) build(s *kvm.System) (err error) {
	g.memory, err = unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map memory: %w", err)
	}
	copy(g.memory, loop)
	if g.vm, err = s.CreateVM(); err != nil {
		return err
	}
	if err := g.vm.SetUserMemoryRegion(g.region()); err != nil {
		return err
	}
	if err := g.vm.SetTSSAddr(0xfffbd000); err != nil {
		return err
	}
	if g.vcpu, err = g.vm.CreateVCPU(0); err != nil {
		return err
	}
	return g.enterProtectedMode()
}

// enterProtectedMode makes all segments flat and leaves paging off: of the
// modes without page tables the one that all hardware runs by itself.
func (g *guest) enterProtectedMode() error {
	s, err := g.vcpu.Sregs()
	if err != nil {
		return err
	}
	flat := kvm.Segment{Limit: 0xffffffff, Selector: 0x10, Type: 3, Present: 1, DB: 1, S: 1, G: 1}
	s.DS, s.ES, s.FS, s.GS, s.SS, s.CS = flat, flat, flat, flat, flat, flat
	s.CS.Selector, s.CS.Type = 0x08, 0xb
	s.CR0 |= 1
	return g.vcpu.SetSregs(&s)
}

// close gives everything back. Its errors say nothing about the KVM.
func (g *guest) close() {
	if g.vcpu != nil {
		_ = g.vcpu.Close()
	}
	if g.vm != nil {
		_ = g.vm.Close()
	}
	if g.memory != nil {
		_ = unix.Munmap(g.memory)
	}
}

// rounds runs the loop n times over, n > 0, and returns how long it took. The
// caller is locked to its thread.
func (g *guest) rounds(n uint32) (time.Duration, error) {
	if err := g.vcpu.SetRegs(&kvm.Regs{RCX: uint64(n), RFLAGS: 2}); err != nil {
		return 0, err
	}
	begin := time.Now()
	err := g.run()
	return time.Since(begin), err
}

// run runs the vCPU to its next exit, for no longer than patience.
func (g *guest) run() error {
	deadline := time.Now().Add(patience)
	tid := unix.Gettid()
	watchdog := time.AfterFunc(patience, func() {
		g.vcpu.SetImmediateExit(true)
		_ = unix.Tgkill(unix.Getpid(), tid, unix.SIGURG)
	})
	defer watchdog.Stop()
	for {
		err := g.vcpu.Run()
		switch {
		case errors.Is(err, unix.EINTR) && time.Now().Before(deadline):
			continue
		case errors.Is(err, unix.EINTR):
			return errNoExit
		case err != nil:
			return err
		case g.vcpu.ExitReason() != kvm.ExitIO:
			return fmt.Errorf("unexpected exit: %v", g.vcpu.ExitReason())
		}
		return nil
	}
}

// timing is the nanoseconds that an instruction of guest and host and an exit
// take.
type timing struct{ guest, host, exit float64 }

// measure runs the loop in guest and host until it lasts long enough to be
// timed.
func measure(g *guest) (t timing, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if t.exit, err = g.exitTime(); err != nil {
		return t, err
	}
	t.guest, err = nsPerInsn(func(n uint32) (time.Duration, error) {
		d, err := g.rounds(n)
		return d - time.Duration(t.exit), err
	})
	if err != nil {
		return t, err
	}
	t.host, err = nsPerInsn(func(n uint32) (time.Duration, error) {
		begin := time.Now()
		spin(n)
		return time.Since(begin), nil
	})
	return t, err
}

// exitTime is the median time of a Run that ends with a port write.
func (g *guest) exitTime() (float64, error) {
	times := make([]time.Duration, 101)
	for i := range times {
		d, err := g.rounds(1)
		if err != nil {
			return 0, err
		}
		times[i] = d
	}
	slices.Sort(times)
	return float64(times[len(times)/2]), nil
}

// nsPerInsn finds the nanoseconds an instruction of a loop takes. It lets the
// loop grow until a run is long against the clock and takes the best of three,
// since whatever else the machine does can only add.
func nsPerInsn(run func(rounds uint32) (time.Duration, error)) (float64, error) {
	const enough = 2 * time.Millisecond
	const most = 1 << 24
	rounds := uint32(1 << 10)
	for ; rounds < most; rounds *= 2 {
		d, err := run(rounds)
		if err != nil {
			return 0, err
		}
		if d >= enough {
			break
		}
	}
	best := time.Duration(1<<63 - 1)
	for range 3 {
		d, err := run(rounds)
		if err != nil {
			return 0, err
		}
		best = min(best, d)
	}
	return max(float64(best), 1) / (insnsPerRound * float64(rounds)), nil
}
