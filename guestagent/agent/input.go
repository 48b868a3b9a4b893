package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// endOfFile is what a terminal in its ordinary mode takes for end of input.
const endOfFile = 0x04

// input is a command's standard input: bytes wait in it until the command
// reads, so that the connection they come by is never left unread.
type input struct {
	file *os.File // the write end of the pipe, or the terminal
	tty  bool

	mu      sync.Mutex
	changed sync.Cond
	queue   []piece // guarded by mu
	closed  bool    // guarded by mu: no more input is taken
}

// piece is some input and whom to credit for it.
type piece struct {
	data   []byte
	credit *source
}

// source is one connection that brings input.
type source struct {
	w *proto.Writer

	mu          sync.Mutex
	outstanding int // bytes taken and not yet credited
}

// take accounts for n bytes that came, and refuses what exceeds the window.
func (s *source) take(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outstanding+n > proto.StdinWindow {
		return fmt.Errorf("%w: input beyond the window", proto.ErrUnexpectedFrame)
	}
	s.outstanding += n
	return nil
}

// give returns n bytes of credit to the client.
func (s *source) give(n int) {
	s.mu.Lock()
	s.outstanding -= n
	s.mu.Unlock()
	// A client that is gone needs no credit; its reader notices.
	_ = s.w.Write(proto.TypeCredit, binary.BigEndian.AppendUint32(nil, uint32(n)))
}

func newInput(f *os.File, tty bool) *input {
	in := &input{file: f, tty: tty}
	in.changed.L = &in.mu
	return in
}

// write queues data that came from s.
func (in *input) write(s *source, data []byte) error {
	if len(data) == 0 {
		return nil // would queue without using up the window
	}
	if err := s.take(len(data)); err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return nil // the command has ended, and the client will hear of it
	}
	if n := len(in.queue); n > 0 && in.queue[n-1].credit == s {
		in.queue[n-1].data = append(in.queue[n-1].data, data...)
	} else {
		in.queue = append(in.queue, piece{append([]byte(nil), data...), s})
	}
	in.changed.Signal()
	return nil
}

// end closes the input once all that is queued was written.
func (in *input) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.changed.Signal()
}

// feed writes queued input to the command until the input ended. Closing file
// stops it as well. Input nobody reads is dropped, as os/exec does.
func (in *input) feed() {
	broken := false
	for {
		in.mu.Lock()
		for len(in.queue) == 0 && !in.closed {
			in.changed.Wait()
		}
		batch := in.queue
		in.queue = nil
		in.mu.Unlock()
		if len(batch) == 0 {
			break
		}
		for _, p := range batch {
			if !broken {
				_, err := in.file.Write(p.data)
				broken = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
			}
			p.credit.give(len(p.data))
		}
	}
	if in.tty {
		_, _ = in.file.Write([]byte{endOfFile})
		return // the terminal is closed by its reader
	}
	in.file.Close()
}

// stop drops whatever is queued, because the command has ended.
func (in *input) stop() {
	in.end()
	if !in.tty {
		in.file.Close()
	}
}
