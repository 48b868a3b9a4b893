package api

import (
	"encoding/json"
	"errors"
	"io"
	"time"
	"unicode/utf8"
)

// WinSize is the size of a terminal in characters.
type WinSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Command says what to run in a sandbox. No shell sees it unless it names one.
type Command struct {
	Argv []string `json:"argv"`
	// EnvVars is set on top of the sandbox's environment.
	EnvVars map[string]string `json:"env_vars,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`  // empty: the same directory each time
	User    string            `json:"user,omitempty"` // a name or number, with or without :group; empty: the template's
	// TimeoutSeconds is when the command is killed with all it started:
	// [DefaultTimeout] if absent, and null or 0 for never.
	TimeoutSeconds Opt[int64] `json:"timeout_seconds,omitzero"`
}

// ExecRequest asks for a command to be run to its end, with its output in the
// answer.
type ExecRequest struct {
	Command
	Stdin Text `json:"stdin,omitempty"`
	// MaxOutputBytes is how much of each stream the answer has at most, up to
	// [MaxOutput]; 0 is [DefaultOutput]. What is more is dropped.
	MaxOutputBytes int64 `json:"max_output_bytes,omitempty"`
}

// Exit is how a command ended.
type Exit struct {
	Code   int    `json:"exit_code"`        // -1 if a signal ended it
	Signal string `json:"signal,omitempty"` // such as SIGKILL
}

// ExecResult is a command that has ended, whatever its exit code.
type ExecResult struct {
	Exit
	Stdout Text `json:"stdout"`
	Stderr Text `json:"stderr"`
	// Truncated says that there was more output than the answer has.
	Truncated bool `json:"truncated"`
	// DurationSeconds is how long it ran, as the host saw it.
	DurationSeconds float64 `json:"duration_seconds"`
}

// Text is bytes that more often than not are text: in JSON a string or, if they
// are no UTF-8, {"base64": "…"}.
type Text []byte

type encoded struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements [json.Marshaler].
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.Valid(t) {
		return json.Marshal(string(t))
	}
	return json.Marshal(encoded{t})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (t *Text) UnmarshalJSON(b []byte) error {
	var s string
	err := json.Unmarshal(b, &s)
	if err == nil {
		*t = Text(s)
		return nil
	}
	var e map[string][]byte // and not encoded, which would take other fields and none
	if json.Unmarshal(b, &e) != nil {
		return err
	}
	if len(e) != 1 || e["base64"] == nil {
		return errors.New("an object has base64 and nothing else")
	}
	*t = e["base64"]
	return nil
}

// StartRequest asks for a command whose streams are connected while it runs, or
// which runs in the background.
type StartRequest struct {
	Command
	TTY *WinSize `json:"tty,omitempty"` // a terminal of this size; all output is Stdout's then
	// Stdin says that input will come. Without, the command has none.
	Stdin bool `json:"stdin,omitempty"`
	// IdleTimeoutSeconds is when the command is killed if it prints nothing;
	// each output starts it again. Absent, null or 0: never.
	IdleTimeoutSeconds Opt[int64] `json:"idle_timeout_seconds,omitzero"`
}

// Streams is what a command is connected to while it runs.
type Streams struct {
	Stdin          io.Reader // nil: none, or for Attach as it is
	Stdout, Stderr io.Writer // nil: discarded
	// Started, if not nil, is told of the process before its first output.
	Started func(Process)
	// Control, if not nil, is read for what else to do to it.
	Control <-chan Control
	// Live has Attach skip output that was printed before.
	Live bool
}

// Control is a signal, or a new size of the terminal.
type Control struct {
	Signal string   `json:"signal,omitempty"` // such as SIGTERM or TERM
	Resize *WinSize `json:"resize,omitempty"`
}

// Process is a command that was started in a sandbox.
type Process struct {
	ID         uint64    `json:"id"`
	PID        int       `json:"pid"` // in the guest
	Argv       []string  `json:"argv"`
	StartedAt  time.Time `json:"started_at"`
	TTY        bool      `json:"tty"`
	Background bool      `json:"background"` // nobody is connected to it
	Exit       *Exit     `json:"exit"`       // null while it runs
}

// ProcessList is the commands that run, and those that ended not long ago, in
// the order in which they were started.
type ProcessList struct {
	Processes []Process `json:"processes"`
}
