package guest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/client"
)

// ErrLost says that there is no connection to the agent, or not any more. Who
// knows what became of the machine can say more. It is part of an error that is
// [api.Gone].
var ErrLost = errors.New("the sandbox went away")

// busyRetry is when to ask again what a guest has too much of.
const busyRetry = time.Second

// fail makes err, that of an operation on the agent, what the API says: an
// [*api.Error], or the cause of ctx's end.
func fail(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*client.StartError](err); ok {
		return spawnError(e)
	}
	if errno, ok := guestErrno(err); ok {
		return fileError(errno, err)
	}
	if e := agentError(err); e != nil {
		return e
	}
	return api.Errorf(api.Gone, "%w: %v", ErrLost, err)
}

// agentError is the error for what the agent, and not the guest's kernel, says.
// It is nil for what nobody said, as the connection is gone.
func agentError(err error) error {
	switch {
	case errors.Is(err, client.ErrNoProcess):
		return api.Errorf(api.NotFound, "there is no such process, or not any more: %w", err)
	case errors.Is(err, os.ErrProcessDone):
		return api.Errorf(api.Conflict, "the process has ended: %w", err)
	case errors.Is(err, client.ErrState):
		return api.Errorf(api.Conflict, "%w", err)
	case errors.Is(err, client.ErrBusy):
		// Not a lack of ours: it is this sandbox that has as many as it can.
		e := api.Errorf(api.Conflict, "%w", err)
		e.RetryAfter = busyRetry
		return e
	case errors.Is(err, client.ErrUnsupported), errors.Is(err, client.ErrVersion):
		// Snapshots hold the agent of the day they were taken.
		return api.Errorf(api.Conflict, "the sandbox was made by another version: %w", err)
	case errors.Is(err, client.ErrBadRequest):
		return api.Errorf(api.BadRequest, "%w", err)
	case errors.Is(err, client.ErrProtocol):
		// The guest has broken its agent. No state of the machine tells more.
		return api.Errorf(api.Gone, "%w", err)
	}
	if e, ok := errors.AsType[*client.AgentError](err); ok && !errors.Is(e, client.ErrGeneration) {
		return api.Errorf(api.Conflict, "%w", err)
	}
	return nil
}

// guestErrno returns the errno that the guest's kernel gave. One of this host's
// network is none, although errors.As would find it.
func guestErrno(err error) (syscall.Errno, bool) {
	if e, ok := errors.AsType[*client.AgentError](err); ok {
		return e.Errno, e.Errno != 0
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		errno, ok := e.Err.(syscall.Errno)
		return errno, ok
	}
	return 0, false
}

// fileCode says whose fault an errno is: what the request names is of the wrong
// kind (bad_request), or is in a state in which that cannot be done (conflict).
// No errno of a guest is a fault of ours but that of a disk that cannot be read.
func fileCode(errno syscall.Errno) api.Code {
	switch errno {
	case syscall.ENOENT:
		return api.NotFound
	case syscall.ENOSPC, syscall.EDQUOT:
		return api.NotEnoughSpace
	case syscall.EISDIR, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.EINVAL, syscall.EXDEV, syscall.EFBIG:
		return api.BadRequest
	case syscall.EIO:
		return api.InternalError
	}
	// Such as EEXIST, ENOTEMPTY, EBUSY, ETXTBSY, EACCES, EPERM and EROFS.
	return api.Conflict
}

func fileError(errno syscall.Errno, err error) *api.Error {
	e := api.Errorf(fileCode(errno), "%w", err)
	e.Details = map[string]any{"errno": errnoName(errno)}
	return e
}

func spawnError(err *client.StartError) *api.Error {
	e := api.Errorf(api.SpawnFailed, "%w", err)
	e.Details = map[string]any{"stage": string(err.Stage)}
	if err.Errno != 0 {
		e.Details["errno"] = errnoName(err.Errno)
	}
	return e
}

// errnoName returns such as ENOENT.
func errnoName(e syscall.Errno) string {
	if name := unix.ErrnoName(e); name != "" {
		return name
	}
	return strconv.Itoa(int(e))
}

// ofCaller is the error for a stream of the caller's that failed.
func ofCaller(what string, err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	return api.Errorf(api.BadRequest, "%s: %w", what, err)
}

// badField is the error for a field that is wrong.
func badField(field, format string, args ...any) error {
	return api.Errorf(api.BadRequest, field+": "+format, args...)
}
