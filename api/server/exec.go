package server

import (
	"strconv"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

func (c *call) exec() (any, error) {
	var r api.ExecRequest
	if err := c.decodeSome(&r); err != nil {
		return nil, err
	}
	return c.box.Exec(c.ctx(), c.access, r)
}

func (c *call) processes() (any, error) {
	l, err := c.box.Processes(c.ctx(), c.access)
	if err == nil && l.Processes == nil {
		l.Processes = []api.Process{}
	}
	return l, err
}

func (c *call) start() (any, error) {
	var r api.StartRequest
	if err := c.decodeSome(&r); err != nil {
		return nil, err
	}
	return c.box.Start(c.ctx(), c.access, r)
}

// process is the id of the process in the path.
func (c *call) process() (uint64, error) {
	p := c.r.PathValue("pid")
	id, err := strconv.ParseUint(p, 10, 64)
	if err != nil {
		return 0, api.Errorf(api.NotFound, "%.40q is no process", p)
	}
	return id, nil
}

func (c *call) waitProcess() (any, error) {
	id, err := c.process()
	if err != nil {
		return nil, err
	}
	return c.box.WaitProcess(c.ctx(), c.access, id)
}

func (c *call) signal() (any, error) {
	var r struct {
		Signal string `json:"signal"`
	}
	if err := c.decodeSome(&r); err != nil {
		return nil, err
	}
	if r.Signal == "" {
		return nil, api.Errorf(api.BadRequest, "signal: missing or empty")
	}
	return nil, c.control(api.Control{Signal: r.Signal})
}

func (c *call) resize() (any, error) {
	var size api.WinSize
	if err := c.decodeSome(&size); err != nil {
		return nil, err
	}
	return nil, c.control(api.Control{Resize: &size})
}

func (c *call) control(what api.Control) error {
	id, err := c.process()
	if err != nil {
		return err
	}
	return c.box.Control(c.ctx(), c.access, id, what)
}

// execStream runs a command and streams what it prints. If the client goes, the
// command goes on.
func (c *call) execStream() (err error) {
	if c.body, err = c.readBody(); err != nil {
		return err
	}
	var r api.StartRequest
	if err := c.decodeSome(&r); err != nil {
		return err
	}
	if r.Stdin {
		return api.Errorf(api.BadRequest, "stdin: there is input over a WebSocket only")
	}
	s := c.stream()
	exit, err := c.box.Run(c.ctx(), c.access, r, s.streams())
	return s.end(c, wire.Exit, exit, err)
}

// attach streams what a process prints from now on, and before as far as it is
// known, or all its streams if a WebSocket is asked for.
func (c *call) attach() error {
	id, err := c.process()
	if err != nil {
		return err
	}
	live, err := c.flag("live")
	if err != nil {
		return err
	}
	stdin, err := c.flag("stdin")
	if err != nil {
		return err
	}
	if isUpgrade(c.r) {
		return c.attachSocket(id, live, stdin)
	}
	if stdin {
		return api.Errorf(api.BadRequest, "query: stdin: there is input over a WebSocket only")
	}
	s := c.stream()
	streams := s.streams()
	streams.Live = live
	exit, err := c.box.Attach(c.ctx(), c.access, id, streams)
	return s.end(c, wire.Exit, exit, err)
}

// streams are those of a command whose output is streamed.
func (s *stream) streams() api.Streams {
	return api.Streams{
		Stdout:  output{s, wire.Stdout},
		Stderr:  output{s, wire.Stderr},
		Started: func(p api.Process) { s.send(wire.Started, "", p) },
	}
}
