package serial

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// machine is a port, its output and the one bit of an interrupt controller
// that belongs to it. Its migrate method is a capture and a restore.
type machine struct {
	port     *Device
	host     bytes.Buffer
	edge     bool // an interrupt is pending in the controller
	accesses int
	moveAt   int // the access before which the machine is moved
}

func newMachine(moveAt int) *machine {
	m := &machine{moveAt: moveAt}
	m.port = New(Config{}, m.env())
	return m
}

func (m *machine) Trigger() { m.edge = true }

func (m *machine) env() Env { return Env{Output: &m.host, Interrupt: m} }

func (m *machine) step(t *testing.T) {
	m.accesses++
	if m.accesses != m.moveAt {
		return
	}
	if err := m.port.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	m.port = Restore(Config{}, m.env(), m.port.Save())
}

func (m *machine) in(t *testing.T, reg uint64) byte {
	m.step(t)
	return in(m.port, reg)
}

func (m *machine) out(t *testing.T, reg uint64, v byte) {
	m.step(t)
	out(m.port, reg, v)
}

// send is a driver that does everything by interrupt: start by enabling the
// transmitter interrupt, write 16 bytes each time it comes, and wait for the
// next. It fails if the interrupt it waits for never comes.
func (m *machine) send(t *testing.T, text string) {
	m.out(t, regIIR, fcrEnable)
	m.out(t, regIER, ierTransmitter)
	for text != "" {
		if !m.edge {
			t.Fatalf("moved before access %d: no interrupt, %d bytes left", m.moveAt, len(text))
		}
		m.edge = false
		for m.in(t, regIIR)&0x3f == iirTransmitter {
			n := min(fifoSize, len(text))
			for _, c := range []byte(text[:n]) {
				m.out(t, regData, c)
			}
			text = text[n:]
			if text == "" {
				m.out(t, regIER, 0)
			}
		}
	}
	m.step(t)
}

// Scenario M19: wherever in its output a guest is captured, the output goes on
// after the restore.
func TestM19OutputGoesOnAfterRestore(t *testing.T) {
	const text = "a line of output that is longer than two FIFOs\n"
	straight := newMachine(0)
	straight.send(t, text)
	for k := 1; k <= straight.accesses; k++ {
		m := newMachine(k)
		m.send(t, text)
		if err := m.port.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if m.host.String() != text {
			t.Errorf("moved before access %d: host got %q", k, m.host.String())
		}
	}
}

// If the edge itself is lost on the way, Resume raises it again.
func TestResumeRaisesADueInterrupt(t *testing.T) {
	for _, c := range []struct {
		name  string
		state State
		want  int64
	}{
		{"transmitter", State{InterruptEnable: ierTransmitter, TransmitterDue: true}, 1},
		{"received", State{InterruptEnable: ierReceived, Received: []byte("x")}, 1},
		{"input only", State{InterruptEnable: ierReceived, Input: []byte("x")}, 1},
		{"not enabled", State{TransmitterDue: true, Received: []byte("x"), Overrun: true}, 0},
		{"nothing due", State{InterruptEnable: 0x0f}, 0},
	} {
		irq := &counter{}
		d := Restore(Config{}, Env{Interrupt: irq}, c.state)
		if irq.n.Load() != 0 {
			t.Errorf("%s: Restore raised an interrupt", c.name)
		}
		d.Resume()
		if n := irq.n.Load(); n != c.want {
			t.Errorf("%s: Resume raised %d interrupts, want %d", c.name, n, c.want)
		}
	}
	New(Config{}, Env{}).Resume() // no line: no panic
}

