package proto

// Code says of what kind an [Error] is.
type Code string

// The error codes.
const (
	CodeVersion     Code = "version"     // the sides speak different versions
	CodeGeneration  Code = "generation"  // the handshake names another machine
	CodeBadRequest  Code = "bad_request" // the request is malformed
	CodeBusy        Code = "busy"        // too many operations or processes
	CodeNoProcess   Code = "no_process"  // no process has this id
	CodeState       Code = "state"       // the process is not of the kind for this
	CodeDone        Code = "done"        // the process has ended
	CodeUnsupported Code = "unsupported" // this agent cannot do this
	CodeStart       Code = "start"       // a command could not be started; Stage says why
	CodeFile        Code = "file"        // a file operation failed with Errno
	CodeBoot        Code = "boot"        // on the ready port: the guest cannot be what it was to be
	CodeInternal    Code = "internal"    // anything else
)

// Stage says what could not be done when a command was started.
type Stage string

// The stages of starting a command.
const (
	StageDir    Stage = "dir"    // the working directory
	StageUser   Stage = "user"   // the user or group
	StageLookup Stage = "lookup" // finding the program in PATH
	StageExec   Stage = "exec"   // executing it
	StageStdio  Stage = "stdio"  // pipes or the terminal
)

// Error is how an agent refuses or ends an operation.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Errno   int    `json:"errno,omitempty"` // Linux errno, 0 if there is none
	Stage   Stage  `json:"stage,omitempty"` // with CodeStart
	Version int    `json:"version,omitempty"`
}

// Error implements error.
func (e *Error) Error() string { return "agent: " + e.Message }
