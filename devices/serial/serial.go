// Package serial implements the National Semiconductor PC16550D UART, better
// known as 16550A: eight byte-wide registers, FIFOs of 16 bytes, interrupts.
//
// There is no baud rate: a transmitted byte is gone at once and the transmitter
// is always empty. What the guest sends waits in a bounded buffer for a writer
// on the host, so that a slow or failing writer never holds up a vCPU: bytes
// that find the buffer full are dropped and counted. What the host sends waits
// in another one until the guest takes it.
//
// As on the chip, a guest that clears its receive FIFO (all drivers do when
// they open the port) loses the up to 16 bytes in it.
//
// The interrupt is that of the chip's INTR pin, one trigger for each time it
// rises, and is not gated by the OUT2 line: guests exist that never set it.
package serial

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/forkvm/forkvm/devices"
)

// Ports is the number of registers, and COM1 where a PC has the first port.
const (
	Ports   = 8
	COM1    = 0x3f8
	COM1IRQ = 4
)

const (
	fifoSize      = 16
	defaultBuffer = 64 << 10
)

// ErrClosed is returned for input to a closed device.
var ErrClosed = errors.New("serial: device closed")

// Config is what the port is made with.
type Config struct {
	// InputBuffer and OutputBuffer are the bytes that may wait for the guest
	// and for the host; 0 means 64 KiB.
	InputBuffer, OutputBuffer int
}

// Env is what the port needs from its surroundings.
type Env struct {
	// Output gets what the guest sends, in order, in calls that never
	// overlap, on a goroutine that exists while there is something to write.
	// It may block. Nil discards.
	Output io.Writer
	// Interrupt is the port's line; nil means that it is not connected.
	Interrupt devices.Interrupt
}

// Stats counts bytes and mishaps since the device was made.
type Stats struct {
	Received      uint64 // bytes taken from the host
	Transmitted   uint64 // bytes the guest sent to the host
	OutputDropped uint64 // of those, bytes that found the buffer full
	OutputErrors  uint64 // writes that Output failed; their bytes are lost
}

// Device is one port. It is safe for concurrent use.
type Device struct {
	interrupt devices.Interrupt
	output    io.Writer
	drain     func()        // d.writeOutput, bound once so that starting it allocates nothing
	closed    chan struct{} // closed by Close

	mu    sync.Mutex
	regs  registers // the chip; guarded by mu, like all below
	line  bool      // the INTR pin
	stats Stats

	input ring          // from the host, not yet in the receive FIFO
	space chan struct{} // closed when input gets space; nil if nobody waits

	out      ring          // from the guest, not yet written to output
	draining bool          // a goroutine runs writeOutput
	progress chan struct{} // closed when some of out is written; nil if nobody waits
	queued   uint64        // bytes ever put into out
	written  uint64        // bytes ever taken from out
}

// New returns a port after a master reset.
func New(cfg Config, env Env) *Device {
	return Restore(cfg, env, State{})
}

// Close makes all input fail with [ErrClosed], waiting input included, and
// drops what the guest sends from now on. Output that waits is still written;
// [Device.Flush] before Close to wait for it. Close is idempotent and does not
// block.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isClosed() {
		close(d.closed)
	}
	return nil
}

func (d *Device) isClosed() bool {
	select {
	case <-d.closed:
		return true
	default:
		return false
	}
}

// Stats returns the counters.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

// Read fills p from the registers that start at off. Bytes beyond the last
// register read as ones.
func (d *Device) Read(off uint64, p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range p {
		p[i] = 0xff
		if r := off + uint64(i); r < Ports {
			p[i] = d.regs.read(uint8(r))
		}
	}
	d.receive()
	d.updateLine()
}

// Write writes the bytes of p to the registers that start at off. Bytes beyond
// the last register are dropped.
func (d *Device) Write(off uint64, p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, v := range p {
		r := off + uint64(i)
		if r >= Ports {
			continue
		}
		if d.regs.write(uint8(r), v) {
			d.transmit(v)
		}
	}
	d.receive()
	d.updateLine()
}

