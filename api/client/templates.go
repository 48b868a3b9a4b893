package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

const templates = "/v1/templates"

func templatePath(name, sub string) (string, error) {
	if name == "" {
		return "", api.Errorf(api.NotFound, "a template has a name")
	}
	return templates + "/" + url.PathEscape(name) + sub, nil
}

// Templates implements [api.Service].
func (c *Client) Templates(ctx context.Context) (*api.TemplateList, error) {
	return ask[api.TemplateList](ctx, c, request{method: http.MethodGet, path: templates, repeats: true})
}

// Template implements [api.Service].
func (c *Client) Template(ctx context.Context, name string) (*api.Template, error) {
	path, err := templatePath(name, "")
	if err != nil {
		return nil, err
	}
	return ask[api.Template](ctx, c, request{method: http.MethodGet, path: path, repeats: true})
}

// TemplateLog implements [api.Service]. See ReadFile.
func (c *Client) TemplateLog(ctx context.Context, name string) (io.ReadCloser, error) {
	path, err := templatePath(name, "/log")
	if err != nil {
		return nil, err
	}
	resp, err := c.send(ctx, request{method: http.MethodGet, path: path, repeats: true})
	if err != nil {
		return nil, err
	}
	return &download{ctx, resp.Body}, nil
}

// DeleteTemplate implements [api.Service].
func (c *Client) DeleteTemplate(ctx context.Context, name string) error {
	path, err := templatePath(name, "")
	if err != nil {
		return err
	}
	return c.call(ctx, request{method: http.MethodDelete, path: path, repeats: true}, nil)
}

// BuildTemplate implements [api.Service]. It is never repeated: what was done is
// found by the next build. If the connection fails the error is [ErrCut], and the
// server gives the build up.
func (c *Client) BuildTemplate(ctx context.Context, r api.BuildRequest, archive io.Reader, log io.Writer) (*api.Template, error) {
	source := &upload{r: archive, failed: make(chan error, 1)}
	body, kind, err := buildBody(r, archive != nil, source)
	if err != nil {
		return nil, api.Errorf(api.BadRequest, "client: %w", err)
	}
	var built *api.Template
	ask := request{method: http.MethodPost, path: templates, body: body, kind: kind}
	err = c.stream(ctx, ask, func(e event) error { return onBuildEvent(e, log, &built) })
	if err != nil {
		return nil, source.blame(ctx, err)
	}
	return built, nil
}

// buildBody is the body of a build, and its content type.
func buildBody(r api.BuildRequest, hasContext bool, archive io.Reader) (io.Reader, string, error) {
	var head bytes.Buffer
	m := multipart.NewWriter(&head)
	part, err := m.CreateFormField(wire.PartRequest)
	if err == nil {
		err = json.NewEncoder(part).Encode(r)
	}
	if err == nil && hasContext {
		_, err = m.CreateFormFile(wire.PartContext, "context.tar")
	}
	if err != nil {
		return nil, "", err
	}
	before := bytes.Clone(head.Bytes())
	head.Reset()
	if err := m.Close(); err != nil { // writes what comes after
		return nil, "", err
	}
	if !hasContext {
		archive = http.NoBody
	}
	return io.MultiReader(bytes.NewReader(before), archive, &head), m.FormDataContentType(), nil
}

func onBuildEvent(e event, log io.Writer, built **api.Template) error {
	switch e.name {
	case wire.Log:
		var text api.Text
		if err := e.decode(&text); err != nil || log == nil {
			return err
		}
		_, err := log.Write(text)
		return err
	case wire.Built:
		*built = new(api.Template)
		if err := e.decode(*built); err != nil {
			return err
		}
		return errEnded
	}
	return nil // of a server that is newer
}
