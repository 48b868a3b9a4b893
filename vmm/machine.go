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
	"github.com/forkvm/forkvm/snapshot"
)

// VM is a running machine. Make one with [Start] or [VM.Fork] and end it with
// [VM.Close]. It is safe for concurrent use; pauses, captures and forks of one
// machine take turns.
type VM struct {
	cfg     Config
	begin   time.Time // of the call that made the machine
	console *console
	shell   *shell
	msrs    *msrList
	info    client.Info // what the agent said when it was ready

	// Replaced by a reset.
	board atomic.Pointer[board]
	agent atomic.Pointer[client.Client]

	// Shorthands of the exit path; replaced while no vCPU runs.
	mem       *memory
	pio, mmio interface {
		Read(addr uint64, p []byte) bool
		Write(addr uint64, p []byte) bool
	}

	// turn is held by whoever pauses, captures, resets, resumes or closes.
	// Lock order: turn, disksMu, then the locks of vCPUs and devices.
	turn   turn
	paused bool          // guarded by turn: the user paused it
	origin *machineState // guarded by turn: what a reset goes back to; nil if it was booted
	pool   *shellPool    // guarded by turn: nil until the first capture

	// disksMu is held for writing, beside the turn, by who replaces disks, and for
	// reading by who looks at them without the turn.
	disksMu sync.RWMutex
	disks   disks // guarded by turn and disksMu
	closed  bool  // guarded by disksMu: Close was called

	footprint *footprint  // of children of this line of forks; nil for a bare guest
	recorded  atomic.Bool // this child's was looked at

	lineage atomic.Pointer[string] // id of the snapshot it descends from

	timingsMu sync.Mutex
	timings   Timings // guarded by timingsMu

	stopping atomic.Bool   // no vCPU enters the guest any more
	outcome  *Outcome      // set before ended is closed, then constant
	ended    chan struct{} // closed when all is quiet after a stop
	closing  sync.Once
}

// machineState is all of a machine but its memory. It is immutable.
type machineState struct {
	kvm   *kvmState
	board boardState
	msrs  *msrList
}

// Timings says where the time went until a machine could be used. A boot
// leaves the fields of a fork zero, and the reverse.
//
// All but the times of a phase count from the start of the call that made the
// machine, or reset it: of [Start], [VM.Fork], [Image.Start] or [VM.Reset].
type Timings struct {
	Create  time.Duration // phase: KVM's objects, memory mapped
	Load    time.Duration // phase: kernel and initramfs in memory, or snapshot verified
	Restore time.Duration // phase of a fork: state written to KVM and devices

	StateReady time.Duration // until the vCPUs could run
	FirstExit  time.Duration // until the guest came back to the host for the first time; 0 if it has not yet
	AgentReady time.Duration // until the agent's confirmation

	Pause   time.Duration // phase of a fork: how long the parent stood still
	Capture time.Duration // phase of a fork: the part of Pause that copied memory
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
	onDisk, err := openDisks(cfg.Disks)
	if err != nil {
		return nil, err
	}
	shell, err := buildShell(specOf(cfg, nil, nil))
	if err != nil {
		onDisk.release()
		return nil, err
	}
	table := snapshot.NewTable(cfg.Memory)
	defer table.Release()
	vm, err := newVM(cfg, begin, shell, table, onDisk)
	if err != nil {
		return nil, err
	}
	vm.time(func(t *Timings) { t.Create = time.Since(begin) })
	if err := vm.boot(ctx, cmdline); err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	return vm, nil
}

// newVM makes a machine of a shell that is unused, whose memory and disks are
// to be what the tables say. Its vCPUs are parked and its board is empty. It
// takes over the shell and the disks' tables, which on an error are freed.
func newVM(cfg Config, begin time.Time, shell *shell, table *snapshot.Table, onDisk tables) (*VM, error) {
	vm := &VM{
		cfg: cfg, begin: begin, console: newConsole(cfg.Console), shell: shell, mem: shell.mem,
		turn: newTurn(), ended: make(chan struct{}),
	}
	if err := shell.mem.mapTable(table); err != nil {
		inBackground(func() { shell.close() })
		onDisk.release()
		return nil, err
	}
	vm.disks = newDisks(onDisk, cfg.Scratch)
	for _, c := range shell.vcpus {
		c.exit, c.fail = vm.handleExit, func(c *vcpu, err error) {
			o := vm.crash(c, err.Error())
			o.Cause = err
			vm.stop(o)
		}
	}
	shell.vcpus[0].first = vm.firstExit
	return vm, nil
}

