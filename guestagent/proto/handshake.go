package proto

import (
	"encoding/hex"
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

// Repeats reports whether the connection of an operation may carry another when
// it has ended without an [Error]: the agent's last frame for it says so.
func (o Op) Repeats() bool {
	switch o {
	case OpExec, OpHello, OpRenew, OpSignal, OpResize, OpClock, OpEntropy, OpHostname,
		OpStat, OpLstat, OpMkdir, OpMkdirAll, OpRename, OpRemove, OpRmAll, OpSymlink, OpReadlink, OpChmod, OpChown, OpChtimes:
		return true
	}
	return false
}

// Handshake is the first frame of an operation, and so of a connection: the version in one byte, the
// generation, the operation's name after its length in one byte, and the rest
// is the request, see [Encode].
type Handshake struct {
	Version    int
	Generation Generation
	Op         Op
	Request    []byte // valid as long as the payload that was parsed
}

// Append appends the frame's payload to b.
func (h *Handshake) Append(b []byte) []byte {
	b = append(b, byte(h.Version))
	b = append(b, h.Generation[:]...)
	b = append(b, byte(len(h.Op)))
	b = append(b, h.Op...)
	return append(b, h.Request...)
}

var errHandshake = errors.New("proto: malformed handshake")

// ParseHandshake decodes the payload of a first frame. Of a handshake of
// another version, which may have another form, only the version is returned,
// with an [Error] of code [CodeVersion].
func ParseHandshake(t Type, payload []byte) (Handshake, error) {
	if t != TypeHandshake {
		return Handshake{}, fmt.Errorf("%w: %v before the handshake", ErrUnexpectedFrame, t)
	}
	d := decoder{b: payload}
	h := Handshake{Version: int(d.byte())}
	if d.bad {
		return Handshake{}, errHandshake
	}
	if h.Version == '{' {
		h.Version = 1 // which was JSON
	}
	if h.Version != Version {
		return h, &Error{
			Code:    CodeVersion,
			Message: fmt.Sprintf("protocol version %d asked for, %d spoken", h.Version, Version),
			Version: Version,
		}
	}
	h.Generation = d.generation()
	h.Op = Op(d.take(uint64(d.byte())))
	h.Request = d.b
	if d.bad || h.Op == "" {
		return Handshake{}, errHandshake
	}
	return h, nil
}

// Validator is a request that can tell whether it makes sense.
type Validator interface{ Validate() error }

// DecodeRequest decodes a handshake's request into req and validates it.
func DecodeRequest(raw []byte, req Validator) error {
	if err := Decode(raw, req); err != nil {
		return fmt.Errorf("%w, as a request", err)
	}
	return req.Validate()
}
