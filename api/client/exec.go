package client

import (
	"context"
	"net/http"
	"strconv"

	"github.com/forkvm/forkvm/api"
)

// Exec implements [api.Service].
func (c *Client) Exec(ctx context.Context, a api.Access, e api.ExecRequest) (*api.ExecResult, error) {
	r, err := inside(a, http.MethodPost, "/exec")
	if err != nil {
		return nil, err
	}
	r.in = e
	return ask[api.ExecResult](ctx, c, r)
}

// Start implements [api.Service].
func (c *Client) Start(ctx context.Context, a api.Access, s api.StartRequest) (*api.Process, error) {
	r, err := inside(a, http.MethodPost, "/processes")
	if err != nil {
		return nil, err
	}
	r.in = s
	return ask[api.Process](ctx, c, r)
}

// Processes implements [api.Service].
func (c *Client) Processes(ctx context.Context, a api.Access) (*api.ProcessList, error) {
	r, err := inside(a, http.MethodGet, "/processes")
	if err != nil {
		return nil, err
	}
	return ask[api.ProcessList](ctx, c, r)
}

func processPath(process uint64, sub string) string {
	return "/processes/" + strconv.FormatUint(process, 10) + sub
}

// WaitProcess implements [api.Service].
func (c *Client) WaitProcess(ctx context.Context, a api.Access, process uint64) (*api.Exit, error) {
	r, err := inside(a, http.MethodGet, processPath(process, "/wait"))
	if err != nil {
		return nil, err
	}
	return ask[api.Exit](ctx, c, r)
}

// Control implements [api.Service].
func (c *Client) Control(ctx context.Context, a api.Access, process uint64, what api.Control) error {
	sub, in := "/signal", any(api.Control{Signal: what.Signal})
	if what.Resize != nil {
		if what.Signal != "" {
			return api.Errorf(api.BadRequest, "a signal and a size are two requests")
		}
		sub, in = "/resize", what.Resize
	}
	r, err := inside(a, http.MethodPost, processPath(process, sub))
	if err != nil {
		return err
	}
	r.in = in
	return c.call(ctx, r, nil)
}