// firstExit runs on the first vCPU's thread.
func (vm *VM) firstExit() {
	vm.time(func(t *Timings) { t.FirstExit = time.Since(vm.begin) })
}

// time changes the timings.
func (vm *VM) time(f func(*Timings)) {
	vm.timingsMu.Lock()
	defer vm.timingsMu.Unlock()
	f(&vm.timings)
}

func (vm *VM) env() boardEnv {
	return boardEnv{
		cfg: &vm.cfg, disks: vm.disks.now,
		vm: vm.shell.vm, memory: vm.mem, console: vm.console,
		reset:    func() { vm.stop(Outcome{Err: ErrReset, Detail: "asked for by the guest"}) },
		powerOff: func() { vm.stop(Outcome{Err: ErrPowerOff}) },
	}
}

// setBoard gives the machine its devices, while no vCPU runs.
func (vm *VM) setBoard(b *board) {
	vm.board.Store(b)
	vm.pio, vm.mmio = &b.pio, &b.mmio
}

// boot loads the guest, lets it run and waits for its agent.
func (vm *VM) boot(ctx context.Context, cmdline string) error {
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
	vm.time(func(t *Timings) { t.Load = time.Since(start) })
	vm.cfg.Initramfs = nil // it is in the guest's memory; no child needs it
	vm.footprint = newFootprint(vm.cfg)
	if vm.cfg.Bare {
		vm.time(func(t *Timings) { t.StateReady = time.Since(vm.begin) })
		vm.run()
		return nil
	}
	ready, err := b.vsock.Listen(proto.ReadyPort)
	if err != nil {
		return fmt.Errorf("vmm: wait for the agent: %w", err)
	}
	defer ready.Close()
	vm.time(func(t *Timings) { t.StateReady = time.Since(vm.begin) })
	vm.run()
	if err := vm.awaitAgent(ctx, ready); err != nil {
		return fmt.Errorf("vmm: boot: %w", err)
	}
	if err := vm.renewIdentity(ctx); err != nil {
		return fmt.Errorf("vmm: boot: %w", err)
	}
	vm.time(func(t *Timings) { t.AgentReady = time.Since(vm.begin) })
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
	tables, rsdp, err := acpi.Build(acpiAddr, acpiConfig(vm.cfg.VCPUs, len(vm.cfg.Disks)))
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
	if b := vm.board.Load(); b != nil {
		// The last words may still be on their way to a slow console.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = b.serial.Flush(ctx)
		b.close()
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

// Close ends the machine if it still runs. When it returns no vCPU runs any
// more and every connection is cut; what the kernel has to free is freed in
// the background, see [WaitFreed]. Further calls do nothing. It is bounded: a
// guest cannot delay it, only a [Config] Trace or Console that blocks.
func (vm *VM) Close() error {
	vm.closing.Do(func() {
		vm.stop(Outcome{Err: ErrClosed})
		<-vm.ended
		vm.turn.take()
		defer vm.turn.give()
		if vm.pool != nil {
			vm.pool.leave()
		}
		vm.disksMu.Lock()
		disks := vm.disks
		vm.disks.now, vm.closed = nil, true
		vm.disksMu.Unlock()
		inBackground(func() {
			disks.close()
			if err := vm.shell.close(); err != nil {
				vm.cfg.Logger.Error("free a machine", "error", err)
			}
		})
	})
	return nil
}

// Timings says where the time went until the machine could be used.
func (vm *VM) Timings() Timings {
	vm.timingsMu.Lock()
	defer vm.timingsMu.Unlock()
	return vm.timings
}

// Stats counts the machine's exits since it was started or forked.
func (vm *VM) Stats() ExitStats {
	var s ExitStats
	for _, c := range vm.shell.vcpus {
		s.add(&c.counters)
	}
	board := vm.board.Load()
	for _, b := range []interface{ Unmatched() (uint64, uint64) }{&board.pio, &board.mmio} {
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
