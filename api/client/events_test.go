package client

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/apitest"
	"github.com/forkvm/forkvm/api/internal/wire"
)

func TestEventReader(t *testing.T) {
	in := ":hi\n\nevent: a\nid: 1\ndata: one\ndata:two\r\n\nevent: dropped\n\ndata\n\nretry: 5\ndata: x\n\nevent: cut\ndata: y\n"
	r := newEventReader(strings.NewReader(in))
	for _, want := range []event{{"a", []byte("one\ntwo")}, {"", nil}, {"", []byte("x")}} {
		got, err := r.next()
		if err != nil || got.name != want.name || !bytes.Equal(got.data, want.data) {
			t.Errorf("got %q %q, %v, want %q %q", got.name, got.data, err, want.name, want.data)
		}
	}
	if e, err := r.next(); err != io.EOF {
		t.Errorf("an event without its end: %v, %v", e, err)
	}
}

// TestEventsAreBounded reads lines and events without an end.
func TestEventsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 4000)
	for _, line := range []string{long, "data: " + long + "\n"} {
		if _, err := newEventReader(&repeat{line: line}).next(); !errors.Is(err, errLargeEvent) {
			t.Errorf("%.10q again and again: %v", line, err)
		}
	}
}

// repeat is a reader that says the same for ever.
type repeat struct {
	line string
	at   int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := copy(p, r.line[r.at:])
	r.at = (r.at + n) % len(r.line)
	return n, nil
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte("event: a\ndata: b\n\n:c\n\ndata: d\r\ndata: e\n\n"))
	f.Add([]byte("data\n\n\n\nevent"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := newEventReader(bytes.NewReader(in))
		total := 0
		for {
			e, err := r.next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			total += len(e.name) + len(e.data)
		}
		if total > len(in) {
			t.Errorf("%d bytes of %d", total, len(in))
		}
	})
}

func FuzzMessages(f *testing.F) {
	f.Add([]byte("\x01out"), false)
	f.Add([]byte("\x03{\"exit_code\":1}"), false)
	f.Add([]byte(`{"started":{"id":1},"error":{"code":"gone"}}`), true)
	f.Fuzz(func(t *testing.T, in []byte, text bool) {
		var out bytes.Buffer
		s := &session{streams: api.Streams{Stdout: &out}, started: make(chan struct{})}
		if text {
			s.note(bytes.NewReader(in))
			return
		}
		if exit, err := s.message(bytes.NewReader(in)); exit != nil && (err != nil || in[0] != wire.ChannelExit) {
			t.Errorf("%q: %v, %v", in, exit, err)
		}
		if out.Len() > 0 && !bytes.Equal(out.Bytes(), in[1:]) {
			t.Errorf("%q printed %q", in, out.Bytes())
		}
	})
}

func FuzzErrors(f *testing.F) {
	f.Add(404, []byte(`{"error":{"code":"not_found","message":"m","details":{"a":1}}}`))
	f.Add(502, []byte("<html>"))
	f.Add(429, []byte(`{"error":null}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if e := parseError(status, body); e == nil || e.Code == "" || !errors.Is(e, e.Code) {
			t.Errorf("%d %q: %#v", status, body, e)
		}
	})
}

func FuzzFileInfo(f *testing.F) {
	f.Add(wire.EncodeFileInfo(apitest.File("/a")))
	f.Add(`{"name":"\ud800"}`)
	f.Fuzz(func(t *testing.T, header string) {
		info, err := wire.DecodeFileInfo(header)
		if err != nil {
			return
		}
		again := wire.EncodeFileInfo(info)
		for _, b := range []byte(again) {
			if b < ' ' || b > '~' {
				t.Errorf("%q is no header", again)
			}
		}
		if got, err := wire.DecodeFileInfo(again); err != nil || got.Name != info.Name || got.Target != info.Target {
			t.Errorf("%+v came back as %+v, %v", info, got, err)
		}
	})
}
