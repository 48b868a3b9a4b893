package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

const (
	// Version is the protocol version both sides must share.
	Version = 2
	// AgentPort is the vsock port on which the agent listens in the guest.
	AgentPort = 1024
	// ReadyPort is the vsock port on the host (CID 2) which the agent dials
	// once it listens, to send one Ready frame.
	ReadyPort = 1025
	// MaxPayload is the most bytes one frame may carry.
	MaxPayload = 1 << 20
	// StdinWindow is the most bytes of standard input a client may have sent
	// without having got credit back for them.
	StdinWindow = 256 << 10

	headerLen = 5        // type, then length in big-endian order
	readStep  = 64 << 10 // how much memory an announced length is worth
)

// ErrFrameTooLarge reports a frame whose announced length exceeds [MaxPayload].
var ErrFrameTooLarge = errors.New("proto: frame too large")

// ErrUnexpectedFrame reports a frame that has no place where it came.
var ErrUnexpectedFrame = errors.New("proto: unexpected frame")

// Type says what a frame carries.
type Type byte

// The frame types.
const (
	TypeHandshake Type = iota + 1 // Handshake, the first frame of a client
	TypeReply                     // the operation's answer, see Encode
	TypeError                     // JSON Error, the end of the operation
	TypeData                      // bytes of standard input, of a file or of an archive
	TypeStdout                    // bytes of standard output, or of the terminal
	TypeStderr                    // bytes of standard error
	TypeEOF                       // nothing follows from this sender, or no byte at this offset
	TypeCredit                    // uint32, bytes of standard input that were consumed
	TypeExit                      // Exit, how a command ended, see Encode
	TypeItem                      // JSON, one of a list
	TypeReadAt                    // int64 offset, uint32 length
	TypeWriteAt                   // int64 offset, then the bytes
	TypeCall                      // JSON FileCall on an open file
	TypeReady                     // JSON Info, the only frame on the ready port
	TypeLeave                     // empty: the client goes and its command stays, and the answer to that
)

// String returns the type's name.
func (t Type) String() string {
	names := [...]string{"", "handshake", "reply", "error", "data", "stdout", "stderr", "eof", "credit", "exit", "item", "read", "write", "call", "ready", "leave"}
	if t == 0 || int(t) >= len(names) {
		return fmt.Sprintf("type %d", byte(t))
	}
	return names[t]
}

// Reader reads frames. It is not safe for concurrent use.
type Reader struct {
	r   io.Reader
	buf []byte
	hdr [headerLen]byte
}

// NewReader returns a Reader of r's frames.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next reads one frame. The payload is valid until the next call.
//
// It returns io.EOF if the stream ended between two frames,
// io.ErrUnexpectedEOF if it ended within one, and [ErrFrameTooLarge] for a
// frame that announces too much.
func (r *Reader) Next() (Type, []byte, error) {
	if _, err := io.ReadFull(r.r, r.hdr[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(r.hdr[1:])
	if n > MaxPayload {
		return 0, nil, fmt.Errorf("%w: %d bytes announced, %d allowed", ErrFrameTooLarge, n, MaxPayload)
	}
	if err := r.fill(int(n)); err != nil {
		return 0, nil, err
	}
	return Type(r.hdr[0]), r.buf, nil
}

// fill reads n bytes into buf. It grows buf as bytes arrive, so that a peer
// has to send what it wants memory for.
func (r *Reader) fill(n int) error {
	r.buf = r.buf[:0]
	for len(r.buf) < n {
		have := len(r.buf)
		step := min(n-have, max(readStep, cap(r.buf)-have))
		if cap(r.buf) < have+step {
			grown := make([]byte, have, min(n, max(have+step, 2*have)))
			copy(grown, r.buf)
			r.buf = grown
		}
		r.buf = r.buf[:have+step]
		if _, err := io.ReadFull(r.r, r.buf[have:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// Writer writes frames, each with one Write to the stream below. It is safe
// for concurrent use.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte // guarded by mu: the frame being written
}

// NewWriter returns a Writer of frames to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes one frame whose payload is the concatenation of parts. It fails
// with [ErrFrameTooLarge], having written nothing, if they exceed [MaxPayload].
func (w *Writer) Write(t Type, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > MaxPayload {
		return fmt.Errorf("%w: %d bytes, %d allowed", ErrFrameTooLarge, n, MaxPayload)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf[:0], byte(t))
	w.buf = binary.BigEndian.AppendUint32(w.buf, uint32(n))
	for _, p := range parts {
		w.buf = append(w.buf, p...)
	}
	_, err := w.w.Write(w.buf)
	return err
}

// WriteValue writes one frame whose payload is v as [Encode] has it.
func (w *Writer) WriteValue(t Type, v any) error {
	b, err := Encode(v)
	if err != nil {
		return fmt.Errorf("%v frame: %w", t, err)
	}
	return w.Write(t, b)
}
