// Package i8042 implements as much of the PC's keyboard controller as a
// machine without a keyboard needs: the command that resets the machine.
//
// It looks like a controller that can always take a command and whose output
// buffer never runs empty. Linux's reset path (reboot=k) waits only for "can
// take a command" and so goes ahead at once. Its keyboard driver tries to drain
// the buffer, gives up after 16 bytes and concludes that there is no
// controller; a controller that stayed silent would cost it half a second.
// A guest that believes the ACPI tables (FADT, IAPC_BOOT_ARCH bit 1 clear) does
// not even try.
package i8042

// BasePort and Ports are where a PC has the controller: data at the first
// port, status and command at the last.
const (
	BasePort = 0x60
	Ports    = 5
)

const (
	portData    = 0 // 0x60
	portCommand = 4 // 0x64

	// statusOutputFull is the only status bit ever set. Bit 1, input buffer
	// full, is what everybody waits on before sending a command.
	statusOutputFull = 0x01

	// ResetCommand pulses the reset line (8042 command "pulse output port").
	ResetCommand = 0xfe
)

// Config has no settings.
type Config struct{}

// Env is what the controller needs from its surroundings.
type Env struct {
	// Reset is called, on the thread of the vCPU that asked, each time the
	// guest asks for a reset. It must not block. Nil means that resets are
	// ignored.
	Reset func()
}

// State is empty: the controller remembers nothing.
type State struct{}

// Device is the controller. It is safe for concurrent use.
type Device struct {
	reset func()
}

// New returns a controller.
func New(_ Config, env Env) *Device {
	if env.Reset == nil {
		env.Reset = func() {}
	}
	return &Device{reset: env.Reset}
}

// Restore returns a controller; there is no state to go on from.
func Restore(cfg Config, env Env, _ State) *Device { return New(cfg, env) }

// Save returns the empty state.
func (d *Device) Save() State { return State{} }

// Read fills p with what the ports that start at off read as.
func (d *Device) Read(off uint64, p []byte) {
	for i := range p {
		switch off + uint64(i) {
		case portCommand:
			p[i] = statusOutputFull
		case portData:
			p[i] = 0
		default:
			p[i] = 0xff
		}
	}
}

// Write takes the bytes of p for the ports that start at off. All but the
// reset command are dropped.
func (d *Device) Write(off uint64, p []byte) {
	for i, v := range p {
		if off+uint64(i) == portCommand && v == ResetCommand {
			d.reset()
		}
	}
}
