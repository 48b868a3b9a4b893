package main

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/forkvm/forkvm/vmm"
)

// The exit codes. They are part of the interface: scripts decide on them.
const (
	exitOK       = 0
	exitFinding  = 1   // doctor found a FAIL, demo a claim that does not hold, verify damage
	exitUsage    = 2   // the command line makes no sense
	exitTimeout  = 124 // the guest command was ended by --timeout, or wait was in vain
	exitFailure  = 125 // forkvm itself, or the machine, failed
	exitNoStart  = 126 // the guest command was found but could not be started
	exitNotFound = 127 // the guest command was not found
	exitSignal   = 128 // plus the number of the signal that ended the command
)

const exitCodesHelp = `Exit codes:
  0      success
  1      doctor: a check failed; demo: a claim did not hold; store verify: damage
  2      wrong usage
  124    the command in the guest was ended by --timeout; wait: not in time
  125    forkvm itself or the machine failed
  126    the command in the guest could not be started
  127    the command in the guest was not found
  128+n  the command in the guest was ended by signal n; also forkvm itself by SIGINT, SIGTERM or SIGHUP
  any    the exit code of the command in the guest
`

// codeError is an error that says with which code forkvm ends. Its text is
// printed unless it has none.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *codeError) Unwrap() error { return e.err }

// usageError is a mistake on the command line that only its command sees.
func usageError(format string, args ...any) error {
	return &codeError{exitUsage, fmt.Errorf(format, args...)}
}

// interrupted is the cause of a context that a signal to forkvm cancelled.
type interrupted struct{ sig syscall.Signal }

func (e interrupted) Error() string { return "stopped by " + e.sig.String() }

// exitCode is the code for the error of a command, which may be nil.
func exitCode(err error) int {
	var coded *codeError
	var stop interrupted
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &coded):
		return coded.code
	case errors.Is(err, vmm.ErrConfig):
		return exitUsage
	case errors.As(err, &stop):
		return exitSignal + int(stop.sig)
	default:
		return exitFailure
	}
}