// Resume raises the interrupt again if one is due. The machine calls it on a
// restored device once the interrupt controllers have their restored state:
// an edge too many costs the guest one look at the chip, an edge too few would
// silence the port for good.
func (d *Device) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.line {
		d.trigger()
	}
}

// updateLine brings the INTR pin up to date. Trigger is called with mu held so
// that a state saved with the pin high has its edge already delivered.
func (d *Device) updateLine() {
	line := d.regs.pending() != iirNone
	if line && !d.line {
		d.trigger()
	}
	d.line = line
}

func (d *Device) trigger() {
	if d.interrupt != nil {
		d.interrupt.Trigger()
	}
}

// receive moves bytes from the host into the receive FIFO as far as there is
// room. In loopback the receiver is not connected to the outside.
func (d *Device) receive() {
	if d.input.len() == 0 || d.regs.loopback() {
		return
	}
	moved := false
	for d.input.len() > 0 && d.regs.rx.len() < d.regs.rxDepth() {
		d.regs.rx.push(d.input.pop())
		moved = true
	}
	if moved && d.space != nil {
		close(d.space)
		d.space = nil
	}
}

// transmit queues v for the host.
func (d *Device) transmit(v byte) {
	d.stats.Transmitted++
	if d.output == nil {
		return
	}
	if d.isClosed() || !d.out.push(v) {
		d.stats.OutputDropped++
		return
	}
	d.queued++
	if !d.draining {
		d.draining = true
		go d.drain()
	}
}

// writeOutput writes to the host until nothing is left, then ends.
func (d *Device) writeOutput() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.out.len() > 0 {
		// The guest only ever appends, so chunk stays as it is while unlocked.
		chunk := d.out.front()
		d.mu.Unlock()
		n, err := d.output.Write(chunk)
		d.mu.Lock()
		if err != nil || n < len(chunk) {
			d.stats.OutputErrors++
		}
		d.out.drop(len(chunk))
		d.written += uint64(len(chunk))
		if d.progress != nil {
			close(d.progress)
			d.progress = nil
		}
	}
	d.draining = false
}

// Flush waits until everything the guest sent before the call was handed to
// Output and Output returned.
func (d *Device) Flush(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for target := d.queued; d.written < target; {
		if err := d.wait(ctx, &d.progress, nil); err != nil {
			return err
		}
	}
	return nil
}

// Input offers p to the guest and returns how many bytes were taken: as many
// as fit into the buffer, none after Close. It does not block.
func (d *Device) Input(p []byte) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.take(p)
}

func (d *Device) take(p []byte) int {
	if d.isClosed() {
		return 0
	}
	taken := 0
	for {
		n := d.input.write(p[taken:])
		if n == 0 {
			break
		}
		taken += n
		d.receive()
	}
	d.stats.Received += uint64(taken)
	d.updateLine()
	return taken
}

// WriteContext gives all of p to the guest, waiting for space as long as ctx
// and the device live. It returns the number of bytes taken; if that is not
// len(p), the error is ctx's or [ErrClosed].
func (d *Device) WriteContext(ctx context.Context, p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := 0
	for {
		if d.isClosed() {
			return taken, ErrClosed
		}
		taken += d.take(p[taken:])
		if taken == len(p) {
			return taken, nil
		}
		if err := d.wait(ctx, &d.space, d.closed); err != nil {
			return taken, err
		}
	}
}

// InputWriter returns a writer of input to the guest that blocks while there
// is no space, and fails with [ErrClosed] after Close.
func (d *Device) InputWriter() io.Writer { return inputWriter{d} }

type inputWriter struct{ d *Device }

func (w inputWriter) Write(p []byte) (int, error) {
	return w.d.WriteContext(context.Background(), p)
}

// wait unlocks mu until *event is closed or stop is, and fails if ctx ends
// first. *event is made if need be: only waiting costs an allocation.
func (d *Device) wait(ctx context.Context, event *chan struct{}, stop <-chan struct{}) error {
	if *event == nil {
		*event = make(chan struct{})
	}
	happened := *event
	d.mu.Unlock()
	defer d.mu.Lock()
	select {
	case <-happened:
	case <-stop:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
