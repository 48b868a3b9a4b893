package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// Info describes an agent and its machine.
type Info = proto.Info

// Boot says when an agent reached the steps of booting its machine.
type Boot = proto.Boot

// Generation names the identity of one running machine.
type Generation = proto.Generation

// Dialer connects to the agent of one machine.
type Dialer func(ctx context.Context) (net.Conn, error)

// Client works inside one machine. It is safe for concurrent use and holds no
// connection between calls, unless it was made WithKeptConn.
type Client struct {
	dial  Dialer
	keeps bool                 // a connection between operations
	idle  func(net.Conn, bool) // if keeps

	mu   sync.Mutex
	gen  Generation // guarded by mu
	kept net.Conn   // guarded by mu; nil: none
}

// Option configures a Client.
type Option func(*Client)

// WithGeneration sets the generation that the machine must have.
func WithGeneration(g Generation) Option { return func(c *Client) { c.gen = g } }

// New returns a Client of the agent that dial connects to.
func New(dial Dialer, opts ...Option) *Client {
	c := &Client{dial: dial}
	for _, o := range opts {
		o(c)
	}
	return c
}

// SetGeneration sets the generation that the machine must have from now on.
// The zero Generation is that of a machine which was never renewed.
func (c *Client) SetGeneration(g Generation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gen = g
}

// Generation returns the generation that the machine must have.
func (c *Client) Generation() Generation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gen
}

// Hello asks the agent what it is. It answers whatever its generation.
func (c *Client) Hello(ctx context.Context) (Info, error) {
	var info Info
	err := c.call(ctx, proto.OpHello, nil, &info)
	return info, err
}

// conn is one operation under way.
type conn struct {
	net.Conn
	r    *proto.Reader
	w    *proto.Writer
	ctx  context.Context
	stop func() bool // ends the watch on ctx

	leave func(error) // leaves the command for that reason; nil: it is not to be left
}

// start connects, and sends the handshake of an operation.
func (c *Client) start(ctx context.Context, op proto.Op, req any) (*conn, error) {
	return c.startLate(ctx, op, func() any { return req })
}

// startLate is start for a request that is made once the connection is there.
func (c *Client) startLate(ctx context.Context, op proto.Op, req func() any) (*conn, error) {
	if nc := c.takeKept(op); nc != nil {
		cn, sent, err := c.begin(ctx, nc, op, req())
		if err == nil || sent || ctx.Err() != nil {
			return cn, err
		}
		// It is of no use any more, and the agent has heard of nothing.
	}
	nc, err := c.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("client: %s: dial: %w", op, err)
	}
	cn, _, err := c.begin(ctx, nc, op, req())
	return cn, err
}

// begin sends the handshake of an operation on nc, which it closes on failure.
// It reports whether the agent may have got it.
func (c *Client) begin(ctx context.Context, nc net.Conn, op proto.Op, req any) (_ *conn, sent bool, err error) {
	h := proto.Handshake{Version: proto.Version, Generation: c.Generation(), Op: op}
	if req != nil {
		if h.Request, err = proto.Encode(req); err != nil {
			nc.Close()
			return nil, true, fmt.Errorf("client: %s: %w", op, err)
		}
	}
	cn := &conn{
		Conn: nc, r: proto.NewReader(nc), w: proto.NewWriter(nc), ctx: ctx,
		stop: context.AfterFunc(ctx, func() { nc.Close() }),
	}
	err = cn.w.Write(proto.TypeHandshake, h.Append(nil))
	if err == nil {
		return cn, true, nil
	}
	if errors.Is(err, proto.ErrFrameTooLarge) {
		cn.close()
		return nil, true, fmt.Errorf("client: %s: request: %w", op, err)
	}
	// An agent that refuses a client at the door may close before it has
	// read the handshake: what it said is worth more than the write error.
	refusal := cn.refusal()
	cn.close()
	if refusal != nil {
		return nil, true, fmt.Errorf("client: %s: %w", op, refusal)
	}
	return nil, false, fmt.Errorf("client: %s: %w", op, cn.cause(err))
}

// close ends the operation.
func (c *conn) close() {
	c.stop()
	c.Conn.Close()
}

// cause returns the reason why the context ended, if it did, and err if not:
// a cancelled operation fails because its connection was closed.
func (c *conn) cause(err error) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return err
}

// refusal returns what the agent said instead of reading on, if it did.
func (c *conn) refusal() error {
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	t, payload, err := c.r.Next()
	if err != nil || t != proto.TypeError {
		return nil
	}
	return decodeError(payload)
}

// next reads one frame. It returns an agent's error as an error.
func (c *conn) next() (proto.Type, []byte, error) {
	t, payload, err := c.r.Next()
	switch {
	case err == io.EOF:
		return 0, nil, c.cause(ErrDisconnected)
	case errors.Is(err, proto.ErrFrameTooLarge):
		return 0, nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return 0, nil, c.cause(fmt.Errorf("%w: in the middle of a frame", ErrDisconnected))
	case err != nil:
		return 0, nil, c.cause(fmt.Errorf("%w: %w", ErrDisconnected, err))
	case t == proto.TypeError:
		return 0, nil, decodeError(payload)
	}
	return t, payload, nil
}

// reply reads the operation's reply.
func (c *conn) reply(v any) error {
	t, payload, err := c.next()
	if err != nil {
		return err
	}
	if t != proto.TypeReply {
		return unexpected(t)
	}
	return decode(payload, v)
}

// items reads a list: f is called with each item, whose bytes are valid until
// it returns.
func (c *conn) items(f func(item []byte) error) error {
	for {
		t, payload, err := c.next()
		if err != nil {
			return err
		}
		switch t {
		case proto.TypeEOF:
			return nil
		case proto.TypeItem:
			if err := f(payload); err != nil {
				return err
			}
		default:
			return unexpected(t)
		}
	}
}

// call carries out an operation that is one request and one reply.
func (c *Client) call(ctx context.Context, op proto.Op, req, reply any) error {
	cn, err := c.start(ctx, op, req)
	if err != nil {
		return err
	}
	if err := cn.reply(reply); err != nil {
		cn.close()
		return fmt.Errorf("client: %s: %w", op, err)
	}
	c.done(cn, op)
	return nil
}

func decode(payload []byte, v any) error {
	if v == nil {
		v = new(proto.Empty)
	}
	if err := proto.Decode(payload, v); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}

func unexpected(t proto.Type) error {
	return fmt.Errorf("%w: unexpected %v frame", ErrProtocol, t)
}
