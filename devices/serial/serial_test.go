package serial

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkvm/forkvm/devices"
)

// counter is an interrupt line that counts its edges.
type counter struct{ n atomic.Int64 }

func (c *counter) Trigger() { c.n.Add(1) }

var _ devices.Interrupt = (*counter)(nil)

func in(d *Device, reg uint64) byte {
	p := make([]byte, 1)
	d.Read(reg, p)
	return p[0]
}

func out(d *Device, reg uint64, v byte) { d.Write(reg, []byte{v}) }

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func expect(t *testing.T, what string, got, want byte) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %#02x, want %#02x", what, got, want)
	}
}

func TestResetValues(t *testing.T) {
	d := New(Config{}, Env{})
	for reg, want := range []byte{0, 0, 0x01, 0, 0, 0x60, 0xb0, 0} {
		expect(t, "register "+string(rune('0'+reg)), in(d, uint64(reg)), want)
	}
}

// The steps by which Linux (drivers/tty/serial/8250/8250_port.c, autoconfig
// and serial8250_do_startup) tells a 16550A from nothing and from its kin.
func TestLinuxFindsA16550A(t *testing.T) {
	d := New(Config{}, Env{Interrupt: &counter{}})

	out(d, regIER, 0)
	expect(t, "IER after 0", in(d, regIER)&0x0f, 0)
	out(d, regIER, 0x0f)
	expect(t, "IER after 0x0f", in(d, regIER)&0x0f, 0x0f)
	out(d, regIER, 0x40)
	expect(t, "IER of no XScale", in(d, regIER), 0)

	out(d, regMCR, mcrLoop|mcrOUT2|mcrRTS)
	expect(t, "MSR in loopback", in(d, regMSR)&0xf0, msrDCD|msrCTS)
	out(d, regMCR, 0)

	out(d, regLCR, 0xbf) // EFR of a 16650 and later
	out(d, regIIR, 0)
	out(d, regLCR, 0)
	out(d, regIIR, fcrEnable)
	expect(t, "FIFO bits of IIR", in(d, regIIR)&0xc0, 0xc0)

	out(d, regIIR, fcrEnable|0x20)
	expect(t, "64-byte FIFO bit of IIR", in(d, regIIR)>>5, 6)

	// size_fifo: send 256 bytes to itself, count what arrived.
	out(d, regIIR, fcrEnable|fcrClearRx|0x04)
	out(d, regMCR, mcrLoop)
	for i := range 256 {
		out(d, regData, byte(i))
	}
	n := 0
	for in(d, regLSR)&lsrReady != 0 && n < 256 {
		expect(t, "looped byte", in(d, regData), byte(n))
		n++
	}
	if n != 16 {
		t.Errorf("FIFO holds %d bytes, want 16", n)
	}
	out(d, regMCR, 0)
	out(d, regIIR, 0)

	// A transmitter interrupt comes again each time it is enabled.
	for range 2 {
		out(d, regIER, ierTransmitter)
		expect(t, "IIR with THRE enabled", in(d, regIIR), iirTransmitter)
		expect(t, "IIR after it was read", in(d, regIIR), iirNone)
		out(d, regIER, 0)
	}
	for _, v := range []byte{0x55, 0xaa} {
		out(d, regSCR, v)
		expect(t, "scratch", in(d, regSCR), v)
	}
}

func TestDivisorLatch(t *testing.T) {
	d := New(Config{}, Env{})
	out(d, regIER, 0x05)
	out(d, regLCR, 0x83)
	out(d, regData, 0x0c)
	out(d, regIER, 0x80)
	expect(t, "DLL", in(d, regData), 0x0c)
	expect(t, "DLM", in(d, regIER), 0x80)
	out(d, regLCR, 0x03)
	expect(t, "IER behind the latch", in(d, regIER), 0x05)
	expect(t, "LCR", in(d, regLCR), 0x03)
	if s := d.Stats(); s.Transmitted != 0 {
		t.Error("the divisor was transmitted")
	}
}

func TestReadOnlyRegisters(t *testing.T) {
	d := New(Config{}, Env{})
	out(d, regLSR, 0)
	out(d, regMSR, 0)
	expect(t, "LSR", in(d, regLSR), 0x60)
	expect(t, "MSR", in(d, regMSR), 0xb0)
	out(d, regMCR, 0xff)
	expect(t, "MCR", in(d, regMCR), 0x1f)
}

