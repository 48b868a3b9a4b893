package proto

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// The messages of renew and exec are encoded by hand and not as JSON. They are
// what a fork's first reply waits for, and what reflection over JSON touches
// is several times what the rest of the agent does.
//
// Numbers are varints as in package encoding/binary; bytes and strings follow
// their length, lists their number of items. Nothing may follow a message.

// Requests and replies that are encoded by hand. Values can be encoded, and
// pointers to them decoded as well.
type (
	appender interface{ append(b []byte) []byte }
	parser   interface{ parse(d *decoder) }
)

var errMessage = errors.New("proto: malformed message")

// Encode returns a request or reply as the payload of a frame.
func Encode(v any) ([]byte, error) {
	if m, ok := v.(appender); ok {
		return m.append(nil), nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("proto: %w", err)
	}
	return b, nil
}

// Decode decodes what Encode returned into v, a pointer.
func Decode(b []byte, v any) error {
	if m, ok := v.(parser); ok {
		d := decoder{b: b}
		m.parse(&d)
		if d.bad || len(d.b) > 0 {
			return errMessage
		}
		return nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("proto: %w", err)
	}
	return nil
}

func appendString[S ~string | ~[]byte](b []byte, s S) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendTexts(b []byte, ts []Text) []byte {
	b = binary.AppendUvarint(b, uint64(len(ts)))
	for _, t := range ts {
		b = appendString(b, t)
	}
	return b
}

func appendTime(b []byte, t time.Time) []byte {
	b = binary.AppendVarint(b, t.Unix())
	return binary.AppendUvarint(b, uint64(t.Nanosecond()))
}

// decoder takes a message apart. Once something is missing it yields zeros.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) fail() { d.b, d.bad = nil, true }

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// take returns the next n bytes, as part of the message.
func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) bytes() []byte { return append([]byte(nil), d.take(d.uvarint())...) }

func (d *decoder) string() string { return string(d.take(d.uvarint())) }

// texts returns a list, which is nil if it is empty.
func (d *decoder) texts() []Text {
	n := d.uvarint()
	if n > uint64(len(d.b)) { // each takes a byte at least
		d.fail()
	}
	if d.bad || n == 0 {
		return nil
	}
	ts := make([]Text, 0, n)
	for range n {
		ts = append(ts, Text(d.string()))
	}
	return ts
}

func (d *decoder) generation() (g Generation) {
	copy(g[:], d.take(uint64(len(g))))
	return g
}

func (d *decoder) time() time.Time {
	sec, nsec := d.varint(), d.uvarint()
	if nsec >= 1e9 {
		d.fail()
	}
	return time.Unix(sec, int64(nsec))
}

func (r RenewRequest) append(b []byte) []byte {
	b = append(b, r.Generation[:]...)
	b = appendString(b, r.Entropy)
	b = appendTime(b, r.WallClock)
	return appendString(b, r.Hostname)
}

func (r *RenewRequest) parse(d *decoder) {
	r.Generation, r.Entropy, r.WallClock, r.Hostname = d.generation(), d.bytes(), d.time(), d.string()
}

func (r RenewReply) append(b []byte) []byte {
	b = append(b, r.Generation[:]...)
	b = appendTime(b, r.WallClock)
	b = appendString(b, r.Hostname)
	return appendString(b, r.Random)
}

func (r *RenewReply) parse(d *decoder) {
	r.Generation, r.WallClock, r.Hostname, r.Random = d.generation(), d.time(), d.string(), d.bytes()
}

// Flags of an exec request.
const (
	execStdin = 1 << iota
	execDetach
	execEnv  // the environment is given, if only as empty
	execTTY  // its size follows at the end
	execIdle // the idle time-out follows after that
	execFlags
)

func (r ExecRequest) flags() (f byte) {
	if r.Stdin {
		f |= execStdin
	}
	if r.Detach {
		f |= execDetach
	}
	if r.Env != nil {
		f |= execEnv
	}
	if r.TTY != nil {
		f |= execTTY
	}
	if r.IdleTimeout != 0 {
		f |= execIdle
	}
	return f
}

func (r ExecRequest) append(b []byte) []byte {
	b = append(b, r.flags())
	b = appendString(b, r.Path)
	b = appendTexts(b, r.Args)
	b = appendTexts(b, r.Env)
	b = appendTexts(b, r.ExtraEnv)
	b = appendString(b, r.Dir)
	b = appendString(b, r.User)
	b = binary.AppendVarint(b, int64(r.Timeout))
	if r.TTY != nil {
		b = binary.BigEndian.AppendUint16(b, r.TTY.Rows)
		b = binary.BigEndian.AppendUint16(b, r.TTY.Cols)
	}
	if r.IdleTimeout != 0 {
		b = binary.AppendVarint(b, int64(r.IdleTimeout))
	}
	return b
}

func (r *ExecRequest) parse(d *decoder) {
	flags := d.byte()
	if flags >= execFlags {
		d.fail()
	}
	r.Stdin, r.Detach = flags&execStdin != 0, flags&execDetach != 0
	r.Path, r.Args, r.Env, r.ExtraEnv = Text(d.string()), d.texts(), d.texts(), d.texts()
	r.Dir, r.User, r.Timeout = Text(d.string()), d.string(), time.Duration(d.varint())
	switch {
	case flags&execEnv == 0 && r.Env != nil:
		d.fail()
	case flags&execEnv != 0 && r.Env == nil:
		r.Env = []Text{}
	}
	if flags&execTTY != 0 {
		if size := d.take(4); size != nil {
			r.TTY = &WinSize{Rows: binary.BigEndian.Uint16(size), Cols: binary.BigEndian.Uint16(size[2:])}
		}
	}
	if flags&execIdle != 0 {
		r.IdleTimeout = time.Duration(d.varint())
	}
}

func (r Started) append(b []byte) []byte {
	return binary.AppendVarint(binary.AppendUvarint(b, r.ID), int64(r.PID))
}

func (r *Started) parse(d *decoder) { r.ID, r.PID = d.uvarint(), int(d.varint()) }

func (r Exit) append(b []byte) []byte {
	timedOut := byte(0)
	if r.TimedOut {
		timedOut = 1
	}
	b = append(b, timedOut)
	b = binary.AppendVarint(b, int64(r.Code))
	b = binary.AppendVarint(b, int64(r.Signal))
	b = binary.AppendVarint(b, r.LostStdout)
	return binary.AppendVarint(b, r.LostStderr)
}

func (r *Exit) parse(d *decoder) {
	r.TimedOut = d.byte() != 0
	r.Code, r.Signal = int(d.varint()), int(d.varint())
	r.LostStdout, r.LostStderr = d.varint(), d.varint()
}
