package server

import (
	"github.com/forkvm/forkvm/api"
)

// decode decodes the body. An empty one leaves everything as it is.
func (c *call) decode(into any) error {
	if len(c.body) == 0 {
		return nil
	}
	return decodeJSON(c.body, into)
}

// decodeSome decodes a body that must be there.
func (c *call) decodeSome(into any) error {
	if len(c.body) == 0 {
		return api.Errorf(api.BadRequest, "body: missing")
	}
	return decodeJSON(c.body, into)
}

func (c *call) list() (any, error) {
	q := api.SandboxQuery{NamePrefix: c.query.Get("name_prefix"), Metadata: c.metadata()}
	var err error
	if q.States, err = c.states(); err != nil {
		return nil, err
	}
	if q.Page, err = c.page(); err != nil {
		return nil, err
	}
	p, err := c.svc.List(c.ctx(), q)
	if err == nil && p.Sandboxes == nil {
		p.Sandboxes = []api.Sandbox{} // a list, not null
	}
	return p, err
}

func (c *call) create() (any, error) {
	var r api.CreateRequest
	if err := c.decode(&r); err != nil {
		return nil, err
	}
	return c.svc.Create(c.ctx(), r)
}

// onSandbox calls f with the id in the path, if it is one.
func onSandbox[T any](c *call, f func(id string) (T, error)) (any, error) {
	id, err := c.sandboxID()
	if err != nil {
		return nil, err
	}
	return f(id)
}

func (c *call) get() (any, error) {
	return onSandbox(c, func(id string) (*api.Sandbox, error) { return c.svc.Get(c.ctx(), id) })
}

func (c *call) update() (any, error) {
	return onSandbox(c, func(id string) (*api.Sandbox, error) {
		var p api.Patch
		if err := c.decodeSome(&p); err != nil {
			return nil, err
		}
		if p.Name == nil && p.Metadata == nil && p.OnTimeout == "" && !p.TimeoutSeconds.Given() && !p.AutoDeleteSeconds.Given() {
			return nil, api.Errorf(api.BadRequest, "body: has no field to change")
		}
		return c.svc.Update(c.ctx(), id, p)
	})
}

func (c *call) destroy() (any, error) {
	return onSandbox(c, func(id string) (any, error) { return nil, c.svc.Destroy(c.ctx(), id) })
}

func (c *call) pause() (any, error) {
	return onSandbox(c, func(id string) (*api.Sandbox, error) { return c.svc.Pause(c.ctx(), id) })
}

func (c *call) resume() (any, error) {
	return onSandbox(c, func(id string) (*api.Sandbox, error) { return c.svc.Resume(c.ctx(), id) })
}

func (c *call) fork() (any, error) {
	return onSandbox(c, func(id string) (*api.ForkResult, error) {
		var r api.ForkRequest
		if err := c.decode(&r); err != nil {
			return nil, err
		}
		return c.svc.Fork(c.ctx(), id, r)
	})
}

func (c *call) wait() (any, error) {
	return onSandbox(c, func(id string) (*api.Sandbox, error) {
		states, err := c.states()
		if err == nil && states == nil {
			err = api.Errorf(api.BadRequest, "query: state: missing")
		}
		if err != nil {
			return nil, err
		}
		t, err := c.seconds("timeout", api.MaxWait)
		if err != nil {
			return nil, err
		}
		return c.svc.Wait(c.ctx(), id, api.WaitRequest{States: states, Timeout: t})
	})
}

func (c *call) stats() (any, error) {
	return onSandbox(c, func(id string) (*api.Stats, error) { return c.svc.Stats(c.ctx(), id) })
}
