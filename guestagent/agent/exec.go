package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/creack/pty"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// exec starts a command and, unless it is detached, stays with it: the
// connection carries its streams, and the loss of the connection ends it.
func (s *server) exec(c *conn, h proto.Handshake) error {
	var req proto.ExecRequest
	if err := proto.DecodeRequest(h.Request, &req); err != nil {
		return err
	}
	p, err := s.launch(&req, c.w)
	if err != nil {
		return err
	}
	// Before the first output. If it fails the reader below will notice.
	_ = c.w.WriteValue(proto.TypeReply, &proto.Started{ID: p.id, PID: p.pid})
	s.crew.run(func() {
		p.run(req.Timeout, req.IdleTimeout, func() { s.kill(p) })
		s.procs.ended(p)
		s.cgroup.put(p.cgroup)
		s.spares.prepare()
	})
	if req.Detach {
		return nil
	}
	gone := make(chan error, 1)
	s.crew.run(func() { gone <- c.readInput(p, req.Stdin) })
	select {
	case <-p.done:
		return c.finish(p.exit, gone)
	case err := <-gone:
		if err == errLeave {
			return s.leave(c, p)
		}
		if s.opts.KeepOnReset && isReset(err) && s.procs.detach(p) {
			return nil
		}
		s.kill(p)
		return protocolError(err)
	}
}

// leave puts p in the background, as its client has asked, and says so once
// there is nothing more to come for that client.
func (s *server) leave(c *conn, p *process) error {
	if !s.procs.detach(p) {
		<-p.done
		return ignoreGone(c.w.WriteValue(proto.TypeExit, &p.exit))
	}
	for _, o := range p.outs {
		o.connect(nil)
	}
	return ignoreGone(c.w.Write(proto.TypeLeave))
}

// finish sends how a command ended and waits until the client goes or has the
// next operation.
func (c *conn) finish(exit proto.Exit, gone <-chan error) error {
	if err := c.w.WriteValue(proto.TypeExit, &exit); err != nil {
		return &readError{err}
	}
	if err := <-gone; err != errNext {
		return &readError{err}
	}
	return nil
}

// What a client may say besides its input, where it may.
var (
	errNext  = fmt.Errorf("%w: another operation", proto.ErrUnexpectedFrame)
	errLeave = fmt.Errorf("%w: leave", proto.ErrUnexpectedFrame)
)

// readInput takes a client's input for p until the client goes, leaves p, or has
// another operation, which it may have only once it was told that p has ended. It always
// reads, so that it notices at once.
func (c *conn) readInput(p *process, wanted bool) error {
	src := &source{w: c.w}
	for {
		t, payload, err := c.r.Next()
		if err != nil {
			return err
		}
		switch {
		case t == proto.TypeData && wanted:
			if err := p.stdin.write(src, payload); err != nil {
				return err
			}
		case t == proto.TypeEOF && wanted:
			p.stdin.end()
			wanted = false
		case t == proto.TypeHandshake:
			c.next = payload
			return errNext
		case t == proto.TypeLeave:
			return errLeave
		default:
			return fmt.Errorf("%w: %v", proto.ErrUnexpectedFrame, t)
		}
	}
}

// protocolError returns err if the client is to be told that it broke the
// protocol, and nil if it merely went.
func protocolError(err error) error {
	if errors.Is(err, proto.ErrUnexpectedFrame) || errors.Is(err, proto.ErrFrameTooLarge) {
		return err
	}
	return nil
}

// isReset tells a connection that broke from one whose peer closed it.
func isReset(err error) bool { return errors.Is(err, syscall.ECONNRESET) }

// kill ends a command with all its processes, if it has not ended already.
func (s *server) kill(p *process) {
	s.reaper.whileRunning(p.pid, func() {
		p.cgroup.kill()
		killSession(p.pid)
	})
}

// signal sends a signal to a command and all processes of its session. SIGKILL
// ends all its processes, as a time-out does.
func (s *server) signal(p *process, sig syscall.Signal) error {
	if sig != syscall.SIGKILL {
		s.reaper.whileRunning(p.pid, func() { signalJobs(p.pid, sig) })
		return s.reaper.signal(p.pid, sig)
	}
	if err := s.reaper.signal(p.pid, 0); err != nil {
		return err
	}
	s.kill(p)
	return nil
}

// killAll ends every command and waits for them.
func (s *server) killAll() {
	for _, p := range s.procs.all() {
		s.kill(p)
		<-p.done
	}
}

// onProcess answers the operations on a process that was started before.
func (s *server) onProcess(ctx context.Context, c *conn, h proto.Handshake) error {
	var req proto.ProcessRequest
	if err := proto.DecodeRequest(h.Request, &req); err != nil {
		return err
	}
	p, err := s.procs.find(req.ID)
	if err != nil {
		return err
	}
	switch h.Op {
	case proto.OpAttach:
		return s.attach(ctx, c, p, req)
	case proto.OpWait:
		return c.wait(p)
	case proto.OpSignal:
		err = s.signal(p, syscall.Signal(req.Signal))
	case proto.OpResize:
		if p.pty == nil {
			return &proto.Error{Code: proto.CodeState, Message: "the process has no terminal"}
		}
		err = pty.Setsize(p.pty, &pty.Winsize{Rows: req.Size.Rows, Cols: req.Size.Cols})
	}
	if err != nil {
		return &proto.Error{Code: proto.CodeDone, Message: fmt.Sprintf("process %d: %v", req.ID, err)}
	}
	return c.w.WriteValue(proto.TypeReply, proto.Empty{})
}

// wait sends how p ended once it has.
func (c *conn) wait(p *process) error {
	gone := make(chan error, 1)
	go func() { gone <- c.readInput(p, false) }()
	select {
	case <-p.done:
		return c.finish(p.exit, gone)
	case err := <-gone:
		return protocolError(err)
	}
}

// attach connects one more client to a background process.
func (s *server) attach(ctx context.Context, c *conn, p *process, req proto.ProcessRequest) error {
	switch {
	case !p.detached.Load():
		return &proto.Error{Code: proto.CodeState, Message: "the process is not in the background"}
	case req.Stdin && p.stdin == nil:
		return &proto.Error{Code: proto.CodeState, Message: "the process has no standard input"}
	}
	if err := c.w.WriteValue(proto.TypeReply, proto.Empty{}); err != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := make(chan error, 1)
	go func() {
		gone <- c.readInput(p, req.Stdin)
		cancel()
	}()
	var follow sync.WaitGroup
	lost := make([]int64, 2)
	for i, o := range p.outs {
		follow.Go(func() {
			var err error
			if lost[i], err = o.follow(ctx, c.w, req.Live); err != nil {
				cancel()
			}
		})
	}
	follow.Wait()
	select {
	case <-p.done:
	case <-ctx.Done():
		c.Close()
		return protocolError(<-gone)
	}
	exit := p.exit
	exit.LostStdout, exit.LostStderr = lost[0], lost[1]
	return c.finish(exit, gone)
}

// list sends every process.
func (s *server) list(c *conn) error {
	for _, p := range s.procs.all() {
		if err := c.w.WriteValue(proto.TypeItem, p.describe()); err != nil {
			return nil
		}
	}
	return ignoreGone(c.w.Write(proto.TypeEOF))
}

// ignoreGone drops the error of a last write: a client that does not take it
// cannot be told either.
func ignoreGone(err error) error {
	if errors.Is(err, proto.ErrFrameTooLarge) {
		return err
	}
	return nil
}