func TestInterruptPriorities(t *testing.T) {
	irq := &counter{}
	d := New(Config{}, Env{Interrupt: irq})
	out(d, regIIR, fcrEnable|fcrClearRx)
	// Make every cause true at once, with nothing enabled.
	out(d, regMCR, mcrLoop)
	for range fifoSize + 1 { // one more than fits: overrun
		out(d, regData, 'x')
	}
	out(d, regMCR, mcrLoop|mcrRTS) // CTS changes
	if n := irq.n.Load(); n != 0 {
		t.Fatalf("%d interrupts with none enabled", n)
	}
	out(d, regIER, 0x0f)
	if n := irq.n.Load(); n != 1 {
		t.Fatalf("%d edges for four causes at once, want 1", n)
	}
	expect(t, "first", in(d, regIIR), iirFIFO|iirLineStatus)
	expect(t, "LSR", in(d, regLSR), lsrReady|lsrOverrun|lsrTransmitterEmpty)
	expect(t, "second", in(d, regIIR), iirFIFO|iirReceived)
	for range fifoSize {
		in(d, regData)
	}
	expect(t, "third", in(d, regIIR), iirFIFO|iirTransmitter)
	expect(t, "fourth", in(d, regIIR), iirFIFO|iirModemStatus)
	expect(t, "MSR", in(d, regMSR)&0x0f, msrDeltaCTS|msrDeltaDSR|msrDeltaDCD)
	expect(t, "last", in(d, regIIR), iirFIFO|iirNone)
	if n := irq.n.Load(); n != 1 {
		t.Errorf("%d edges although the pin stayed high throughout", n)
	}
}

// Reading IIR acknowledges the transmitter interrupt only if it reports it.
func TestReadingIIRForAnotherCauseKeepsTransmitterDue(t *testing.T) {
	d := New(Config{}, Env{})
	d.Input([]byte("a"))
	out(d, regIER, ierReceived|ierTransmitter)
	expect(t, "IIR", in(d, regIIR), iirReceived)
	in(d, regData)
	expect(t, "IIR", in(d, regIIR), iirTransmitter)
}

func TestModemStatusDeltas(t *testing.T) {
	d := New(Config{}, Env{})
	out(d, regMCR, mcrLoop) // CTS, DSR and DCD fall
	in(d, regMSR)
	expect(t, "deltas read once", in(d, regMSR), 0)
	out(d, regMCR, mcrLoop|mcrOUT1)
	expect(t, "RI rises", in(d, regMSR), msrRI)
	out(d, regMCR, mcrLoop)
	expect(t, "RI falls", in(d, regMSR), msrTrailingRI)
	out(d, regMCR, mcrLoop|mcrDTR|mcrOUT2)
	expect(t, "DSR and DCD rise", in(d, regMSR), msrDSR|msrDCD|msrDeltaDSR|msrDeltaDCD)
}

func TestReceive(t *testing.T) {
	irq := &counter{}
	d := New(Config{}, Env{Interrupt: irq})
	out(d, regIER, ierReceived)
	out(d, regIIR, fcrEnable|0x80) // trigger level 8
	text := strings.Repeat("0123456789", 10)
	if n := d.Input([]byte(text)); n != len(text) {
		t.Fatalf("Input took %d of %d bytes", n, len(text))
	}
	if n := irq.n.Load(); n != 1 {
		t.Errorf("%d edges, want 1", n)
	}
	expect(t, "IIR", in(d, regIIR), iirFIFO|iirReceived)
	var got []byte
	for in(d, regLSR)&lsrReady != 0 {
		if len(got) == len(text)-7 {
			expect(t, "IIR below the trigger level", in(d, regIIR), iirFIFO|iirTimeout)
		}
		got = append(got, in(d, regData))
	}
	if string(got) != text {
		t.Errorf("guest read %q", got)
	}
	expect(t, "IIR at the end", in(d, regIIR), iirFIFO|iirNone)
	d.Input([]byte("!"))
	if n := irq.n.Load(); n != 2 {
		t.Errorf("%d edges after new input, want 2", n)
	}
}

func TestReceiveWithoutFIFO(t *testing.T) {
	d := New(Config{}, Env{})
	d.Input([]byte("abc"))
	if s := d.Save(); string(s.Received) != "a" || string(s.Input) != "bc" {
		t.Errorf("chip holds %q, %q waits", s.Received, s.Input)
	}
	for _, c := range []byte("abc") {
		expect(t, "LSR", in(d, regLSR), lsrReady|lsrTransmitterEmpty)
		expect(t, "byte", in(d, regData), c)
	}
	expect(t, "LSR", in(d, regLSR), lsrTransmitterEmpty)
	expect(t, "byte of an empty receiver", in(d, regData), 0)
}

