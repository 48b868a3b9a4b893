// Package wire is what the server and the client of the API agree on beside the
// records: headers, the events of streams, and the frames of WebSockets.
package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"

	"github.com/forkvm/forkvm/api"
)

// Headers.
const (
	AccountKey     = "X-API-Key" // or Authorization: Bearer
	AccessToken    = "X-Access-Token"
	IdempotencyKey = "Idempotency-Key"
	RequestID      = "X-Request-Id"
	FileInfo       = "X-File-Info" // of a download: the record as EncodeFileInfo has it
	LastEventID    = "Last-Event-ID"
)

// Events of the stream of a command, the last of which is Exit or Error.
const (
	Started = "started" // data: a process
	Stdout  = "stdout"  // data: output, as api.Text
	Stderr  = "stderr"
	Exit    = "exit"  // data: an exit
	Error   = "error" // data: an Envelope
	Ready   = "ready" // of events and watches: nothing is missed any more
	Changed = "file"  // of watches
	Ended   = "end"   // of watches: what was watched is gone
)

// Events of the stream of a build, the last of which is Built or Error.
const (
	Log   = "log"      // data: a piece of it, as api.Text
	Built = "template" // data: a template
)

// Parts of the body of a build, in this order.
const (
	PartRequest = "request" // an api.BuildRequest, in JSON
	PartContext = "context" // a tar archive; need not be there
)

// The first byte of a binary WebSocket message.
const (
	ChannelStdin byte = iota
	ChannelStdout
	ChannelStderr
	ChannelExit // the rest is an exit in JSON
)

// MaxChunk is how much output a message or event has at most, in bytes.
const MaxChunk = 32 << 10

// Envelope is the form of errors.
type Envelope struct {
	Error *api.Error `json:"error"`
}

// Control is a text message to the server after the first: one of these.
type Control struct {
	Signal string       `json:"signal,omitempty"`
	Resize *api.WinSize `json:"resize,omitempty"`
	EOF    bool         `json:"eof,omitempty"` // there is no more input
}

// Note is a text message of the server: one of these. After Error nothing
// follows.
type Note struct {
	Started *api.Process `json:"started,omitempty"`
	Error   *api.Error   `json:"error,omitempty"`
}

// EncodeFileInfo is the record in JSON of nothing but ASCII, as headers are.
func EncodeFileInfo(i *api.FileInfo) string {
	b, _ := json.Marshal(i) // a struct of strings, numbers and a time of ours
	var s strings.Builder
	for _, r := range string(b) {
		switch {
		case r < 0x80:
			s.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&s, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&s, `\u%04x`, r)
		}
	}
	return s.String()
}

// DecodeFileInfo is the reverse.
func DecodeFileInfo(s string) (*api.FileInfo, error) {
	i := new(api.FileInfo)
	if err := json.Unmarshal([]byte(s), i); err != nil {
		return nil, fmt.Errorf("wire: file info: %w", err)
	}
	return i, nil
}
