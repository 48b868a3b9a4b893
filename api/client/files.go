package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

// inside is a request that the token of a sandbox is for. Those that change
// nothing may be repeated.
func inside(a api.Access, method, sub string) (request, error) {
	path, err := sandboxPath(a.ID, sub)
	return request{method: method, path: path, access: &a, repeats: method == http.MethodGet}, err
}

// file is a request for a file. Those that change files are not repeated: others
// may have changed them in between.
func file(a api.Access, method, sub, path string) (request, error) {
	r, err := inside(a, method, sub)
	r.query = url.Values{"path": {path}}
	return r, err
}

func askFile[T any](ctx context.Context, c *Client, a api.Access, method, sub, path string) (*T, error) {
	r, err := file(a, method, sub, path)
	if err != nil {
		return nil, err
	}
	return ask[T](ctx, c, r)
}

// Stat implements [api.Service].
func (c *Client) Stat(ctx context.Context, a api.Access, path string) (*api.FileInfo, error) {
	return askFile[api.FileInfo](ctx, c, a, http.MethodGet, "/files/stat", path)
}

// RealPath implements [api.Service].
func (c *Client) RealPath(ctx context.Context, a api.Access, path string) (*api.RealPath, error) {
	return askFile[api.RealPath](ctx, c, a, http.MethodGet, "/files/realpath", path)
}

// ListFiles implements [api.Service].
func (c *Client) ListFiles(ctx context.Context, a api.Access, path string) (*api.FileList, error) {
	return askFile[api.FileList](ctx, c, a, http.MethodGet, "/files/list", path)
}

// Mkdir implements [api.Service].
func (c *Client) Mkdir(ctx context.Context, a api.Access, path string) (*api.FileInfo, error) {
	return askFile[api.FileInfo](ctx, c, a, http.MethodPost, "/files/mkdir", path)
}

// Rename implements [api.Service].
func (c *Client) Rename(ctx context.Context, a api.Access, from, to string) (*api.FileInfo, error) {
	r, err := file(a, http.MethodPost, "/files/rename", from)
	if err != nil {
		return nil, err
	}
	r.query.Set("to", to)
	return ask[api.FileInfo](ctx, c, r)
}

// Remove implements [api.Service].
func (c *Client) Remove(ctx context.Context, a api.Access, path string, o api.RemoveOptions) error {
	r, err := file(a, http.MethodDelete, "/files", path)
	if err != nil {
		return err
	}
	if o.Recursive {
		r.query.Set("recursive", "true")
	}
	return c.call(ctx, r, nil)
}

// ReadFile implements [api.Service]. Reading ends with an error that is [ErrCut],
// and not with io.EOF, if the file was not sent to its end.
func (c *Client) ReadFile(ctx context.Context, a api.Access, path string) (io.ReadCloser, *api.FileInfo, error) {
	r, err := file(a, http.MethodGet, "/files", path)
	if err != nil {
		return nil, nil, err
	}
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	info, err := wire.DecodeFileInfo(resp.Header.Get(wire.FileInfo))
	if err != nil {
		resp.Body.Close()
		return nil, nil, api.Errorf(api.InternalError, "client: the answer is not as expected: %w", err)
	}
	return &download{ctx, resp.Body}, info, nil
}

// ReadTree implements [api.Service]. See ReadFile.
func (c *Client) ReadTree(ctx context.Context, a api.Access, path string) (io.ReadCloser, error) {
	r, err := file(a, http.MethodGet, "/files/tar", path)
	if err != nil {
		return nil, err
	}
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	return &download{ctx, resp.Body}, nil
}

type download struct {
	ctx context.Context
	io.ReadCloser
}

func (d *download) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = failed(d.ctx, fmt.Errorf("%w: %w", ErrCut, err))
	}
	return n, err
}

// WriteFile implements [api.Service].
func (c *Client) WriteFile(ctx context.Context, a api.Access, path string, content io.Reader, o api.WriteOptions) (*api.FileInfo, error) {
	r, err := file(a, http.MethodPut, "/files", path)
	if err != nil {
		return nil, err
	}
	if o.Mode != nil {
		r.query.Set("mode", strconv.FormatUint(uint64(*o.Mode), 8))
	}
	info := new(api.FileInfo)
	if err := c.upload(ctx, r, content, info); err != nil {
		return nil, err
	}
	return info, nil
}

// WriteTree implements [api.Service].
func (c *Client) WriteTree(ctx context.Context, a api.Access, path string, archive io.Reader) error {
	r, err := file(a, http.MethodPut, "/files/tar", path)
	if err != nil {
		return err
	}
	return c.upload(ctx, r, archive, nil)
}

// upload sends content as the body. If content fails, so does the request before
// its end, and the error is that of content.
func (c *Client) upload(ctx context.Context, r request, content io.Reader, out any) error {
	source := &upload{r: content, failed: make(chan error, 1)}
	r.body = source
	err := c.call(ctx, r, out)
	if err == nil {
		return nil
	}
	return source.blame(ctx, err)
}

// blame is the error of a request, which is that of the content if it failed.
func (u *upload) blame(ctx context.Context, err error) error {
	select {
	case failure := <-u.failed:
		if !errors.Is(failure, ctx.Err()) || ctx.Err() == nil {
			return failed(ctx, failure)
		}
	default:
	}
	return err
}

// upload is the body of a request. It is no io.Closer: the caller's content stays
// open.
type upload struct {
	r      io.Reader
	failed chan error // has room for one
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if err != nil && err != io.EOF {
		select {
		case u.failed <- err:
		default:
		}
	}
	return n, err
}
