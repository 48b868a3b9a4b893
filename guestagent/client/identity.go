package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// MinEntropy is the fewest bytes of entropy that renew an identity.
const MinEntropy = proto.MinEntropy

// Identity is what makes a fork another machine than its parent.
type Identity struct {
	Generation Generation // not zero
	Entropy    []byte     // at least MinEntropy bytes that no other machine gets
	WallClock  time.Time  // zero: that of this machine, late by the time the agent takes to hear it
	Hostname   string     // empty: unchanged
}

// RenewReply confirms a renewal with what the machine has now.
type RenewReply = proto.RenewReply

// Renew gives the machine a new identity: entropy is credited to the kernel's
// generator, which takes a new key, wall clock and host name are set, and from
// then on the agent refuses operations of other generations. An exchange that
// takes long is repeated once, since the clock that it set is as late. After a
// success this Client uses the new generation. A machine whose renewal fails
// must not be used: it may share its parent's randomness.
func (c *Client) Renew(ctx context.Context, id Identity) (RenewReply, error) {
	begin := time.Now()
	reply, err := c.renew(ctx, id)
	// A clock is as late as the word of it was under way. A second exchange is
	// quicker: the guest has all it needs for it by then.
	const late = 250 * time.Millisecond
	took := time.Since(begin)
	if err != nil || !id.WallClock.IsZero() || took < late {
		return reply, err
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) < 2*took {
		return reply, nil // late is better than not at all
	}
	again, err := c.renew(ctx, id)
	if err != nil && ctx.Err() != nil {
		return reply, nil
	}
	return again, err
}

func (c *Client) renew(ctx context.Context, id Identity) (RenewReply, error) {
	req := proto.RenewRequest{
		Generation: id.Generation, Entropy: id.Entropy, WallClock: cmp.Or(id.WallClock, time.Now()), Hostname: id.Hostname,
	}
	if err := req.Validate(); err != nil {
		return RenewReply{}, fmt.Errorf("client: %w", err)
	}
	cn, err := c.startLate(ctx, proto.OpRenew, func() any {
		req.WallClock = cmp.Or(id.WallClock, time.Now()) // connecting may have taken its time
		return req
	})
	if err != nil {
		return RenewReply{}, err
	}
	var reply RenewReply
	if err := cn.reply(&reply); err != nil {
		cn.close()
		return RenewReply{}, fmt.Errorf("client: renew: %w", err)
	}
	if reply.Generation != id.Generation || (id.Hostname != "" && reply.Hostname != id.Hostname) || len(reply.Random) == 0 {
		cn.close()
		return reply, fmt.Errorf("client: renew: %w: another identity confirmed", ErrProtocol)
	}
	c.SetGeneration(id.Generation)
	c.done(cn, proto.OpRenew)
	return reply, nil
}

// SetClock sets the guest's wall clock.
func (c *Client) SetClock(ctx context.Context, t time.Time) error {
	return c.call(ctx, proto.OpClock, proto.ClockRequest{Time: t}, nil)
}

// AddEntropy credits random bytes to the guest kernel's generator, which takes
// a new key from them.
func (c *Client) AddEntropy(ctx context.Context, b []byte) error {
	return c.call(ctx, proto.OpEntropy, proto.EntropyRequest{Bytes: b}, nil)
}

// SetHostname sets the guest's host name.
func (c *Client) SetHostname(ctx context.Context, name string) error {
	return c.call(ctx, proto.OpHostname, proto.HostnameRequest{Hostname: name}, nil)
}

// PowerOff has the guest power itself off. It returns when the agent has
// agreed, not when the machine is off.
func (c *Client) PowerOff(ctx context.Context) error {
	return c.call(ctx, proto.OpPowerOff, nil, nil)
}

// Reboot has the guest restart itself. It returns when the agent has agreed.
func (c *Client) Reboot(ctx context.Context) error {
	return c.call(ctx, proto.OpReboot, nil, nil)
}

// ReadReady reads what an agent sends on the ready port ([proto.ReadyPort] of
// the host) once it takes connections, or why it never will, which is an
// [ErrBoot]. The caller closes the connection.
func ReadReady(r io.Reader) (Info, error) {
	var info Info
	t, payload, err := proto.NewReader(r).Next()
	switch {
	case err != nil:
		return info, fmt.Errorf("client: ready: %w: %w", ErrProtocol, err)
	case t == proto.TypeError:
		return info, fmt.Errorf("client: %w", decodeError(payload))
	case t != proto.TypeReady:
		return info, fmt.Errorf("client: ready: %w", unexpected(t))
	}
	if err := decode(payload, &info); err != nil {
		return info, fmt.Errorf("client: ready: %w", err)
	}
	if info.Version != proto.Version {
		return info, fmt.Errorf("client: ready: %w: %d, not %d", ErrVersion, info.Version, proto.Version)
	}
	return info, nil
}