func TestClearReceiveFIFO(t *testing.T) {
	d := New(Config{}, Env{})
	out(d, regIIR, fcrEnable)
	d.Input([]byte("0123456789abcdefgh"))
	out(d, regIIR, fcrEnable|fcrClearRx)
	expect(t, "byte after the clear", in(d, regData), 'g') // the FIFO's 16 are gone
	out(d, regIIR, 0)                                      // so does leaving FIFO mode
	expect(t, "LSR", in(d, regLSR), lsrTransmitterEmpty)
}

func TestLoopbackIsCutOffFromTheHost(t *testing.T) {
	var host bytes.Buffer
	d := New(Config{}, Env{Output: &host})
	out(d, regMCR, mcrLoop)
	out(d, regData, 'x')
	d.Input([]byte("h"))
	expect(t, "looped byte", in(d, regData), 'x')
	expect(t, "LSR", in(d, regLSR), lsrTransmitterEmpty)
	out(d, regData, 'y')
	out(d, regData, 'z') // without FIFO the newer byte wins
	expect(t, "LSR", in(d, regLSR), lsrReady|lsrOverrun|lsrTransmitterEmpty)
	expect(t, "looped byte", in(d, regData), 'z')
	out(d, regMCR, 0)
	expect(t, "host's byte after loopback", in(d, regData), 'h')
	if err := d.Flush(deadline(t)); err != nil || host.Len() != 0 {
		t.Errorf("host got %q, %v", host.Bytes(), err)
	}
}

func TestWideAccess(t *testing.T) {
	d := New(Config{}, Env{})
	d.Write(6, []byte{1, 2, 3, 4}) // MSR, SCR and beyond
	expect(t, "scratch", in(d, regSCR), 2)
	p := make([]byte, 4)
	d.Read(6, p)
	if !bytes.Equal(p, []byte{0xb0, 2, 0xff, 0xff}) {
		t.Errorf("wide read: % x", p)
	}
}

func TestOutputArrivesInOrder(t *testing.T) {
	var host bytes.Buffer
	d := New(Config{OutputBuffer: 128}, Env{Output: &host})
	var want []byte
	for i := range 5000 {
		out(d, regData, byte(i))
		want = append(want, byte(i))
		if i%100 == 0 { // never more than fits
			if err := d.Flush(deadline(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := d.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(host.Bytes(), want) {
		t.Errorf("host got %d bytes, want %d in order", host.Len(), len(want))
	}
	if s := d.Stats(); s.Transmitted != 5000 || s.OutputDropped != 0 || s.OutputErrors != 0 {
		t.Errorf("%+v", s)
	}
}

// stuck is a writer that blocks until released.
type stuck struct {
	entered chan struct{}
	release chan struct{}
	once    sync.Once
	bytes.Buffer
}

func (s *stuck) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.entered) })
	<-s.release
	return s.Buffer.Write(p)
}

