package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

// maxControl is how large a text message may be, but for the first.
const maxControl = 4 << 10

// errDetached is the error of the input of a command whose client has gone. It is
// not the end of the input.
var errDetached = errors.New("server: the client has gone")

// socket is a WebSocket that is connected to a command.
//
// Messages of the client are taken one after the other, and none while the
// command does not read its input: a signal behind much input waits, which one
// sent as a request of its own does not.
type socket struct {
	*websocket.Conn
	c      *call
	ctx    context.Context // ends when the client has gone
	cancel context.CancelFunc

	stdin   *io.PipeWriter // nil: input is refused
	control chan api.Control
	done    sync.WaitGroup

	ending chan struct{}  // closed when only the last message is still to come
	alive  sync.WaitGroup // keep
}

func isUpgrade(r *http.Request) bool {
	for _, word := range strings.Split(r.Header.Get("Connection"), ",") {
		if strings.EqualFold(strings.TrimSpace(word), "upgrade") {
			return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
		}
	}
	return false
}

// accept makes a WebSocket of the connection. The token that every request has
// is what keeps other sites' pages out, whatever their origin.
func (c *call) accept() (*socket, error) {
	if !isUpgrade(c.r) || c.r.Header.Get("Sec-WebSocket-Version") != "13" || c.r.Header.Get("Sec-WebSocket-Key") == "" {
		return nil, api.Errorf(api.BadRequest, "this is for WebSockets of version 13")
	}
	c.stop() // the library has deadlines of its own
	conn, err := websocket.Accept(c.w, c.r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(-1) // what is read is never kept whole
	s := &socket{Conn: conn, c: c, control: make(chan api.Control), ending: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(c.ctx())
	return s, nil
}

// execSocket runs a command whose streams are the client's.
func (c *call) execSocket() error {
	s, err := c.accept()
	if err != nil {
		return err
	}
	defer s.drop()
	var r api.StartRequest
	if err := s.readStart(&r); err != nil {
		return s.end(nil, err)
	}
	streams := s.streams(r.Stdin)
	exit, err := c.box.Run(s.ctx, c.access, r, streams)
	return s.end(exit, err)
}

func (c *call) attachSocket(id uint64, live, stdin bool) error {
	s, err := c.accept()
	if err != nil {
		return err
	}
	defer s.drop()
	streams := s.streams(stdin)
	streams.Live = live
	exit, err := c.box.Attach(s.ctx, c.access, id, streams)
	return s.end(exit, err)
}

// readStart reads the first message, which says what to run.
func (s *socket) readStart(r *api.StartRequest) error {
	ctx, cancel := context.WithTimeout(s.ctx, bodyTimeout)
	defer cancel()
	kind, m, err := s.Reader(ctx)
	if err != nil {
		return err
	}
	if kind != websocket.MessageText {
		return api.Errorf(api.BadRequest, "the first message says what to run, in JSON")
	}
	b, err := readUpTo(m, s.c.MaxBody)
	if err != nil {
		return err
	}
	return decodeJSON(b, r)
}

func readUpTo(r io.Reader, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(b)) > most {
		err = api.Errorf(api.BadRequest, "body: larger than %d bytes", most)
	}
	return b, err
}

// streams begins to read messages, and to look whether the client is there.
func (s *socket) streams(stdin bool) api.Streams {
	var mu sync.Mutex
	st := api.Streams{
		Stdout:  &channel{s: s, mu: &mu, number: wire.ChannelStdout},
		Stderr:  &channel{s: s, mu: &mu, number: wire.ChannelStderr},
		Started: func(p api.Process) { s.note(wire.Note{Started: &p}) },
		Control: s.control,
	}
	if stdin {
		r, w := io.Pipe()
		st.Stdin, s.stdin = r, w
		// The command has ended, or does without input: what comes is dropped.
		context.AfterFunc(s.ctx, func() { r.CloseWithError(errDetached) })
	}
	s.done.Go(s.read)
	s.alive.Go(s.keep)
	return st
}

// read carries out what the client sends until it is gone.
func (s *socket) read() {
	defer s.cancel()
	for {
		kind, m, err := s.Reader(s.ctx)
		if err == nil {
			err = s.message(kind, m)
		}
		if err != nil {
			if s.stdin != nil {
				s.stdin.CloseWithError(errDetached)
			}
			var e *api.Error
			if errors.As(err, &e) {
				s.note(wire.Note{Error: e})
				s.Close(websocket.StatusPolicyViolation, string(e.Code))
			}
			return
		}
	}
}

func (s *socket) message(kind websocket.MessageType, m io.Reader) error {
	if kind == websocket.MessageText {
		return s.command(m)
	}
	var number [1]byte
	if _, err := io.ReadFull(m, number[:]); err != nil {
		return api.Errorf(api.BadRequest, "message: without a channel")
	}
	if number[0] != wire.ChannelStdin || s.stdin == nil {
		return api.Errorf(api.BadRequest, "message: channel %d takes nothing", number[0])
	}
	buf := make([]byte, wire.MaxChunk)
	for {
		n, err := m.Read(buf)
		if n > 0 {
			s.stdin.Write(buf[:n]) // fails if nobody reads any more
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *socket) command(m io.Reader) error {
	b, err := readUpTo(m, maxControl)
	if err != nil {
		return err
	}
	var w wire.Control
	if err := decodeJSON(b, &w); err != nil {
		return err
	}
	switch {
	case w.EOF && w.Signal == "" && w.Resize == nil:
		if s.stdin != nil {
			s.stdin.Close()
		}
		return nil
	case !w.EOF && (w.Signal != "") != (w.Resize != nil):
		select {
		case s.control <- api.Control{Signal: w.Signal, Resize: w.Resize}:
		case <-s.ctx.Done():
		}
		return nil
	}
	return api.Errorf(api.BadRequest, "message: one of signal, resize and eof is expected")
}

// keep sends output of no bytes from time to time, so that a client that has gone
// is noticed. One that does not read, or whose input nobody reads, has all the time
// it wants: a ping, or the answer to one, the library gives up after 5 s, and with
// it the connection.
func (s *socket) keep() {
	t := time.NewTicker(s.c.KeepAlive)
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.ending:
			return
		case <-t.C:
		}
		if s.Write(s.ctx, websocket.MessageBinary, []byte{wire.ChannelStdout}) != nil {
			s.cancel()
			return
		}
	}
}

// note sends a text message.
func (s *socket) note(n wire.Note) error {
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return s.Write(s.ctx, websocket.MessageText, b)
}

// end says how the command ended and closes the connection.
func (s *socket) end(exit *api.Exit, err error) error {
	close(s.ending)
	s.alive.Wait() // nothing follows the last message
	status := websocket.StatusNormalClosure
	switch {
	case s.ctx.Err() != nil: // it has gone, or the server is about to
		status = websocket.StatusGoingAway
	case err != nil:
		s.c.note(s.c.w, s.c.r, err)
		s.note(wire.Note{Error: apiError(err)})
		status = websocket.StatusInternalError
	default:
		if b, err := json.Marshal(exit); err == nil {
			s.Write(s.ctx, websocket.MessageBinary, append([]byte{wire.ChannelExit}, b...))
		}
	}
	if s.stdin != nil {
		s.stdin.Close() // so that the reader gets to the close of the client
	}
	s.Close(status, "")
	s.cancel()
	s.done.Wait()
	return nil
}

// drop ends the connection however the call ends: of one that was made a
// WebSocket, nobody else does.
func (s *socket) drop() {
	s.cancel()
	s.CloseNow()
}

// channel is a writer of binary messages.
type channel struct {
	s      *socket
	number byte

	mu  *sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (c *channel) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := 0; n < len(p); {
		chunk := p[n:min(len(p), n+wire.MaxChunk)]
		c.buf.Reset()
		c.buf.WriteByte(c.number)
		c.buf.Write(chunk)
		if err := c.s.Write(c.s.ctx, websocket.MessageBinary, c.buf.Bytes()); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return len(p), nil
}
