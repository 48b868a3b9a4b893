package vmm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkvm/forkvm/devices/acpi"
	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/guestagent/proto"
	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/snapshot"
)

// VM is a running machine. Make one with [Start] or [VM.Fork] and end it with
// [VM.Close]. It is safe for concurrent use; pauses, captures and forks of one
// machine take turns.
type VM struct {
	cfg     Config
	console *console
	shell   *shell
	board   *board
	agent   *client.Client
	info    client.Info // what the agent said when it was ready
	msrs    *msrList
	timings Timings

	// Shorthands of the exit path.
	mem       *memory
	pio, mmio interface {
		Read(addr uint64, p []byte) bool
		Write(addr uint64, p []byte) bool
	}

	// turn is held by whoever pauses, captures, resumes or closes. Lock
	// order: turn, then the locks of vCPUs and devices.
	turn   turn
	paused bool // guarded by turn: the user paused it

	stopping atomic.Bool   // no vCPU enters the guest any more
	outcome  *Outcome      // set before ended is closed, then constant
	ended    chan struct{} // closed when all is quiet after a stop
	closing  sync.Once
	closed   error
}

// Timings says where the time went until a machine could be used. A boot
// leaves the fields of a fork zero, and the reverse.
type Timings struct {
	Create     time.Duration // KVM's objects, memory mapped
	Load       time.Duration // boot: kernel and initramfs in memory
	Restore    time.Duration // fork: state written to KVM and devices
	StateReady time.Duration // from the start of the call until the vCPUs could run
	AgentReady time.Duration // from the start of the call to the agent's confirmation

	Pause   time.Duration // fork: how long the parent stood still
	Capture time.Duration // fork: the part of Pause that copied memory
	// fork: pages the parent had written since its last capture, and pages
	// that the capture copied
	DirtyPages, CopiedPages int64
}

// Start boots a machine and returns when the agent in it has confirmed its
// identity. If ctx ends first the machine is closed.
func Start(ctx context.Context, cfg Config) (*VM, error) {
	begin := time.Now()
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cmdline, err := cfg.cmdline()
	if err != nil {
		return nil, err
	}
	table := snapshot.NewTable(cfg.Memory)
	defer table.Release()
	vm, err := newVM(cfg, table, nil)
	if err != nil {
		return nil, err
	}
	vm.timings.Create = time.Since(begin)
	if err := vm.boot(ctx, begin, cmdline); err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	return vm, nil
}

// newVM makes a machine whose vCPUs are parked and whose board is empty. See
// newShell for cpuid.
func newVM(cfg Config, table *snapshot.Table, cpuid []kvm.CPUIDEntry2) (*VM, error) {
	vm := &VM{cfg: cfg, console: newConsole(cfg.Console), turn: newTurn(), ended: make(chan struct{})}
	fail := func(c *vcpu, err error) {
		o := vm.crash(c, err.Error())
		o.Cause = err
		vm.stop(o)
	}
	shell, err := newShell(cfg.KVM, cfg.VCPUs, table, cpuid, vm.handleExit, fail)
	if err != nil {
		return nil, err
	}
	vm.shell, vm.mem = shell, shell.mem
	return vm, nil
}

func (vm *VM) env() boardEnv {
	return boardEnv{
		vm: vm.shell.vm, memory: vm.mem, console: vm.console,
		reset:    func() { vm.stop(Outcome{Err: ErrReset, Detail: "asked for by the guest"}) },
		powerOff: func() { vm.stop(Outcome{Err: ErrPowerOff}) },
	}
}

func (vm *VM) setBoard(b *board) {
	vm.board, vm.pio, vm.mmio = b, &b.pio, &b.mmio
}

// boot loads the guest, lets it run and waits for its agent.
func (vm *VM) boot(ctx context.Context, begin time.Time, cmdline string) error {
	b, err := newBoard(vm.env())
	if err != nil {
		return err
	}
	vm.setBoard(b)
	if vm.msrs, err = newMSRList(vm.shell); err != nil {
		return err
	}
	start := time.Now()
	if err := vm.load(cmdline); err != nil {
		return err
	}
	vm.timings.Load = time.Since(start)
	vm.cfg.Initramfs = nil // it is in the guest's memory; no child needs it
	if vm.cfg.noAgent {
		vm.run()
		return nil
	}
	ready, err := vm.board.vsock.Listen(proto.ReadyPort)
	if err != nil {
		return fmt.Errorf("vmm: wait for the agent: %w", err)
	}
	defer ready.Close()
	vm.timings.StateReady = time.Since(begin)
	vm.run()
	if err := vm.awaitAgent(ctx, ready); err != nil {
		return fmt.Errorf("vmm: boot: %w", err)
	}
	if err := vm.renewIdentity(ctx); err != nil {
		return fmt.Errorf("vmm: boot: %w", err)
	}
	vm.timings.AgentReady = time.Since(begin)
	return nil
}

