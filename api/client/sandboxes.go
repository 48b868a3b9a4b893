package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/forkvm/forkvm/api"
)

const (
	sandboxes = "/v1/sandboxes"
	snapshots = "/v1/snapshots"
)

// sandboxPath is the path of a sandbox, or of something of it.
func sandboxPath(id, sub string) (string, error) {
	if err := api.CheckID(api.SandboxPrefix, id); err != nil {
		return "", err
	}
	return sandboxes + "/" + id + sub, nil
}

// sandbox asks for something of a sandbox, which the answer is.
func sandbox[T any](ctx context.Context, c *Client, id, sub string, r request) (*T, error) {
	var err error
	if r.path, err = sandboxPath(id, sub); err != nil {
		return nil, err
	}
	return ask[T](ctx, c, r)
}

func ask[T any](ctx context.Context, c *Client, r request) (*T, error) {
	out := new(T)
	if err := c.call(ctx, r, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Create implements [api.Service].
func (c *Client) Create(ctx context.Context, r api.CreateRequest) (*api.Sandbox, error) {
	return ask[api.Sandbox](ctx, c, request{method: http.MethodPost, path: sandboxes, in: r, once: true})
}

// Get implements [api.Service].
func (c *Client) Get(ctx context.Context, id string) (*api.Sandbox, error) {
	return sandbox[api.Sandbox](ctx, c, id, "", request{method: http.MethodGet, repeats: true})
}

// List implements [api.Service].
func (c *Client) List(ctx context.Context, q api.SandboxQuery) (*api.SandboxPage, error) {
	v := page(q.Page, q.NamePrefix)
	for _, s := range q.States {
		v.Add("state", string(s))
	}
	for key, value := range q.Metadata {
		v.Set("metadata."+key, value)
	}
	return ask[api.SandboxPage](ctx, c, request{method: http.MethodGet, path: sandboxes, query: v, repeats: true})
}

func page(p api.Page, prefix string) url.Values {
	v := make(url.Values)
	if p.Cursor != "" {
		v.Set("cursor", p.Cursor)
	}
	if p.Limit != 0 {
		v.Set("limit", strconv.Itoa(p.Limit))
	}
	if prefix != "" {
		v.Set("name_prefix", prefix)
	}
	return v
}

// patch is a Patch as it is sent: metadata that is there and empty stays.
type patch struct {
	api.Patch
	Metadata *map[string]string `json:"metadata,omitempty"`
}

// Update implements [api.Service].
func (c *Client) Update(ctx context.Context, id string, p api.Patch) (*api.Sandbox, error) {
	in := patch{Patch: p}
	if p.Metadata != nil {
		in.Metadata = &p.Metadata
	}
	return sandbox[api.Sandbox](ctx, c, id, "", request{method: http.MethodPatch, in: in, repeats: true})
}

// Destroy implements [api.Service].
func (c *Client) Destroy(ctx context.Context, id string) error {
	path, err := sandboxPath(id, "")
	if err != nil {
		return err
	}
	return c.call(ctx, request{method: http.MethodDelete, path: path, repeats: true}, nil)
}

// Pause implements [api.Service].
func (c *Client) Pause(ctx context.Context, id string) (*api.Sandbox, error) {
	return sandbox[api.Sandbox](ctx, c, id, "/pause", request{method: http.MethodPost, repeats: true})
}

// Resume implements [api.Service].
func (c *Client) Resume(ctx context.Context, id string) (*api.Sandbox, error) {
	return sandbox[api.Sandbox](ctx, c, id, "/resume", request{method: http.MethodPost, repeats: true})
}

// Fork implements [api.Service].
func (c *Client) Fork(ctx context.Context, id string, r api.ForkRequest) (*api.ForkResult, error) {
	return sandbox[api.ForkResult](ctx, c, id, "/fork", request{method: http.MethodPost, in: r, once: true})
}

// Wait implements [api.Service].
func (c *Client) Wait(ctx context.Context, id string, r api.WaitRequest) (*api.Sandbox, error) {
	v := url.Values{"timeout": {strconv.FormatFloat(r.Timeout.Seconds(), 'f', -1, 64)}}
	for _, s := range r.States {
		v.Add("state", string(s))
	}
	return sandbox[api.Sandbox](ctx, c, id, "/wait", request{method: http.MethodGet, query: v, repeats: true})
}

// Stats implements [api.Service].
func (c *Client) Stats(ctx context.Context, id string) (*api.Stats, error) {
	return sandbox[api.Stats](ctx, c, id, "/stats", request{method: http.MethodGet, repeats: true})
}

// CreateSnapshot implements [api.Service].
func (c *Client) CreateSnapshot(ctx context.Context, sandboxID string, r api.SnapshotRequest) (*api.Snapshot, error) {
	return sandbox[api.Snapshot](ctx, c, sandboxID, "/snapshots", request{method: http.MethodPost, in: r, once: true})
}

func snapshotPath(id string) (string, error) {
	if err := api.CheckID(api.SnapshotPrefix, id); err != nil {
		return "", err
	}
	return snapshots + "/" + id, nil
}

// Snapshot implements [api.Service].
func (c *Client) Snapshot(ctx context.Context, id string) (*api.Snapshot, error) {
	path, err := snapshotPath(id)
	if err != nil {
		return nil, err
	}
	return ask[api.Snapshot](ctx, c, request{method: http.MethodGet, path: path, repeats: true})
}

// Snapshots implements [api.Service].
func (c *Client) Snapshots(ctx context.Context, q api.SnapshotQuery) (*api.SnapshotPage, error) {
	v := page(q.Page, q.NamePrefix)
	if q.SandboxID != "" {
		v.Set("sandbox_id", q.SandboxID)
	}
	return ask[api.SnapshotPage](ctx, c, request{method: http.MethodGet, path: snapshots, query: v, repeats: true})
}

// RenameSnapshot implements [api.Service].
func (c *Client) RenameSnapshot(ctx context.Context, id, name string) (*api.Snapshot, error) {
	path, err := snapshotPath(id)
	if err != nil {
		return nil, err
	}
	in := map[string]string{"name": name}
	return ask[api.Snapshot](ctx, c, request{method: http.MethodPatch, path: path, in: in, repeats: true})
}

// DeleteSnapshot implements [api.Service].
func (c *Client) DeleteSnapshot(ctx context.Context, id string) error {
	path, err := snapshotPath(id)
	if err != nil {
		return err
	}
	return c.call(ctx, request{method: http.MethodDelete, path: path, repeats: true}, nil)
}
