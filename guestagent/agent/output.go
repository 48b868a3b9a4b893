package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/proto"
)

const (
	// chunk is how much output one frame carries at most; a pipe holds 64 KiB.
	chunk = 32 << 10
	// afterExit bounds what is read once the command itself has ended. It is
	// more than a pipe or a terminal can have buffered, so all that the command
	// wrote is read; the bound keeps a left-over child from prolonging it.
	afterExit = 256 << 10
)

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// output is one output stream of a command: it goes to the client that started
// the command for as long as that is connected, and to a ring otherwise.
type output struct {
	typ  proto.Type      // TypeStdout or TypeStderr
	file *os.File        // the read end of the pipe, or the terminal
	flow <-chan struct{} // closed when output may be delivered; nil: at once
	// printed, if not nil, is told of output, and again when it was delivered. It
	// is set before there is flow.
	printed func()

	sending sync.Mutex // held while output goes to live; taken before mu

	mu    sync.Mutex
	moved sync.Cond     // signals a change of ring or ended
	live  *proto.Writer // nil: nobody is connected
	ring  ring
	ended bool
}

func newOutput(typ proto.Type, f *os.File, live *proto.Writer, keep int) *output {
	o := &output{typ: typ, file: f, live: live, ring: ring{max: keep}}
	o.moved.L = &o.mu
	return o
}

// connect has what is delivered from now on go to w, which may be nil. When it
// returns, nothing more goes to the client before.
func (o *output) connect(w *proto.Writer) {
	o.sending.Lock()
	defer o.sending.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.live = w
}

// pump moves the stream's bytes until its end, or until the command has exited
// and all it wrote was moved. The caller closes exited and lets file's read
// deadline pass then. What left-over children write afterwards is read and
// dropped, so that they neither stop nor die of it.
func (o *output) pump(exited <-chan struct{}) {
	buf := chunks.Get().(*[chunk]byte)
	defer chunks.Put(buf)
	err := o.move(buf[:])
	for errors.Is(err, syscall.EIO) && !o.pause(exited) {
		err = o.move(buf[:])
	}
	open := err != io.EOF && o.drain(buf[:])
	o.mu.Lock()
	o.ended = true
	o.moved.Broadcast()
	o.mu.Unlock()
	if !open {
		o.file.Close()
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, o.file)
		o.file.Close()
	}()
}

// move passes on what comes until there is an error.
func (o *output) move(buf []byte) error {
	for {
		n, err := o.file.Read(buf)
		o.deliver(buf[:n])
		if err != nil {
			return err
		}
	}
}

// pause waits a moment, and reports whether the command has exited. It is for
// a terminal that nobody has open: the command may open it again, and closing
// our side would kill it with SIGHUP.
func (o *output) pause(exited <-chan struct{}) bool {
	select {
	case <-exited:
		return true
	case <-time.After(10 * time.Millisecond):
		return false
	}
}

// drain reads what is buffered without waiting for more. It reports whether
// somebody still holds the other end open.
func (o *output) drain(buf []byte) bool {
	_ = o.file.SetReadDeadline(time.Time{})
	rc, err := o.file.SyscallConn()
	if err != nil {
		return false
	}
	open := false
	err = rc.Read(func(fd uintptr) bool {
		for left := afterExit; left > 0; {
			n, err := unix.Read(int(fd), buf)
			switch {
			case err == unix.EINTR:
				continue
			case err == unix.EAGAIN:
				open = true
				return true
			case err != nil || n <= 0: // a terminal ends with EIO
				return true
			}
			o.deliver(buf[:n])
			left -= n
		}
		open = true
		return true
	})
	return open && err == nil
}

// deliver passes b on. A client that takes nothing blocks it, and so in the
// end the command.
func (o *output) deliver(b []byte) {
	if len(b) == 0 {
		return
	}
	if o.flow != nil {
		<-o.flow
	}
	if o.printed != nil {
		o.printed()
		defer o.printed()
	}
	if o.send(b) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ring.write(b)
	o.moved.Broadcast()
}

// send passes b on to the client that is connected, if there is one, and
// reports whether it took it.
func (o *output) send(b []byte) bool {
	o.sending.Lock()
	defer o.sending.Unlock()
	o.mu.Lock()
	live := o.live
	o.mu.Unlock()
	if live != nil && live.Write(o.typ, b) == nil {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.live = nil
	return false
}

// follow writes the stream to w from what the ring keeps on, or from now on if
// fromNow is set, until its end. It returns how many bytes it missed.
func (o *output) follow(ctx context.Context, w *proto.Writer, fromNow bool) (lost int64, err error) {
	defer context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.moved.Broadcast()
	})()
	buf := chunks.Get().(*[chunk]byte)
	defer chunks.Put(buf)
	var off int64
	for first := true; ; first = false {
		o.mu.Lock()
		if first && fromNow {
			off = o.ring.end
		}
		for off >= o.ring.end && !o.ended && ctx.Err() == nil {
			o.moved.Wait()
		}
		n, at := o.ring.read(off, buf[:])
		o.mu.Unlock()
		lost += at - off
		off = at + int64(n)
		if err := context.Cause(ctx); err != nil {
			return lost, err
		}
		if n == 0 {
			return lost, nil
		}
		if err := w.Write(o.typ, buf[:n]); err != nil {
			return lost, err
		}
	}
}
