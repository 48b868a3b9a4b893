// Package rtc implements the MC146818 real-time clock and its CMOS memory as a
// PC has them at I/O ports 0x70 (index) and 0x71 (data), with the century at
// 0x32.
//
// The time is the host's at the moment of the read, in UTC: a machine restored
// a week later reads the time it is now. A guest that sets the clock does not
// change it; what it writes to the time registers is dropped.
//
// The update-in-progress flag is never set, so nobody waits for it. Alarm,
// periodic and update interrupts are not offered: their enable bits can be
// stored but nothing comes of them, and register C is always zero. Tables that
// describe the clock therefore give it no interrupt.
package rtc

import (
	"sync"
	"time"
)

// BasePort and Ports are where a PC has the clock.
const (
	BasePort = 0x70
	Ports    = 2
)

// CenturyRegister is the CMOS register that holds the century. ACPI tells it
// to the guest (FADT, CENTURY).
const CenturyRegister = 0x32

// Offsets from the base port.
const (
	portIndex = 0
	portData  = 1
)

// Registers, MC146818 data sheet, "Address Map".
const (
	regSeconds = 0x00
	regMinutes = 0x02
	regHours   = 0x04
	regWeekday = 0x06
	regDay     = 0x07
	regMonth   = 0x08
	regYear    = 0x09
	regA       = 0x0a
	regB       = 0x0b
	regC       = 0x0c
	regD       = 0x0d

	numRegisters = 128
)

const (
	aUpdateInProgress = 0x80
	aDefault          = 0x26 // 32.768 kHz time base, 1024 Hz rate

	b24Hour = 0x02
	bBinary = 0x04

	dValid = 0x80 // VRT: the battery is good

	hourPM = 0x80 // in 12-hour mode
)

// Config has no settings.
type Config struct{}

// Env is what the clock needs from its surroundings.
type Env struct {
	// Now tells the time; nil means [time.Now]. It must not block.
	Now func() time.Time
}

// State is everything about the clock that a guest can change. The time is not
// part of it.
type State struct {
	Index     uint8
	Registers [numRegisters]uint8
}

// Device is the clock. It is safe for concurrent use.
type Device struct {
	now func() time.Time

	mu    sync.Mutex
	state State // guarded by mu
}

// New returns a clock in 24-hour BCD mode with zeroed memory.
func New(cfg Config, env Env) *Device {
	var s State
	s.Registers[regA] = aDefault
	s.Registers[regB] = b24Hour
	return Restore(cfg, env, s)
}

// Restore returns a clock that goes on from state.
func Restore(_ Config, env Env, state State) *Device {
	now := env.Now
	if now == nil {
		now = time.Now
	}
	state.Index &= numRegisters - 1
	return &Device{now: now, state: state}
}

// Save returns the state of the clock.
func (d *Device) Save() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// Read fills p with what the ports that start at off read as. The index port
// cannot be read on a PC and reads as ones.
func (d *Device) Read(off uint64, p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range p {
		p[i] = 0xff
		if off+uint64(i) == portData {
			p[i] = d.readRegister(d.state.Index)
		}
	}
}

// Write writes the bytes of p to the ports that start at off.
func (d *Device) Write(off uint64, p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, v := range p {
		switch off + uint64(i) {
		case portIndex:
			d.state.Index = v & (numRegisters - 1) // bit 7 masks NMIs: not ours
		case portData:
			d.writeRegister(d.state.Index, v)
		}
	}
}

func (d *Device) readRegister(r uint8) uint8 {
	switch r {
	case regSeconds, regMinutes, regHours, regWeekday, regDay, regMonth, regYear, CenturyRegister:
		return d.readTime(r)
	case regA:
		return d.state.Registers[regA] &^ aUpdateInProgress
	case regC:
		return 0
	case regD:
		return dValid
	}
	return d.state.Registers[r]
}

func (d *Device) writeRegister(r, v uint8) {
	switch r {
	case regSeconds, regMinutes, regHours, regWeekday, regDay, regMonth, regYear, CenturyRegister:
		// The host keeps the time.
	case regC, regD:
		// Read-only.
	case regA:
		d.state.Registers[regA] = v &^ aUpdateInProgress
	default:
		d.state.Registers[r] = v
	}
}

// readTime returns one part of the present time in the format register B asks
// for.
func (d *Device) readTime(r uint8) uint8 {
	t := d.now().UTC()
	switch r {
	case regSeconds:
		return d.encode(t.Second())
	case regMinutes:
		return d.encode(t.Minute())
	case regHours:
		return d.encodeHour(t.Hour())
	case regWeekday:
		return d.encode(int(t.Weekday()) + 1) // Sunday is 1
	case regDay:
		return d.encode(t.Day())
	case regMonth:
		return d.encode(int(t.Month()))
	case regYear:
		return d.encode(t.Year() % 100)
	default:
		return d.encode(t.Year() / 100)
	}
}

func (d *Device) encodeHour(hour int) uint8 {
	if d.state.Registers[regB]&b24Hour != 0 {
		return d.encode(hour)
	}
	h12 := d.encode((hour+11)%12 + 1)
	if hour >= 12 {
		h12 |= hourPM
	}
	return h12
}

// encode returns v, 0 to 99, in binary or BCD.
func (d *Device) encode(v int) uint8 {
	if d.state.Registers[regB]&bBinary != 0 {
		return uint8(v)
	}
	return uint8(v/10<<4 | v%10)
}
