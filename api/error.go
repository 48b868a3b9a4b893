package api

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Code says what kind of error it is, in a word that does not change. It is an
// error itself, so that errors.Is(err, api.NotFound) tells.
type Code string

// The codes.
const (
	BadRequest               Code = "bad_request"                  // 400: the request is wrong; the message names the field
	Unauthorized             Code = "unauthorized"                 // 401: no key or token, or a wrong one
	Forbidden                Code = "forbidden"                    // 403: the key may not do this
	NotFound                 Code = "not_found"                    // 404: there is no such thing, or not any more
	Conflict                 Code = "conflict"                     // 409: not possible in the state that it is in
	SnapshotInProgress       Code = "snapshot_in_progress"         // 409: not while a snapshot is being taken
	Gone                     Code = "gone"                         // 410: it went while it was used, or it has failed
	TooManySnapshots         Code = "too_many_snapshots"           // 429: a limit on how many there may be
	TooManySnapshotsInFlight Code = "too_many_snapshots_in_flight" // 429: a limit on how many are taken at once
	TooManySandboxes         Code = "too_many_sandboxes"           // 429: a limit on how many there may be
	InternalError            Code = "internal_error"               // 500: a fault of ours or of the host
	SpawnFailed              Code = "spawn_failed"                 // 422: the guest could not start the command
	OutOfCapacity            Code = "out_of_capacity"              // 503: no memory left for it
	ExecTimeout              Code = "exec_timeout"                 // 504: the command ran for too long and was killed
	NotEnoughSpace           Code = "not_enough_space"             // 507: a disk is full, the guest's or the host's
)

var statuses = map[Code]int{
	BadRequest: http.StatusBadRequest, Unauthorized: http.StatusUnauthorized, Forbidden: http.StatusForbidden,
	NotFound: http.StatusNotFound, Conflict: http.StatusConflict, SnapshotInProgress: http.StatusConflict,
	Gone: http.StatusGone, TooManySnapshots: http.StatusTooManyRequests,
	TooManySnapshotsInFlight: http.StatusTooManyRequests, TooManySandboxes: http.StatusTooManyRequests,
	InternalError: http.StatusInternalServerError, SpawnFailed: http.StatusUnprocessableEntity,
	OutOfCapacity: http.StatusServiceUnavailable, ExecTimeout: http.StatusGatewayTimeout,
	NotEnoughSpace: http.StatusInsufficientStorage,
}

// Error implements error.
func (c Code) Error() string { return string(c) }

// StatusCode is the HTTP status that goes with the code.
func (c Code) StatusCode() int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Error is every error of a [Service], but for those of a context that ended.
type Error struct {
	Code    Code           `json:"code"`
	Message string         `json:"message"`
	Details map[string]any `json:"details,omitempty"`

	// RetryAfter is when to try again, if that is of use; 0 if not.
	RetryAfter time.Duration `json:"-"`

	cause error // in this process only
}

// Errorf makes an error. A %w in the format is kept for errors.Is and As.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), cause: errors.Unwrap(err)}
}

// Error implements error.
func (e *Error) Error() string {
	if e.Message == "" {
		return string(e.Code)
	}
	return e.Message
}

// StatusCode is the HTTP status that goes with the error.
func (e *Error) StatusCode() int { return e.Code.StatusCode() }

// Unwrap returns the code, and in the process where it happened the cause.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Code}
	}
	return []error{e.Code, e.cause}
}
