package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// What a caller may want to tell apart, by errors.Is. An operation on a
// process that has ended fails with [os.ErrProcessDone].
var (
	// ErrVersion: the agent speaks another version of the protocol.
	ErrVersion = errors.New("agent speaks another protocol version")
	// ErrGeneration: the machine is not, or not yet, the one that is meant.
	ErrGeneration = errors.New("machine has another generation")
	// ErrBusy: the agent has too many operations or processes at once.
	ErrBusy = errors.New("agent is busy")
	// ErrNoProcess: no process has this id (any more).
	ErrNoProcess = errors.New("no such process")
	// ErrState: the process is not of the kind that this is for.
	ErrState = errors.New("not possible with this process")
	// ErrUnsupported: this agent cannot do this.
	ErrUnsupported = errors.New("not supported by this agent")
	// ErrBadRequest: the agent does not understand the request.
	ErrBadRequest = errors.New("bad request")
	// ErrDisconnected: the connection ended before the operation did.
	ErrDisconnected = errors.New("agent disconnected")
	// ErrProtocol: the agent broke the protocol.
	ErrProtocol = errors.New("agent broke the protocol")
	// ErrTimeout: the agent killed the command for its time-out.
	ErrTimeout = errors.New("command timed out")
	// ErrOutputLost: an attached client was slower than the command's output.
	ErrOutputLost = errors.New("output lost")
	// ErrBoot: the guest could not be made what it was to be, such as with a
	// root file system on disks. The agent has given up.
	ErrBoot = errors.New("guest cannot boot")
	// ErrTooLarge: there is more than this call returns in one piece.
	ErrTooLarge = errors.New("too large")
)

// AgentError is an error that an agent sent. It is one of the errors above by
// errors.Is, and a [syscall.Errno] by errors.As if the guest's kernel gave one.
type AgentError struct {
	Message string
	Errno   syscall.Errno // 0 if there is none
	kind    error
}

// Error implements error.
func (e *AgentError) Error() string { return e.Message }

// Unwrap returns what kind of error this is, and its errno.
func (e *AgentError) Unwrap() []error {
	var errs []error
	if e.kind != nil {
		errs = append(errs, e.kind)
	}
	if e.Errno != 0 {
		errs = append(errs, e.Errno)
	}
	return errs
}

// StartError says why a command could not be started. It wraps the errno, so
// that errors.Is(err, fs.ErrNotExist) and fs.ErrPermission work.
type StartError struct {
	Stage   Stage
	Message string
	Errno   syscall.Errno // 0 if the kernel gave none
}

// Stage says what could not be done when a command was started.
type Stage = proto.Stage

// The stages of starting a command.
const (
	StageDir    = proto.StageDir    // the working directory
	StageUser   = proto.StageUser   // the user or group
	StageLookup = proto.StageLookup // finding the program in PATH
	StageExec   = proto.StageExec   // executing it
	StageStdio  = proto.StageStdio  // pipes or the terminal
)

// Error implements error.
func (e *StartError) Error() string { return "start command: " + string(e.Stage) + ": " + e.Message }

// Unwrap returns the errno.
func (e *StartError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// decodeError decodes an Error frame.
func decodeError(payload []byte) error {
	var e proto.Error
	if err := json.Unmarshal(payload, &e); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	errno := syscall.Errno(max(0, e.Errno))
	if e.Code == proto.CodeStart {
		return &StartError{Stage: e.Stage, Message: e.Message, Errno: errno}
	}
	return &AgentError{Message: e.Message, Errno: errno, kind: kinds(e.Code)}
}

func kinds(c proto.Code) error {
	switch c {
	case proto.CodeVersion:
		return ErrVersion
	case proto.CodeGeneration:
		return ErrGeneration
	case proto.CodeBusy:
		return ErrBusy
	case proto.CodeNoProcess:
		return ErrNoProcess
	case proto.CodeState:
		return ErrState
	case proto.CodeDone:
		return os.ErrProcessDone
	case proto.CodeUnsupported:
		return ErrUnsupported
	case proto.CodeBadRequest:
		return ErrBadRequest
	case proto.CodeBoot:
		return ErrBoot
	}
	return nil
}

// pathError makes err of an operation on a file a *fs.PathError, whose Err is
// the errno if there is one.
func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*AgentError](err); ok && e.Errno != 0 {
		err = e.Errno
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}
