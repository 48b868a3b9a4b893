// Package session works inside a lab's machine by way of its agent: it copies files in and out,
// and runs programs.
package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
)

// setupTime bounds the short exchanges with the agent, which take milliseconds unless the machine
// is stuck.
const setupTime = time.Minute

// ErrLost says that the connection to the agent ended before the operation did.
var ErrLost = errors.New("session: connection to the lab lost")

// A Session is the use of one machine. It holds no connection, and may be used concurrently.
type Session struct {
	c *client.Client
}

// Open returns the use of the machine whose agent answers at a TCP address, once it has answered
// and the machine's clock is set.
func Open(ctx context.Context, addr string) (*Session, error) {
	var d net.Dialer
	s := &Session{c: client.New(func(ctx context.Context) (net.Conn, error) {
		return d.DialContext(ctx, "tcp4", addr)
	})}
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	// A machine that was paused is late.
	if err := s.c.SetClock(ctx, time.Now()); err != nil {
		return nil, fmt.Errorf("session: %w", lost(err))
	}
	return s, nil
}

// lost adds ErrLost to errors that mean it.
func lost(err error) error {
	if errors.Is(err, client.ErrDisconnected) {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return err
}
