package proto

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// Generation names the identity of one running machine. A fork starts with
// its parent's generation and answers to its own only after it was renewed.
// The zero Generation is that of a machine which was never renewed.
type Generation [16]byte

// String returns the generation in hexadecimal.
func (g Generation) String() string { return hex.EncodeToString(g[:]) }

// MarshalText implements encoding.TextMarshaler.
func (g Generation) MarshalText() ([]byte, error) {
	return hex.AppendEncode(nil, g[:]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (g *Generation) UnmarshalText(b []byte) error {
	if len(b) != 2*len(g) {
		return fmt.Errorf("proto: generation of %d digits, want %d", len(b), 2*len(g))
	}
	_, err := hex.Decode(g[:], b)
	return err
}

// Op names an operation.
type Op string

// The operations.
const (
	OpHello    Op = "hello" // any generation; replies Info
	OpRenew    Op = "renew" // any generation; RenewRequest, RenewReply
	OpExec     Op = "exec"  // ExecRequest, Started
	OpAttach   Op = "attach"
	OpWait     Op = "wait"
	OpSignal   Op = "signal"
	OpResize   Op = "resize"
	OpList     Op = "list"
	OpOpen     Op = "open"
	OpStat     Op = "stat"
	OpLstat    Op = "lstat"
	OpReadDir  Op = "readdir"
	OpMkdir    Op = "mkdir"
	OpMkdirAll Op = "mkdirall"
	OpRename   Op = "rename"
	OpRemove   Op = "remove"
	OpRmAll    Op = "removeall"
	OpSymlink  Op = "symlink"
	OpReadlink Op = "readlink"
	OpChmod    Op = "chmod"
	OpChown    Op = "chown"
	OpChtimes  Op = "chtimes"
	OpWatch    Op = "watch"
	OpTarOut   Op = "tar-out"
	OpTarIn    Op = "tar-in"
	OpClock    Op = "clock"
	OpEntropy  Op = "entropy"
	OpHostname Op = "hostname"
	OpPowerOff Op = "poweroff"
	OpReboot   Op = "reboot"
)

// Handshake is the first frame of a connection.
type Handshake struct {
	Version    int             `json:"version"`
	Generation Generation      `json:"generation"`
	Op         Op              `json:"op"`
	Request    json.RawMessage `json:"request,omitempty"`
}

// ParseHandshake decodes the payload of a first frame. A handshake of another
// version is returned as it is, with an [Error] of code [CodeVersion].
func ParseHandshake(t Type, payload []byte) (Handshake, error) {
	if t != TypeHandshake {
		return Handshake{}, fmt.Errorf("%w: %v before the handshake", ErrUnexpectedFrame, t)
	}
	// The version is read first and alone: another version may have changed
	// the rest of the frame.
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(payload, &v); err != nil {
		return Handshake{}, fmt.Errorf("proto: handshake: %w", err)
	}
	if v.Version != Version {
		return Handshake{Version: v.Version}, &Error{
			Code:    CodeVersion,
			Message: fmt.Sprintf("protocol version %d asked for, %d spoken", v.Version, Version),
			Version: Version,
		}
	}
	var h Handshake
	if err := json.Unmarshal(payload, &h); err != nil {
		return Handshake{}, fmt.Errorf("proto: handshake: %w", err)
	}
	if h.Op == "" {
		return Handshake{}, errors.New("proto: handshake: no operation")
	}
	return h, nil
}

// Validator is a request that can tell whether it makes sense.
type Validator interface{ Validate() error }

// DecodeRequest decodes a handshake's request into req and validates it.
func DecodeRequest(raw json.RawMessage, req Validator) error {
	if err := json.Unmarshal(raw, req); err != nil {
		return fmt.Errorf("proto: request: %w", err)
	}
	return req.Validate()
}
