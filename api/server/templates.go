package server

import (
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

func (c *call) templates() (any, error) {
	l, err := c.svc.Templates(c.ctx())
	if err == nil && l.Templates == nil {
		l.Templates = []api.Template{}
	}
	return l, err
}

func (c *call) template() (any, error) {
	return c.svc.Template(c.ctx(), c.r.PathValue("name"))
}

func (c *call) deleteTemplate() (any, error) {
	return nil, c.svc.DeleteTemplate(c.ctx(), c.r.PathValue("name"))
}

func (c *call) templateLog() error {
	log, err := c.svc.TemplateLog(c.ctx(), c.r.PathValue("name"))
	if err != nil {
		return err
	}
	defer log.Close()
	return c.download("text/plain", log)
}

// buildPatience is how many keep-alives a client of a build has to take an event.
const buildPatience = 4

// buildTemplate builds a template and streams its log. The service reads the
// context to its end before the first event: nothing is read from a client that
// is being answered. If the client goes, or does not read, the build is given up.
func (c *call) buildTemplate() error {
	r, archive, err := c.readBuild()
	if err != nil {
		return err
	}
	s := c.stream()
	s.patience = buildPatience * c.KeepAlive
	t, err := c.svc.BuildTemplate(c.ctx(), r, archive, output{s, wire.Log})
	return s.end(c, wire.Built, t, err)
}

// readBuild reads a body up to the context, which is nil if there is none.
func (c *call) readBuild() (r api.BuildRequest, archive io.Reader, err error) {
	c.upload().began.Store(true) // for linger: it is read from here on
	if err := c.awaitBody(); err != nil {
		return r, nil, err
	}
	parts, err := c.r.MultipartReader()
	if err != nil {
		return r, nil, api.Errorf(api.BadRequest, "body: %w", err)
	}
	if r, err = c.buildRequest(parts); err != nil {
		return r, nil, err
	}
	part, err := nextPart(parts, wire.PartContext)
	if err != nil {
		return r, nil, err
	}
	last := lastPart{part, parts, c}
	if part == nil {
		err = last.end()
	} else {
		archive = last
	}
	return r, archive, errors.Join(err, c.ctx().Err())
}

// awaitBody has reading fail if nothing comes for bodyTimeout.
func (c *call) awaitBody() error {
	rc := http.NewResponseController(c.w)
	rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // unless the writer knows no such thing
	return c.ctx().Err()                            // if it has ended before that, reading would go on
}

// lastPart is the last part of a body, and ends only if the body does: then it is
// known when the client goes. Something has to come every bodyTimeout.
type lastPart struct {
	io.Reader
	parts *multipart.Reader
	call  *call
}

func (p lastPart) Read(b []byte) (int, error) {
	if err := p.call.awaitBody(); err != nil {
		return 0, err
	}
	n, err := p.Reader.Read(b)
	if err == io.EOF {
		if failure := p.end(); failure != nil {
			return n, failure
		}
		return n, io.EOF
	}
	if err != nil {
		err = api.Errorf(api.BadRequest, "body: %w", err)
	}
	return n, err
}

// maxEpilogue is how much a body may have after its last part, in bytes.
const maxEpilogue = 64 << 10

func (p lastPart) end() error {
	_, err := p.parts.NextRawPart()
	if errors.Is(err, io.EOF) {
		_, err = io.CopyN(io.Discard, p.call.r.Body, maxEpilogue)
	}
	if errors.Is(err, io.EOF) {
		http.NewResponseController(p.call.w).SetReadDeadline(time.Time{}) // it is done
		return nil
	}
	if err == nil {
		err = errors.New("more than is expected")
	}
	return api.Errorf(api.BadRequest, "body: after its last part: %w", err)
}

// buildRequest is the first part of a body.
func (c *call) buildRequest(parts *multipart.Reader) (r api.BuildRequest, err error) {
	part, err := nextPart(parts, wire.PartRequest)
	if err != nil {
		return r, err
	}
	if part == nil {
		return r, api.Errorf(api.BadRequest, "body: there is no part %s", wire.PartRequest)
	}
	c.body, err = io.ReadAll(io.LimitReader(part, c.MaxBody+1))
	if err != nil {
		return r, api.Errorf(api.BadRequest, "body: %w", err)
	}
	if int64(len(c.body)) > c.MaxBody {
		return r, api.Errorf(api.BadRequest, "body: part %s: larger than %d bytes", wire.PartRequest, c.MaxBody)
	}
	return r, c.decodeSome(&r)
}

// nextPart is the next part of a body, which must have the name; nil if there is
// none.
func nextPart(parts *multipart.Reader, name string) (io.Reader, error) {
	part, err := parts.NextRawPart()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, api.Errorf(api.BadRequest, "body: %w", err)
	}
	if part.FormName() != name {
		return nil, api.Errorf(api.BadRequest, "body: part %.40q is not expected, but %s", part.FormName(), name)
	}
	return part, nil
}
