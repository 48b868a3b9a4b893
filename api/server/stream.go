package server

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

// stream is an answer of server-sent events. It begins with the first, so that
// until then an error is an answer like others. Each is on its way when send
// returns: nothing is kept for a client that reads slowly.
type stream struct {
	ctx       context.Context
	w         *response
	rc        *http.ResponseController
	keepAlive time.Duration
	patience  time.Duration // in which a client takes an event, or has gone; 0: it is waited for

	mu    sync.Mutex
	begun bool          // guarded by mu
	err   error         // of the first write that failed; guarded by mu
	ended chan struct{} // closed by close
	once  sync.Once     // that it is
	alive sync.WaitGroup
}

// stream is that of the call, whose end closes it. It waits for a client for as
// long as that is there.
func (c *call) stream() *stream {
	c.events = &stream{
		ctx: c.ctx(), w: c.w, rc: http.NewResponseController(c.w), keepAlive: c.KeepAlive, ended: make(chan struct{}),
	}
	return c.events
}

// close returns when nothing more is written but by send.
func (s *stream) close() {
	s.once.Do(func() { close(s.ended) })
	s.alive.Wait()
}

// begin sends the header. The caller has mu.
func (s *stream) begin() {
	if s.begun {
		return
	}
	s.begun = true
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies pass each event on
	s.w.WriteHeader(http.StatusOK)
	s.alive.Go(s.keep)
}

// keep writes comments, so that those in between see that the stream lives, and
// we that the client has gone.
func (s *stream) keep() {
	t := time.NewTicker(s.keepAlive)
	defer t.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-t.C:
		}
		if !s.mu.TryLock() {
			continue // something is being sent
		}
		s.write([]byte(":\n\n"))
		s.mu.Unlock()
	}
}

// write sends b. The caller has mu.
func (s *stream) write(b []byte) error {
	if s.err == nil && s.patience != 0 {
		s.rc.SetWriteDeadline(time.Now().Add(s.patience)) // unless the writer knows no such thing
		s.err = s.ctx.Err()                               // if it has ended before that, writing would go on
	}
	if s.err == nil {
		if _, s.err = s.w.Write(b); s.err == nil {
			s.err = s.rc.Flush()
		}
	}
	return s.err
}

// send sends an event, with an id unless that is empty.
func (s *stream) send(event, id string, data any) error {
	b, err := marshal(data) // one line, with its end
	if err != nil {
		return err
	}
	head := "event: " + event + "\n"
	if id != "" {
		head += "id: " + id + "\n"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
	return s.write(fmt.Appendf([]byte(head), "data: %s\n", b))
}

// end returns when nothing more is written. If the stream has begun it ends with
// the event, or if that is empty with the error; otherwise it returns the error.
func (s *stream) end(c *call, event string, data any, err error) error {
	s.mu.Lock()
	begun := s.begun
	s.mu.Unlock()
	if err == nil {
		err = s.send(event, "", data)
	} else if begun && c.ctx().Err() == nil {
		c.note(c.w, c.r, err)
		err = s.send(wire.Error, "", wire.Envelope{Error: apiError(err)})
	}
	s.close()
	return err
}

// output is a writer of events.
type output struct {
	s     *stream
	event string
}

func (o output) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		chunk := p[n:min(len(p), n+wire.MaxChunk)]
		if err := o.s.send(o.event, "", api.Text(chunk)); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return len(p), nil
}

// watchEvents streams what happens to sandboxes and snapshots.
func (c *call) watchEvents() error {
	q := api.EventQuery{SandboxID: c.query.Get("sandbox_id")}
	if c.query.Has("sandbox_id") {
		if err := api.CheckID(api.SandboxPrefix, q.SandboxID); err != nil {
			return api.Errorf(api.BadRequest, "query: sandbox_id: %w", err)
		}
	}
	last, err := c.lastEvent()
	if err != nil {
		return err
	}
	if q.After, err = c.number("after", last, 10, 63); err != nil {
		return err
	}
	s := c.stream()
	err = c.svc.Events(c.ctx(), q, func() { s.send(wire.Ready, "", struct{}{}) }, func(e api.Event) error {
		return s.send(string(e.Type), strconv.FormatUint(e.Seq, 10), e)
	})
	return s.end(c, wire.Ended, struct{}{}, err)
}

// lastEvent is the seq in the header of who connects again, or 0.
func (c *call) lastEvent() (uint64, error) {
	values := c.r.Header.Values(wire.LastEventID)
	if len(values) == 0 {
		return 0, nil
	}
	seq, err := strconv.ParseUint(values[0], 10, 63)
	if err != nil {
		return 0, api.Errorf(api.BadRequest, "%s: %.40q is no number in range", wire.LastEventID, values[0])
	}
	return seq, nil
}

// watchFile streams what happens to a file.
func (c *call) watchFile() error {
	path, err := c.need("path")
	if err != nil {
		return err
	}
	s := c.stream()
	err = c.box.Watch(c.ctx(), c.access, path, func() { s.send(wire.Ready, "", struct{}{}) }, func(e api.FileEvent) error {
		return s.send(wire.Changed, "", e)
	})
	return s.end(c, wire.Ended, struct{}{}, err)
}
