package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"github.com/coder/websocket"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

// maxNote is how large a message that is no output may be, in bytes: that of a
// process has its argv.
const maxNote = 32 << 20

// Run implements [api.Service]. It does not wait for a read of s.Stdin to return.
// Signals and sizes of s.Control are requests of their own, which do not wait
// for input that the command does not read; errors of theirs are dropped.
func (c *Client) Run(ctx context.Context, a api.Access, r api.StartRequest, s api.Streams) (*api.Exit, error) {
	first, err := json.Marshal(r)
	if err != nil {
		return nil, api.Errorf(api.BadRequest, "client: %w", err)
	}
	if !r.Stdin {
		s.Stdin = nil
	}
	return c.connect(ctx, a, "/exec/ws", nil, first, 0, s)
}

// Attach implements [api.Service]. See Run.
func (c *Client) Attach(ctx context.Context, a api.Access, process uint64, s api.Streams) (*api.Exit, error) {
	q := make(url.Values)
	if s.Live {
		q.Set("live", "true")
	}
	if s.Stdin != nil {
		q.Set("stdin", "true")
	}
	return c.connect(ctx, a, processPath(process, "/attach"), q, nil, process, s)
}

// session is a connection to a command.
type session struct {
	*websocket.Conn
	c       *Client
	access  api.Access
	streams api.Streams

	started chan struct{} // closed when process is known
	once    sync.Once
	process uint64
}

// connect connects the streams to a command until it has ended.
func (c *Client) connect(ctx context.Context, a api.Access, sub string, q url.Values, first []byte, process uint64, st api.Streams) (*api.Exit, error) {
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := c.dial(ctx, a, sub, q)
	if err != nil {
		return nil, err
	}
	defer conn.CloseNow()
	s := &session{Conn: conn, c: c, access: a, streams: st, started: make(chan struct{})}
	if process != 0 {
		s.know(process)
	}
	if first != nil {
		if err := conn.Write(ctx, websocket.MessageText, first); err != nil {
			return nil, failed(caller, fmt.Errorf("%w: %w", ErrCut, err))
		}
	}
	if st.Stdin != nil {
		go s.input(ctx, cancel)
	}
	var controls sync.WaitGroup
	if st.Control != nil {
		controls.Go(func() { s.controls(ctx) })
	}
	exit, err := s.output(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil && caller.Err() == nil {
		err = failed(caller, cause) // of the input
	}
	cancel(nil)
	controls.Wait()
	if err == nil {
		conn.Close(websocket.StatusNormalClosure, "")
	}
	return exit, err
}

func (c *Client) dial(ctx context.Context, a api.Access, sub string, q url.Values) (*websocket.Conn, error) {
	path, err := sandboxPath(a.ID, sub)
	if err != nil {
		return nil, err
	}
	u := c.base + path
	if len(q) > 0 {
		u += "?" + q.Encode()
	}
	h := make(http.Header)
	c.header(h, &a)
	conn, resp, err := websocket.Dial(ctx, u, &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: h})
	if err != nil && resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, readError(resp)
	}
	if err != nil {
		return nil, failed(ctx, err)
	}
	conn.SetReadLimit(-1) // output is passed on as it comes; the rest is bounded below
	return conn, nil
}

// know says which process it is.
func (s *session) know(process uint64) {
	s.once.Do(func() {
		s.process = process
		close(s.started)
	})
}

// output passes on what the command prints until it has ended.
func (s *session) output(ctx context.Context) (*api.Exit, error) {
	for {
		kind, m, err := s.Reader(ctx)
		if err != nil {
			return nil, failed(ctx, fmt.Errorf("%w: %w", ErrCut, err))
		}
		var exit *api.Exit
		if kind == websocket.MessageText {
			err = s.note(m)
		} else {
			exit, err = s.message(m)
		}
		if exit != nil {
			return exit, nil
		}
		var said *api.Error
		if err != nil && !errors.As(err, &said) && ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
}

// message takes a message of output, or of an exit.
func (s *session) message(m io.Reader) (*api.Exit, error) {
	var number [1]byte
	if _, err := io.ReadFull(m, number[:]); err != nil {
		return nil, api.Errorf(api.InternalError, "client: a message without a channel: %w", err)
	}
	var to io.Writer
	switch number[0] {
	case wire.ChannelStdout:
		to = s.streams.Stdout
	case wire.ChannelStderr:
		to = s.streams.Stderr
	case wire.ChannelExit:
		exit := new(api.Exit)
		if err := decodeMessage(m, exit); err != nil {
			return nil, err
		}
		return exit, nil
	}
	if to == nil {
		to = io.Discard
	}
	_, err := io.Copy(to, m)
	return nil, err
}

func (s *session) note(m io.Reader) error {
	var n wire.Note
	if err := decodeMessage(m, &n); err != nil {
		return err
	}
	if n.Error != nil {
		return n.Error
	}
	if n.Started != nil {
		s.know(n.Started.ID)
		if s.streams.Started != nil {
			s.streams.Started(*n.Started)
		}
	}
	return nil
}

func decodeMessage(m io.Reader, into any) error {
	b, err := io.ReadAll(io.LimitReader(m, maxNote+1))
	if err == nil && len(b) > maxNote {
		err = fmt.Errorf("larger than %d bytes", maxNote)
	}
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		return api.Errorf(api.InternalError, "client: a message is not as expected: %w", err)
	}
	return nil
}

// input sends what is read of Stdin, and then that it has ended. If reading
// fails the session does: the command must not take it for the end.
func (s *session) input(ctx context.Context, cancel context.CancelCauseFunc) {
	buf := make([]byte, 1+wire.MaxChunk)
	buf[0] = wire.ChannelStdin
	for {
		n, err := s.streams.Stdin.Read(buf[1:])
		if n > 0 && s.Write(ctx, websocket.MessageBinary, buf[:1+n]) != nil {
			return // output sees it too
		}
		if err == io.EOF {
			b, _ := json.Marshal(wire.Control{EOF: true})
			s.Write(ctx, websocket.MessageText, b)
			return
		}
		if err != nil {
			cancel(fmt.Errorf("stdin: %w", err))
			return
		}
	}
}

// controls passes on signals and sizes.
func (s *session) controls(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case what, ok := <-s.streams.Control:
			if !ok {
				return
			}
			select {
			case <-s.started:
				s.c.Control(ctx, s.access, s.process, what)
			case <-ctx.Done():
				return
			}
		}
	}
}
