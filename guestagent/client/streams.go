package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// sendChunk is how much input one frame carries at most.
const sendChunk = 32 << 10

// streams are the caller's ends of a command's standard streams.
type streams struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

// run moves a command's streams until it ended, and returns how, and whether the
// connection is free for another operation. It does not wait for a stdin whose
// Read still blocks then: the command has ended without it.
func (c *conn) run(s streams) (free bool, _ error) {
	win := &window{left: proto.StdinWindow}
	win.changed.L = &win.mu
	input := make(chan error, 1)
	if s.stdin != nil {
		go func() { input <- c.send(s.stdin, win) }()
	}
	exit, outErr, err := c.receive(s, win)
	win.close()
	if err != nil {
		return false, err
	}
	free = s.stdin == nil // or there may be more input and credit on their way
	lost := exit.LostStdout + exit.LostStderr
	if err := exitError(exit); err != nil {
		err.LostOutput = lost
		return free, err
	}
	if lost > 0 {
		outErr = errors.Join(outErr, fmt.Errorf("%w: %d bytes", ErrOutputLost, lost))
	}
	if outErr != nil {
		return free, outErr
	}
	select {
	case err := <-input:
		return free, err
	default:
	}
	return free, nil
}

// send moves input to the command, and says when it ends. It returns what went
// wrong with reading it; of the connection's end receive tells.
func (c *conn) send(r io.Reader, win *window) error {
	buf := make([]byte, sendChunk)
	for {
		n, err := r.Read(buf)
		if n > 0 && (!win.take(n) || c.w.Write(proto.TypeData, buf[:n]) != nil) {
			return nil
		}
		if err == io.EOF {
			_ = c.w.Write(proto.TypeEOF)
			return nil
		}
		if err != nil {
			err = fmt.Errorf("standard input: %w", err)
			if c.leave != nil {
				c.leave(err)
			} else {
				_ = c.w.Write(proto.TypeEOF)
			}
			return err
		}
	}
}

// receive moves output to its writers until the command ended. A writer that
// fails gets no more, and its error is outErr; the command goes on.
func (c *conn) receive(s streams, win *window) (exit proto.Exit, outErr, err error) {
	for {
		t, payload, err := c.next()
		if err != nil {
			return exit, outErr, err
		}
		switch t {
		case proto.TypeStdout:
			outErr = errors.Join(outErr, deliver(&s.stdout, payload))
		case proto.TypeStderr:
			outErr = errors.Join(outErr, deliver(&s.stderr, payload))
		case proto.TypeCredit:
			if err := win.give(payload); err != nil {
				return exit, outErr, err
			}
		case proto.TypeExit:
			err := decode(payload, &exit)
			return exit, outErr, err
		case proto.TypeLeave:
			return exit, outErr, c.left()
		default:
			return exit, outErr, unexpected(t)
		}
	}
}

func deliver(to *io.Writer, b []byte) error {
	if *to == nil {
		return nil
	}
	n, err := (*to).Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		*to = nil
	}
	if errors.Is(err, io.ErrClosedPipe) {
		return nil // the reader of a pipe has closed it: it wants no more
	}
	return err
}

// window is how much input may be under way to a command.
type window struct {
	mu      sync.Mutex
	changed sync.Cond
	left    int  // guarded by mu
	closed  bool // guarded by mu
}

// take waits for n bytes of the window. It reports false if there is no one to
// send to any more.
func (w *window) take(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.left < n && !w.closed {
		w.changed.Wait()
	}
	w.left -= n
	return !w.closed
}

// give returns the bytes that a Credit frame names.
func (w *window) give(payload []byte) error {
	if len(payload) != 4 {
		return fmt.Errorf("%w: credit of %d bytes", ErrProtocol, len(payload))
	}
	n := int64(binary.BigEndian.Uint32(payload))
	w.mu.Lock()
	defer w.mu.Unlock()
	if int64(w.left)+n > proto.StdinWindow {
		return fmt.Errorf("%w: credit for more than was sent", ErrProtocol)
	}
	w.left += int(n)
	w.changed.Signal()
	return nil
}

func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.changed.Signal()
}
