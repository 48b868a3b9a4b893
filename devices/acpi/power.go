package acpi

import "sync"

// PowerPorts is how many I/O ports a [PowerDevice] has.
const PowerPorts = 2

// Offsets and bits, section 4.8.3.7.
const (
	powerControl = 0 // SLEEP_CONTROL_REG
	powerStatus  = 1 // SLEEP_STATUS_REG

	sleepEnable    = 1 << 5
	sleepTypeShift = 2
	sleepTypeMask  = 7
	wakeStatus     = 1 << 7

	// sleepTypeOff is the SLP_TYP of soft-off, as the DSDT says.
	sleepTypeOff = 5
)

// PowerEnv is what a [PowerDevice] needs from its surroundings.
type PowerEnv struct {
	// PowerOff is called, on the thread of the vCPU that asked, each time the
	// guest switches the machine off. It must not block. Nil ignores it.
	PowerOff func()
}

// PowerState is everything about a [PowerDevice] that a guest can change.
type PowerState struct {
	Awake bool // WAK_STS
}

// PowerDevice is the sleep control and sleep status register of
// hardware-reduced ACPI. It is safe for concurrent use.
type PowerDevice struct {
	powerOff func()

	mu    sync.Mutex
	state PowerState // guarded by mu
}

// NewPowerDevice returns the registers as after power-on.
func NewPowerDevice(env PowerEnv) *PowerDevice {
	return RestorePowerDevice(env, PowerState{})
}

// RestorePowerDevice returns registers that go on from state.
func RestorePowerDevice(env PowerEnv, state PowerState) *PowerDevice {
	if env.PowerOff == nil {
		env.PowerOff = func() {}
	}
	return &PowerDevice{powerOff: env.PowerOff, state: state}
}

// Save returns the state of the registers.
func (d *PowerDevice) Save() PowerState {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// Read fills p from the registers that start at off. The control register
// reads as zero, what does not exist as ones.
func (d *PowerDevice) Read(off uint64, p []byte) {
	awake := d.Save().Awake
	for i := range p {
		switch off + uint64(i) {
		case powerControl:
			p[i] = 0
		case powerStatus:
			p[i] = 0
			if awake {
				p[i] = wakeStatus
			}
		default:
			p[i] = 0xff
		}
	}
}

// Write writes the bytes of p to the registers that start at off.
func (d *PowerDevice) Write(off uint64, p []byte) {
	for i, v := range p {
		switch off + uint64(i) {
		case powerControl:
			d.control(v)
		case powerStatus:
			if v&wakeStatus != 0 { // write one to clear
				d.setAwake(false)
			}
		}
	}
}

// control acts on a write of the control register. A sleep state that the DSDT
// does not offer ends at once: the guest, which polls for the wake status,
// would otherwise do so for ever.
func (d *PowerDevice) control(v uint8) {
	switch {
	case v&sleepEnable == 0:
	case v>>sleepTypeShift&sleepTypeMask == sleepTypeOff:
		d.powerOff()
	default:
		d.setAwake(true)
	}
}

func (d *PowerDevice) setAwake(awake bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state.Awake = awake
}
