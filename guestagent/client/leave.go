package client

import (
	"context"
	"time"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// leaveTime bounds how long an agent may take to let a client leave. It is
// short of nothing but a writer that blocks, and an agent that is gone.
const leaveTime = 10 * time.Second

// leaves has the end of the context leave the command, which would otherwise
// end with the connection.
func (c *conn) leaves() {
	if !c.stop() {
		return // it has ended already, and the connection with it
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	c.ctx, c.leave = ctx, cancel
	stop := context.AfterFunc(ctx, func() {
		_ = c.SetDeadline(time.Now().Add(leaveTime))
		// If that fails the connection is broken, of which its reader tells.
		_ = c.w.Write(proto.TypeLeave)
	})
	c.stop = func() bool {
		stopped := stop()
		cancel(nil)
		return stopped
	}
}

// left returns why the command was left, now that the agent says that it was.
func (c *conn) left() error { return c.cause(unexpected(proto.TypeLeave)) }