func TestStuckOutputDoesNotHoldUpTheGuest(t *testing.T) {
	host := &stuck{entered: make(chan struct{}), release: make(chan struct{})}
	d := New(Config{OutputBuffer: 100}, Env{Output: host})
	out(d, regData, 'a')
	<-host.entered
	for range 299 { // would hang here if Write waited for the host
		out(d, regData, 'b')
		expect(t, "LSR", in(d, regLSR), lsrTransmitterEmpty)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Flush(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Flush of a stuck output: %v", err)
	}
	d.Save() // does not wait either
	if s := d.Stats(); s.OutputDropped != 200 {
		t.Errorf("%d bytes dropped, want 200", s.OutputDropped)
	}
	close(host.release)
	if err := d.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if want := "a" + strings.Repeat("b", 99); host.String() != want {
		t.Errorf("host got %d bytes %q", host.Len(), host.String())
	}
}

type failing struct{ calls int }

func (f *failing) Write(p []byte) (int, error) {
	f.calls++
	if f.calls%2 == 0 {
		return 0, nil // short, without saying why
	}
	return 0, io.ErrClosedPipe
}

func TestFailingOutputIsCounted(t *testing.T) {
	host := &failing{}
	d := New(Config{}, Env{Output: host})
	for range 4 {
		out(d, regData, 'x')
		if err := d.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	if s := d.Stats(); s.OutputErrors != 4 || s.Transmitted != 4 {
		t.Errorf("%+v after 4 failed writes", s)
	}
}

func TestInputIsBounded(t *testing.T) {
	d := New(Config{InputBuffer: 100}, Env{})
	if n := d.Input(make([]byte, 1000)); n != 101 { // one is in the chip
		t.Errorf("took %d bytes, want 101", n)
	}
	if n := d.Input([]byte{1}); n != 0 {
		t.Errorf("a full buffer took %d", n)
	}
	in(d, regData)
	if n := d.Input([]byte{1, 2}); n != 1 {
		t.Errorf("took %d bytes after one was read, want 1", n)
	}
	if s := d.Stats(); s.Received != 102 {
		t.Errorf("%+v", s)
	}
}

func TestInputWriterWaitsForTheGuest(t *testing.T) {
	d := New(Config{InputBuffer: 64}, Env{})
	text := strings.Repeat("All that is gold does not glitter. ", 200)
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(d.InputWriter(), strings.NewReader(text))
		copied <- err
	}()
	var got []byte
	for ctx := deadline(t); len(got) < len(text) && ctx.Err() == nil; {
		if in(d, regLSR)&lsrReady != 0 {
			got = append(got, in(d, regData))
		}
	}
	if string(got) != text {
		t.Fatalf("guest read %d bytes of %d", len(got), len(text))
	}
	if err := <-copied; err != nil {
		t.Error(err)
	}
}

func TestWriteContextEnds(t *testing.T) { synctest.Test(t, testWriteContextEnds) }

func testWriteContextEnds(t *testing.T) {
	d := New(Config{InputBuffer: 10}, Env{})
	ctx, cancel := context.WithCancel(t.Context())
	type result struct {
		n   int
		err error
	}
	done := make(chan result)
	go func() {
		n, err := d.WriteContext(ctx, make([]byte, 50))
		done <- result{n, err}
	}()
	synctest.Wait() // it has filled the buffer
	cancel()
	if r := <-done; r.n != 11 || !errors.Is(r.err, context.Canceled) {
		t.Errorf("cancelled: %d, %v", r.n, r.err)
	}
	go func() {
		n, err := d.InputWriter().Write(make([]byte, 50))
		done <- result{n, err}
	}()
	synctest.Wait()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if r := <-done; r.n != 0 || !errors.Is(r.err, ErrClosed) {
		t.Errorf("closed: %d, %v", r.n, r.err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if n := d.Input([]byte("x")); n != 0 {
		t.Error("a closed device took input")
	}
}

func TestCloseDropsLaterOutput(t *testing.T) {
	var host bytes.Buffer
	d := New(Config{}, Env{Output: &host})
	out(d, regData, 'a')
	d.Close()
	out(d, regData, 'b')
	if err := d.Flush(deadline(t)); err != nil || host.String() != "a" {
		t.Errorf("host got %q, %v", host.String(), err)
	}
	if s := d.Stats(); s.OutputDropped != 1 {
		t.Errorf("%+v", s)
	}
}

func TestTransmitDoesNotAllocate(t *testing.T) {
	d := New(Config{}, Env{Output: io.Discard, Interrupt: &counter{}})
	out(d, regIER, ierTransmitter)
	p := []byte{'x'}
	if n := testing.AllocsPerRun(2000, func() {
		d.Write(regData, p)
		d.Read(regLSR, p)
		d.Read(regIIR, p)
	}); n != 0 {
		t.Errorf("%v allocations a byte", n)
	}
}

func TestConcurrentUse(t *testing.T) {
	d := New(Config{InputBuffer: 32, OutputBuffer: 32}, Env{Output: io.Discard, Interrupt: &counter{}})
	out(d, regIER, 0x0f)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for i := range 2000 {
				out(d, regData, byte(i))
				in(d, regIIR)
				in(d, regData)
			}
		})
	}
	wg.Go(func() {
		for range 500 {
			d.Input([]byte("hello"))
			Restore(Config{}, Env{}, d.Save())
		}
	})
	wg.Wait()
	if err := d.Flush(deadline(t)); err != nil {
		t.Error(err)
	}
}

func BenchmarkTransmit(b *testing.B) {
	d := New(Config{}, Env{Output: io.Discard, Interrupt: &counter{}})
	p := []byte{'x'}
	b.ReportAllocs()
	for b.Loop() {
		d.Write(regData, p)
	}
}
