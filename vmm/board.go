package vmm

import (
	"fmt"
	"sync"

	"github.com/forkvm/forkvm/devices"
	"github.com/forkvm/forkvm/devices/acpi"
	"github.com/forkvm/forkvm/devices/bus"
	"github.com/forkvm/forkvm/devices/i8042"
	"github.com/forkvm/forkvm/devices/rtc"
	"github.com/forkvm/forkvm/devices/serial"
	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/balloon"
	"github.com/forkvm/forkvm/devices/virtio/blk"
	"github.com/forkvm/forkvm/devices/virtio/rng"
	"github.com/forkvm/forkvm/devices/virtio/vsock"
	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/snapshot/disk"
)

// The virtio devices that every machine has, in the order of their addresses
// and interrupts. Its disks follow.
const (
	slotRNG = iota
	slotVsock
	slotBalloon
	numVirtio

	vmgenidGSI = firstGSI + numVirtio
)

func virtioAddr(slot int) uint64 { return mmioBase + uint64(slot)*mmioSize }

func virtioGSI(slot int) uint32 {
	if slot >= numVirtio {
		slot++ // VMGenID's lies between
	}
	return firstGSI + uint32(slot)
}

// board is the devices of a machine and the buses they sit on.
type board struct {
	pio, mmio bus.Bus

	serial  *serial.Device
	rtc     *rtc.Device
	power   *acpi.PowerDevice
	virtio  []*virtio.MMIO // by slot
	vsock   *vsock.Device
	balloon *balloon.Device
	disks   []*blk.Device
}

// boardState is the state of every device that has any.
type boardState struct {
	Serial  serial.State
	RTC     rtc.State
	Power   acpi.PowerState
	Virtio  [numVirtio]virtio.MMIOState
	Vsock   vsock.State
	Balloon balloon.State
	Disks   []diskState `json:",omitempty"`
}

// boardEnv is what the devices may do to the machine.
type boardEnv struct {
	cfg      *Config
	disks    []*disk.Disk
	vm       *kvm.VM
	memory   *memory
	console  *console
	reset    func()
	powerOff func()
}

func (e boardEnv) line(gsi uint32) devices.Interrupt { return &irqLine{vm: e.vm, gsi: gsi} }

func (e boardEnv) serial() serial.Env {
	return serial.Env{Output: e.console, Interrupt: e.line(serialGSI)}
}

func (e boardEnv) balloon() balloon.Env { return balloon.Env{Release: e.memory.release} }

// irqLine raises an edge with KVM_IRQ_LINE rather than through an irqfd: KVM
// hands an irqfd's interrupt to a work queue, so it could be in neither the
// device's state nor the chips' while a capture reads both.
type irqLine struct {
	vm  *kvm.VM
	gsi uint32
	mu  sync.Mutex // the two calls are an edge only if no other comes between
}

func (l *irqLine) Trigger() {
	l.mu.Lock()
	defer l.mu.Unlock()
	// It can only fail once the VM is closed, when nobody is there to see.
	_ = l.vm.IRQLine(l.gsi, 1)
	_ = l.vm.IRQLine(l.gsi, 0)
}

// newBoard makes the devices of a machine that boots.
func newBoard(env boardEnv) (*board, error) {
	b := &board{
		serial: serial.New(serial.Config{}, env.serial()),
		rtc:    rtc.New(rtc.Config{}, rtc.Env{}),
		power:  acpi.NewPowerDevice(acpi.PowerEnv{PowerOff: env.powerOff}),
	}
	var err error
	if b.vsock, err = vsock.New(vsock.Config{}); err != nil {
		return nil, err
	}
	if b.balloon, err = balloon.New(balloon.Config{}, env.balloon()); err != nil {
		return nil, err
	}
	all := []virtio.Device{slotRNG: rng.New(rng.Config{}), slotVsock: b.vsock, slotBalloon: b.balloon}
	for i := range env.disks {
		d, err := env.newBlk(i, nil)
		if err != nil {
			return nil, err
		}
		b.disks, all = append(b.disks, d), append(all, d)
	}
	for slot, dev := range all {
		b.virtio = append(b.virtio, virtio.NewMMIO(dev, env.memory, env.line(virtioGSI(slot))))
	}
	return b, b.wire(env)
}

