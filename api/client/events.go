package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

// maxEvent is how large an event may be, in bytes: a record with all the
// metadata that it may have, each character escaped.
const maxEvent = 32 << 20

var errLargeEvent = fmt.Errorf("client: an event is larger than %d bytes", maxEvent)

// event is an event of a server's stream.
type event struct {
	name string
	data []byte // good until the next
}

// eventReader reads a stream of events. See the HTML standard, section 9.2.
type eventReader struct {
	r    *bufio.Reader
	line []byte
	data []byte
}

func newEventReader(r io.Reader) *eventReader {
	return &eventReader{r: bufio.NewReader(r)}
}

// next returns the next event that has data. At the end, after which an event
// that is not complete counts for nothing, it returns [io.EOF].
func (e *eventReader) next() (event, error) {
	ev := event{}
	e.data = e.data[:0]
	has := false
	for {
		line, err := e.readLine()
		if err != nil {
			return event{}, err
		}
		if len(line) == 0 {
			if has {
				ev.data = e.data
				return ev, nil
			}
			ev.name = ""
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			ev.name = string(value)
		case "data":
			if len(e.data)+len(value)+1 > maxEvent {
				return event{}, errLargeEvent
			}
			if has {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
			has = true
		}
	}
}

// readLine reads a line without its end, which is \n or \r\n: servers of ours have
// no others.
func (e *eventReader) readLine() ([]byte, error) {
	e.line = e.line[:0]
	for {
		part, err := e.r.ReadSlice('\n')
		if len(e.line)+len(part) > maxEvent {
			return nil, errLargeEvent
		}
		e.line = append(e.line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return bytes.TrimSuffix(e.line[:len(e.line)-1], []byte("\r")), nil
	}
}

// errEnded has a stream end well.
var errEnded = errors.New("ended")

// stream calls f with the events of an answer until f returns errEnded, for which
// it returns nil.
func (c *Client) stream(ctx context.Context, r request, f func(event) error) error {
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	events := newEventReader(resp.Body)
	for {
		e, err := events.next()
		if err != nil {
			return failed(ctx, fmt.Errorf("%w: %w", ErrCut, err))
		}
		if e.name == wire.Error {
			return parseError(http.StatusInternalServerError, e.data)
		}
		if err = f(e); errors.Is(err, errEnded) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// decode decodes the data of an event.
func (e event) decode(into any) error {
	if err := json.Unmarshal(e.data, into); err != nil {
		return api.Errorf(api.InternalError, "client: event %q is not as expected: %w", e.name, err)
	}
	return nil
}

// Events implements [api.Service]. If the server ends, or the connection fails,
// it returns an error that is [ErrCut]: events may be missed.
func (c *Client) Events(ctx context.Context, q api.EventQuery, ready func(), f func(api.Event) error) error {
	v := make(url.Values)
	if q.SandboxID != "" {
		v.Set("sandbox_id", q.SandboxID)
	}
	if q.After != 0 {
		v.Set("after", strconv.FormatUint(q.After, 10))
	}
	r := request{method: http.MethodGet, path: "/v1/events", query: v, repeats: true}
	return c.stream(ctx, r, func(e event) error {
		switch e.name {
		case wire.Ready:
			if ready != nil {
				ready()
			}
			return nil
		case wire.Ended:
			return failed(ctx, ErrCut)
		}
		var what api.Event
		if err := e.decode(&what); err != nil {
			return err
		}
		return f(what)
	})
}

// Watch implements [api.Service].
func (c *Client) Watch(ctx context.Context, a api.Access, path string, ready func(), f func(api.FileEvent) error) error {
	r, err := inside(a, http.MethodGet, "/files/watch")
	if err != nil {
		return err
	}
	r.query = url.Values{"path": {path}}
	return c.stream(ctx, r, func(e event) error {
		switch e.name {
		case wire.Ready:
			if ready != nil {
				ready()
			}
			return nil
		case wire.Ended:
			return errEnded
		case wire.Changed:
			var what api.FileEvent
			if err := e.decode(&what); err != nil {
				return err
			}
			return f(what)
		}
		return nil // of a server that is newer
	})
}
