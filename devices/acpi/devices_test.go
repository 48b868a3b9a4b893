package acpi

import (
	"errors"
	"testing"

	"github.com/forkvm/forkvm/devices/bus"
)

var _ bus.Device = (*PowerDevice)(nil)

func powered() (*PowerDevice, *int) {
	n := new(int)
	return NewPowerDevice(PowerEnv{PowerOff: func() { *n++ }}), n
}

func status(d *PowerDevice) byte {
	p := make([]byte, 1)
	d.Read(1, p)
	return p[0]
}

// The steps of acpi_hw_extended_sleep: clear the wake status, write type and
// enable at once.
func TestPowerOff(t *testing.T) {
	d, n := powered()
	d.Write(1, []byte{0x80})
	d.Write(0, []byte{5 << 2}) // without SLP_EN
	if *n != 0 {
		t.Fatal("switched off without being told")
	}
	d.Write(0, []byte{5<<2 | 0x20})
	if *n != 1 {
		t.Fatalf("PowerOff called %d times, want 1", *n)
	}
	if status(d) != 0 {
		t.Error("a machine switched off claims to have woken up")
	}
	NewPowerDevice(PowerEnv{}).Write(0, []byte{5<<2 | 0x20}) // no function: no panic
}

// A guest that asks for a sleep state we do not offer polls for the wake
// status; it must find it.
func TestOtherSleepStatesEndAtOnce(t *testing.T) {
	d, n := powered()
	for typ := range byte(8) {
		if typ == sleepTypeOff {
			continue
		}
		d.Write(0, []byte{typ<<2 | 0x20})
		if status(d) != 0x80 {
			t.Errorf("SLP_TYP %d: status %#x, want WAK_STS", typ, status(d))
		}
		r := RestorePowerDevice(PowerEnv{}, d.Save())
		if status(r) != 0x80 {
			t.Error("the restored device forgot")
		}
		d.Write(1, []byte{0x7f})
		if status(d) != 0x80 {
			t.Error("cleared by a zero")
		}
		d.Write(1, []byte{0x80})
		if status(d) != 0 {
			t.Error("not cleared by a one")
		}
	}
	if *n != 0 {
		t.Error("switched off")
	}
}

func TestPowerDeviceWideAccess(t *testing.T) {
	d, n := powered()
	d.Write(0, []byte{0x20, 0, 0, 0})
	p := make([]byte, 4)
	d.Read(0, p)
	if p[0] != 0 || p[1] != 0x80 || p[2] != 0xff || p[3] != 0xff || *n != 0 {
		t.Errorf("read % x, %d power-offs", p, *n)
	}
}

func FuzzPowerDevice(f *testing.F) {
	f.Add(uint64(0), []byte{0x34, 0x80})
	f.Add(^uint64(0), []byte{1, 0x34, 0x80})
	f.Fuzz(func(t *testing.T, off uint64, p []byte) {
		d, n := powered()
		want := 0
		for i, v := range p {
			if off+uint64(i) == 0 && v&0x3c == 0x34 {
				want++
			}
		}
		d.Write(off, p)
		if *n != want {
			t.Fatalf("%d power-offs, want %d", *n, want)
		}
		r := RestorePowerDevice(PowerEnv{}, d.Save())
		a, b := make([]byte, len(p)), make([]byte, len(p))
		d.Read(off, a)
		r.Read(off, b)
		if string(a) != string(b) {
			t.Fatalf("% x and restored % x", a, b)
		}
	})
}

// ram is guest memory at address 0.
type ram []byte

var errNotRAM = errors.New("not RAM")

func (r ram) Slice(gpa, n uint64) ([]byte, error) {
	if gpa > uint64(len(r)) || n > uint64(len(r))-gpa {
		return nil, errNotRAM
	}
	return r[gpa : gpa+n], nil
}

func TestGenerationID(t *testing.T) {
	m := make(ram, 64)
	g := VMGenID{Addr: 24}
	id := [GenerationIDSize]byte{1, 2, 3, 15: 16}
	if err := WriteGenerationID(m, g, id); err != nil {
		t.Fatal(err)
	}
	if [16]byte(m[24:40]) != id || m[23] != 0 || m[40] != 0 {
		t.Errorf("memory is % x", m)
	}
	if got, err := ReadGenerationID(m, g); got != id || err != nil {
		t.Errorf("read % x, %v", got, err)
	}
	for _, addr := range []uint64{4, 1} {
		if err := WriteGenerationID(m, VMGenID{Addr: addr}, id); !errors.Is(err, errAlign) {
			t.Errorf("at %d: %v", addr, err)
		}
	}
	for _, addr := range []uint64{56, 1<<64 - 8} {
		if err := WriteGenerationID(m, VMGenID{Addr: addr}, id); !errors.Is(err, errNotRAM) {
			t.Errorf("at %#x: %v", addr, err)
		}
		if _, err := ReadGenerationID(m, VMGenID{Addr: addr}); !errors.Is(err, errNotRAM) {
			t.Errorf("at %#x: %v", addr, err)
		}
	}
}
