package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/forkvm/forkvm/api"
)

// Sharing implements [api.Service].
func (c *Client) Sharing(ctx context.Context, q api.SharingQuery) (*api.Sharing, error) {
	v := url.Values{}
	for _, id := range q.SandboxIDs {
		v.Add("id", id)
	}
	return ask[api.Sharing](ctx, c, request{method: http.MethodGet, path: "/v1/sharing", query: v, repeats: true})
}
