package rtc

import (
	"testing"
	"time"
)

func at(t time.Time) Env { return Env{Now: func() time.Time { return t }} }

func peek(d *Device, reg uint8) uint8 {
	d.Write(0, []byte{reg})
	p := make([]byte, 1)
	d.Read(1, p)
	return p[0]
}

func poke(d *Device, reg, v uint8) {
	d.Write(0, []byte{reg})
	d.Write(1, []byte{v})
}

// The time zone of the host must not reach the guest.
var evening = time.Date(2026, time.November, 29, 21, 47, 58, 0, time.FixedZone("east", 2*3600))

func TestTimeFormats(t *testing.T) {
	for _, c := range []struct {
		name string
		b    uint8
		at   time.Time
		want map[uint8]uint8
	}{
		{"24h BCD", 0x02, evening, map[uint8]uint8{
			0: 0x58, 2: 0x47, 4: 0x19, 6: 0x01, 7: 0x29, 8: 0x11, 9: 0x26, 0x32: 0x20}},
		{"24h binary", 0x06, evening, map[uint8]uint8{
			0: 58, 2: 47, 4: 19, 6: 1, 7: 29, 8: 11, 9: 26, 0x32: 20}},
		{"12h BCD", 0x00, evening, map[uint8]uint8{4: 0x87}},
		{"12h binary", 0x04, evening, map[uint8]uint8{4: 0x87}},
		{"12h BCD eleven", 0x00, evening.Add(4 * time.Hour), map[uint8]uint8{4: 0x91}},
		{"12h midnight is 12 am", 0x00, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), map[uint8]uint8{4: 0x12}},
		{"12h noon is 12 pm", 0x00, time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), map[uint8]uint8{4: 0x92}},
		{"Saturday", 0x02, time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC), map[uint8]uint8{6: 7}},
		{"last century", 0x02, time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC), map[uint8]uint8{9: 0x99, 0x32: 0x19}},
	} {
		d := New(Config{}, at(c.at))
		poke(d, regB, c.b)
		for reg, want := range c.want {
			if got := peek(d, reg); got != want {
				t.Errorf("%s: register %#x is %#x, want %#x", c.name, reg, got, want)
			}
		}
	}
}

// Linux (mc146818_avoid_UIP) reads the seconds, waits for UIP to be clear,
// reads the rest and starts again if the seconds changed. With a clock that
// stands still it must get through on the first try.
func TestUpdateInProgressNeverSeen(t *testing.T) {
	d := New(Config{}, at(evening))
	for _, a := range []uint8{0xff, 0x26, 0x80} {
		poke(d, regA, a)
		if got := peek(d, regA); got != a&0x7f {
			t.Errorf("register A is %#x after %#x", got, a)
		}
	}
	s := d.Save()
	s.Registers[regA] = 0x80 // a state nobody honest saved
	if got := peek(Restore(Config{}, at(evening), s), regA); got&0x80 != 0 {
		t.Error("a restored state can make UIP stick")
	}
}

func TestRegisters(t *testing.T) {
	d := New(Config{}, at(evening))
	for reg, want := range map[uint8]uint8{regA: 0x26, regB: 0x02, regC: 0, regD: 0x80} {
		if got := peek(d, reg); got != want {
			t.Errorf("register %#x is %#x after power-on, want %#x", reg, got, want)
		}
	}
	for _, reg := range []uint8{regC, regD, regSeconds, regYear, CenturyRegister} {
		before := peek(d, reg)
		poke(d, reg, 0x55)
		if got := peek(d, reg); got != before {
			t.Errorf("register %#x took a write", reg)
		}
	}
	for _, reg := range []uint8{1, 3, 5, 0x0e, 0x31, 0x33, 0x7f} {
		poke(d, reg, reg^0xa5)
	}
	for _, reg := range []uint8{1, 3, 5, 0x0e, 0x31, 0x33, 0x7f} {
		if got := peek(d, reg); got != reg^0xa5 {
			t.Errorf("register %#x is %#x, want %#x", reg, got, reg^0xa5)
		}
	}
	// Bit 7 of the index is the NMI mask.
	if got := peek(d, 0x80|0x7f); got != 0x7f^0xa5 {
		t.Errorf("register 0x7f with NMIs masked is %#x", got)
	}
}

func TestWideAccessReachesBothPorts(t *testing.T) {
	d := New(Config{}, at(evening))
	d.Write(0, []byte{0x40, 0x99}) // out of a 16-bit register to 0x70
	p := make([]byte, 4)
	d.Read(0, p)
	if p[0] != 0xff || p[1] != 0x99 || p[2] != 0xff || p[3] != 0xff {
		t.Errorf("read % x, want ff 99 ff ff", p)
	}
}

func TestRestoredClockReadsThePresent(t *testing.T) {
	d := New(Config{}, at(evening))
	poke(d, regB, 0x06)
	poke(d, 0x50, 0x77)
	d.Write(0, []byte{0x50})
	r := Restore(Config{}, at(evening.Add(26*time.Hour)), d.Save())
	p := make([]byte, 1)
	if r.Read(1, p); p[0] != 0x77 {
		t.Errorf("index or memory lost: %#x", p[0])
	}
	if got := peek(r, regDay); got != 30 {
		t.Errorf("the restored guest reads day %d, want 30", got)
	}
	// What the copy does is invisible to the original.
	poke(r, 0x50, 1)
	if got := peek(d, 0x50); got != 0x77 {
		t.Error("original and restored clock share memory")
	}
}

func TestDefaultClockIsTheHosts(t *testing.T) {
	d := New(Config{}, Env{})
	poke(d, regB, 0x06)
	y := time.Now().UTC().Year()
	got := int(peek(d, CenturyRegister))*100 + int(peek(d, regYear))
	if got != y && got != time.Now().UTC().Year() {
		t.Errorf("year %d, want %d", got, y)
	}
}

// FuzzAccess runs any accesses on a clock and on one restored from it half-way:
// neither panics and both answer alike.
func FuzzAccess(f *testing.F) {
	f.Add([]byte{0, 0, 0x0b, 1, 1, 0x06, 0, 0, 0x04, 1, 1, 0xff}, uint64(0))
	f.Add([]byte{0, 2, 3, 4, 5, 6}, ^uint64(0))
	f.Fuzz(func(t *testing.T, script []byte, bias uint64) {
		a := New(Config{}, at(evening))
		b := a
		for i := 0; i+2 < len(script); i += 3 {
			if i >= len(script)/2 && b == a {
				b = Restore(Config{}, at(evening), a.Save())
			}
			off := uint64(script[i]&3) + bias
			pa, pb := make([]byte, script[i+1]&7), make([]byte, script[i+1]&7)
			for j := range pa {
				pa[j], pb[j] = script[i+2]+byte(j), script[i+2]+byte(j)
			}
			if script[i]&4 != 0 {
				a.Read(off, pa)
				b.Read(off, pb)
			} else {
				a.Write(off, pa)
				if b != a {
					b.Write(off, pb)
				}
			}
			if string(pa) != string(pb) || a.Save() != b.Save() {
				t.Fatalf("after %d accesses the restored clock differs", i/3)
			}
		}
	})
}