// restoreBoard makes the devices of a machine that goes on. They are quiet
// until resume.
func restoreBoard(env boardEnv, st *boardState) (*board, error) {
	b := &board{
		serial: serial.Restore(serial.Config{}, env.serial(), st.Serial),
		rtc:    rtc.Restore(rtc.Config{}, rtc.Env{}, st.RTC),
		power:  acpi.RestorePowerDevice(acpi.PowerEnv{PowerOff: env.powerOff}, st.Power),
	}
	var err error
	if b.vsock, err = vsock.Restore(vsock.Config{}, st.Vsock); err != nil {
		return nil, err
	}
	if b.balloon, err = balloon.Restore(balloon.Config{}, env.balloon(), st.Balloon); err != nil {
		return nil, err
	}
	all := []virtio.Device{slotRNG: rng.Restore(rng.Config{}, rng.State{}), slotVsock: b.vsock, slotBalloon: b.balloon}
	states := st.Virtio[:]
	for i := range env.disks {
		d, err := env.newBlk(i, &st.Disks[i])
		if err != nil {
			return nil, err
		}
		b.disks, all, states = append(b.disks, d), append(all, d), append(states, st.Disks[i].Virtio)
	}
	for slot, dev := range all {
		t, err := virtio.RestoreMMIO(dev, env.memory, env.line(virtioGSI(slot)), states[slot])
		if err != nil {
			return nil, fmt.Errorf("vmm: virtio device %d: %w", slot, err)
		}
		b.virtio = append(b.virtio, t)
	}
	return b, b.wire(env)
}

// wire puts the devices on their buses.
func (b *board) wire(env boardEnv) error {
	for _, d := range []struct {
		base, size uint64
		dev        bus.Device
	}{
		{serialPort, serial.Ports, b.serial},
		{i8042Port, i8042.Ports, i8042.New(i8042.Config{}, i8042.Env{Reset: env.reset})},
		{rtcPort, rtc.Ports, b.rtc},
		{powerPort, acpi.PowerPorts, b.power},
	} {
		if err := b.pio.Insert(d.base, d.size, d.dev); err != nil {
			return fmt.Errorf("vmm: port %#x: %w", d.base, err)
		}
	}
	for slot, t := range b.virtio {
		if err := b.mmio.Insert(virtioAddr(slot), mmioSize, t); err != nil {
			return fmt.Errorf("vmm: virtio device %d: %w", slot, err)
		}
	}
	return nil
}

// quiesce returns when no device has anything in flight; until resume none
// touches guest memory or raises an interrupt.
func (b *board) quiesce() {
	for _, t := range b.virtio {
		t.Quiesce()
	}
}

func (b *board) resume() {
	b.serial.Resume()
	for _, t := range b.virtio {
		t.Resume()
	}
}

// save reads the state of quiet devices.
func (b *board) save() boardState {
	st := boardState{Serial: b.serial.Save(), RTC: b.rtc.Save(), Power: b.power.Save(), Vsock: b.vsock.Save(), Balloon: b.balloon.Save()}
	for slot := range st.Virtio {
		st.Virtio[slot] = b.virtio[slot].State()
	}
	for i, d := range b.disks {
		st.Disks = append(st.Disks, diskState{b.virtio[numVirtio+i].State(), d.Save()})
	}
	return st
}

// close cuts every connection into the guest. Afterwards no device touches
// the machine.
func (b *board) close() {
	for _, t := range b.virtio {
		t.Reset()
	}
	b.vsock.Close()
	b.serial.Close()
}

// acpiConfig describes the board to the guest.
func acpiConfig(vcpus, disks int) acpi.Config {
	c := acpi.Config{
		VCPUs:     vcpus,
		COM1:      &acpi.COM1{Port: serialPort, GSI: serialGSI},
		VMGenID:   &acpi.VMGenID{Addr: vmgenidAddr, GSI: vmgenidGSI},
		RTC:       true,
		PowerPort: powerPort,
	}
	for slot := range numVirtio + disks {
		c.VirtioMMIO = append(c.VirtioMMIO, acpi.VirtioMMIO{Base: virtioAddr(slot), Size: mmioSize, GSI: virtioGSI(slot)})
	}
	return c
}