// load fills guest memory and the first vCPU's registers.
func (vm *VM) load(cmdline string) error {
	img, err := vm.mem.loadKernel(vm.cfg.Kernel)
	if err != nil {
		return err
	}
	if err := vm.mem.loadInitramfs(&img, vm.cfg.Initramfs); err != nil {
		return err
	}
	rsdp, err := vm.loadTables()
	if err != nil {
		return err
	}
	if err := vm.mem.writeMPTable(vm.cfg.VCPUs); err != nil {
		return err
	}
	if err := vm.mem.writeBootParams(img, cmdline, rsdp); err != nil {
		return err
	}
	if err := vm.mem.writeLongMode(); err != nil {
		return err
	}
	c := vm.shell.vcpus[0]
	c.do(func() { err = setBootRegisters(c.kvm, img.entry) })
	return err
}

// loadTables writes the ACPI tables and the first generation id.
func (vm *VM) loadTables() (rsdp uint64, err error) {
	if err := vm.writeGeneration(); err != nil {
		return 0, err
	}
	tables, rsdp, err := acpi.Build(acpiAddr, acpiConfig(vm.cfg.VCPUs))
	if err != nil {
		return 0, err
	}
	return rsdp, vm.mem.write(acpiAddr, tables)
}

// writeGeneration puts a new random VMGenID where the guest's driver looks.
func (vm *VM) writeGeneration() error {
	var id [acpi.GenerationIDSize]byte
	rand.Read(id[:]) // never fails
	return acpi.WriteGenerationID(vm.mem, acpi.VMGenID{Addr: vmgenidAddr, GSI: vmgenidGSI}, id)
}

// run lets the vCPUs into the guest.
func (vm *VM) run() {
	for _, c := range vm.shell.vcpus {
		c.unpark(vm.stopped)
	}
}

// stop ends the machine with the first outcome it is given. It may be called
// on a vCPU's thread and does not wait.
func (vm *VM) stop(o Outcome) {
	if !vm.stopping.CompareAndSwap(false, true) {
		return
	}
	go func() {
		for _, c := range vm.shell.vcpus {
			c.park()
		}
		vm.outcome = vm.finish(o)
		vm.cfg.Logger.Info("machine ended", "outcome", vm.outcome.Err, "detail", vm.outcome.Detail)
		close(vm.ended)
	}()
}

// finish quiets the board and completes the outcome with the console's end.
func (vm *VM) finish(o Outcome) *Outcome {
	if vm.board != nil {
		// The last words may still be on their way to a slow console.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = vm.board.serial.Flush(ctx)
		vm.board.close()
	}
	o.Console = string(vm.console.Bytes())
	if errors.Is(o.Err, ErrReset) {
		o = o.orPanic()
	}
	return &o
}

func (vm *VM) stopped() bool { return vm.stopping.Load() }

// err is the outcome as an error, nil while the machine lives.
func (vm *VM) err() error {
	if !vm.stopped() {
		return nil
	}
	<-vm.ended
	return vm.outcome
}

// Wait returns when the machine has ended, with an [*Outcome] that says how,
// or when ctx has, with its error.
func (vm *VM) Wait(ctx context.Context) error {
	select {
	case <-vm.ended:
		return vm.err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Done is closed when the machine has ended.
func (vm *VM) Done() <-chan struct{} { return vm.ended }

// Close ends the machine if it still runs, and frees all it had: threads,
// descriptors, memory. Further calls do nothing. It is bounded: a guest
// cannot delay it, only a [Config] Trace or Console that blocks.
func (vm *VM) Close() error {
	vm.closing.Do(func() {
		vm.stop(Outcome{Err: ErrClosed})
		<-vm.ended
		vm.turn.take()
		defer vm.turn.give()
		vm.closed = vm.shell.close()
	})
	return vm.closed
}

// Timings says where the time went until the machine could be used.
func (vm *VM) Timings() Timings { return vm.timings }

// Stats counts the machine's exits since it was started or forked.
func (vm *VM) Stats() ExitStats {
	var s ExitStats
	for _, c := range vm.shell.vcpus {
		s.add(&c.counters)
	}
	for _, b := range []interface{ Unmatched() (uint64, uint64) }{&vm.board.pio, &vm.board.mmio} {
		r, w := b.Unmatched()
		s.UnmatchedRead += r
		s.UnmatchedWrite += w
	}
	return s
}

// String is a line for logs.
func (vm *VM) String() string {
	return fmt.Sprintf("machine of %d vCPUs, %d MiB", vm.cfg.VCPUs, vm.cfg.Memory>>20)
}

// ConsoleTail is the last 64 KiB that the guest wrote to its console since it
// was started or forked.
func (vm *VM) ConsoleTail() []byte { return vm.console.Bytes() }
