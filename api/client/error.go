package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

// maxRetryAfter bounds what a server says, in seconds.
const maxRetryAfter = 86400

// failed is the error of a request that was not answered: that of the context
// if it has ended.
func failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return api.Errorf(api.InternalError, "client: %w", err)
}

// readError is the error that an answer tells of.
func readError(resp *http.Response) *api.Error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxError)) // what there is
	e := parseError(resp.StatusCode, b)
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 && s <= maxRetryAfter {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	return e
}

// parseError is the error that the body of an answer tells of. Servers in between
// have bodies of their own.
func parseError(status int, body []byte) *api.Error {
	var w wire.Envelope
	if json.Unmarshal(body, &w) == nil && w.Error != nil && w.Error.Code != "" {
		return w.Error
	}
	return api.Errorf(codeOf(status), "client: the server answered %d %s", status, http.StatusText(status))
}

// codeOf is the code that fits a status best.
func codeOf(status int) api.Code {
	switch status {
	case http.StatusUnauthorized:
		return api.Unauthorized
	case http.StatusForbidden:
		return api.Forbidden
	case http.StatusNotFound:
		return api.NotFound
	case http.StatusConflict:
		return api.Conflict
	case http.StatusGone:
		return api.Gone
	case http.StatusServiceUnavailable:
		return api.OutOfCapacity
	}
	if status >= 400 && status < 500 {
		return api.BadRequest
	}
	return api.InternalError
}