func TestStateRoundTrip(t *testing.T) {
	d := New(Config{}, Env{})
	out(d, regLCR, 0x80)
	d.Write(0, []byte{0x01, 0x02})
	out(d, regLCR, 0x1b)
	out(d, regIIR, fcrEnable|0x40)
	out(d, regMCR, mcrLoop|mcrOUT1)
	out(d, regMCR, mcrLoop)
	for range fifoSize + 1 {
		out(d, regData, 'L')
	}
	out(d, regMCR, mcrRTS)
	out(d, regSCR, 0x5a)
	out(d, regIER, 0x0d)
	d.Input([]byte("waiting"))
	s := d.Save()
	want := State{
		InterruptEnable: 0x0d, FIFOControl: 0x41, LineControl: 0x1b, ModemControl: mcrRTS,
		ModemDeltas: 0x0f, Scratch: 0x5a, DivisorLow: 1, DivisorHigh: 2, Overrun: true,
		TransmitterDue: true, Received: bytes.Repeat([]byte("L"), 16), Input: []byte("waiting"),
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("saved state (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(s, Restore(Config{}, Env{}, s).Save()); diff != "" {
		t.Errorf("restored state (-want +got):\n%s", diff)
	}
	// A state is a value: using the port does not change it.
	for range 4 {
		in(d, regData)
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("the saved state changed (-want +got):\n%s", diff)
	}
}

func TestHostileStateIsCut(t *testing.T) {
	s := State{
		InterruptEnable: 0xff, FIFOControl: 0xff, LineControl: 0xff, ModemControl: 0xff,
		ModemDeltas: 0xff, Received: make([]byte, 1000), Input: make([]byte, 1<<20),
	}
	got := Restore(Config{InputBuffer: 10}, Env{}, s).Save()
	if got.InterruptEnable != 0x0f || got.FIFOControl != 0xc1 || got.ModemControl != 0x1f ||
		got.ModemDeltas != 0x0f || len(got.Received) != 16 || len(got.Input) != 10 {
		t.Errorf("%+v", got)
	}
	s.FIFOControl = 0
	if n := len(Restore(Config{}, Env{}, s).Save().Received); n != 1 {
		t.Errorf("without FIFO %d bytes were received", n)
	}
}

// FuzzAccess runs any script of guest accesses and host input on a port and,
// from the middle on, on one restored from it. Neither panics, and guest and
// interrupt controller see the same of both.
func FuzzAccess(f *testing.F) {
	f.Add([]byte{2, 0x01, 1, 0x02, 0x10, 'x', 0x82, 0, 0x10, 'y', 0x85, 0})
	f.Add([]byte{4, 0x1f, 0, 1, 0, 2, 1, 0x0f, 0x82, 0, 0x80, 0, 0x40, 30, 0x80, 0, 4, 0})
	f.Add([]byte{3, 0x83, 0, 7, 1, 9, 3, 3, 0x40, 200, 2, 0x47, 0x80, 0, 0x8f, 0xff})
	f.Fuzz(func(t *testing.T, script []byte) {
		cfg := Config{InputBuffer: 40, OutputBuffer: 8}
		irqA, irqB := &counter{}, &counter{}
		a := New(cfg, Env{Interrupt: irqA})
		var b *Device
		for i := 0; i+1 < len(script); i += 2 {
			if i >= len(script)/2 && b == nil {
				b = Restore(cfg, Env{Interrupt: irqB}, a.Save())
				irqA.n.Store(0)
			}
			ra := apply(a, script[i], script[i+1])
			if b == nil {
				continue
			}
			if rb := apply(b, script[i], script[i+1]); !bytes.Equal(ra, rb) {
				t.Fatalf("access %d: % x and % x", i/2, ra, rb)
			}
			s := a.Save()
			if !reflect.DeepEqual(s, b.Save()) {
				t.Fatalf("access %d: states differ:\n%s", i/2, cmp.Diff(s, b.Save()))
			}
			if irqA.n.Load() != irqB.n.Load() {
				t.Fatalf("access %d: %d and %d edges", i/2, irqA.n.Load(), irqB.n.Load())
			}
			if len(s.Received) > fifoSize || len(s.Input) > 40 {
				t.Fatalf("%d received, %d waiting", len(s.Received), len(s.Input))
			}
		}
	})
}

// apply performs one step of a script: bit 7 of op reads, bit 6 is host input,
// bits 4 and 5 widen the access, the low bits are the offset.
func apply(d *Device, op, arg byte) []byte {
	off := uint64(op & 0x0f)
	p := bytes.Repeat([]byte{arg}, 1+int(op>>4&3))
	switch {
	case op&0x80 != 0:
		d.Read(off, p)
	case op&0x40 != 0:
		return []byte{byte(d.Input(bytes.Repeat([]byte{arg}, int(arg))))}
	case arg == 0xff && off == 0x0f:
		d.Write(^uint64(0), p) // offsets that wrap
	default:
		d.Write(off, p)
	}
	return p
}
