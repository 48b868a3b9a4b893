package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

// answer is what a request of JSON comes to.
type answer struct {
	status     int
	body       []byte
	retryAfter time.Duration
	err        error // that it tells of, if any
}

// newAnswer is v with the status, or the error.
func newAnswer(status int, v any, err error) answer {
	if err != nil {
		e := apiError(err)
		b, failed := marshal(wire.Envelope{Error: e})
		if failed != nil { // details that are no JSON
			b, _ = marshal(wire.Envelope{Error: &api.Error{Code: e.Code, Message: e.Message}})
		}
		return answer{status: e.StatusCode(), body: b, retryAfter: e.RetryAfter, err: err}
	}
	if status == 0 {
		status = http.StatusOK
	}
	if status == http.StatusNoContent {
		return answer{status: status}
	}
	b, err := marshal(v)
	if err != nil {
		return newAnswer(0, nil, err)
	}
	return answer{status: status, body: b}
}

// apiError is what is told of an error. What is no error of the API is ours, and
// only the log has it.
func apiError(err error) *api.Error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	return api.Errorf(api.InternalError, "internal error; the server's log says more")
}

// final tells whether it stands for whoever repeats the request: it says that
// something was made, or that the request makes no sense. Whatever else failed
// left nothing behind, and may go well another time.
func (a answer) final() bool {
	return a.err == nil || a.status == http.StatusBadRequest
}

func (a answer) write(w http.ResponseWriter) {
	h := w.Header()
	if a.retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(a.retryAfter.Seconds())), 10))
	}
	if a.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if a.body != nil {
		h.Set("Content-Type", "application/json")
		h.Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	h.Set("Cache-Control", "no-store") // there are tokens in answers
	w.WriteHeader(a.status)
	w.Write(a.body)
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// fail answers with an error. If the answer has begun it ends with the
// connection, so that nobody takes it for whole.
func (s *server) fail(w *response, r *http.Request, err error) {
	s.note(w, r, err)
	var e *api.Error
	gone := r.Context().Err() != nil && !errors.As(err, &e)
	if w.started() || gone {
		panic(http.ErrAbortHandler)
	}
	newAnswer(0, nil, err).write(w)
}

// note has the log of the request tell the error.
func (s *server) note(w *response, r *http.Request, err error) {
	w.rec.err = err
	var e *api.Error
	if !errors.As(err, &e) && !errors.Is(err, context.Canceled) {
		s.Logger.Error("request failed", "request_id", w.rec.id, "route", w.rec.route, "err", err)
	}
}
