package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// monitorTimeout bounds a whole conversation with QEMU's monitor, which answers from its main loop
// within milliseconds.
const monitorTimeout = 20 * time.Second

// command is one command of the QEMU machine protocol (QMP).
type command struct {
	Execute   string         `json:"execute"`
	Arguments map[string]any `json:"arguments,omitempty"`
}

// reply is any message of QEMU's: a greeting, an event, a result or an error.
type reply struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
}

// monitor sends QEMU one command and returns its result.
func (m *Machine) monitor(ctx context.Context, c command) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, monitorTimeout)
	defer cancel()
	conn, err := dialMonitor(ctx, m.dir)
	if err != nil {
		return nil, fmt.Errorf("machine: monitor: %w", err)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, fmt.Errorf("machine: monitor: %w", err)
	}
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })()

	dec := json.NewDecoder(conn)
	if err := dec.Decode(&reply{}); err != nil {
		return nil, fmt.Errorf("machine: monitor: greeting: %w", err)
	}
	if _, err := converse(conn, dec, command{Execute: "qmp_capabilities"}); err != nil {
		return nil, err
	}
	return converse(conn, dec, c)
}

// converse sends a command and skips events until its result.
func converse(conn net.Conn, dec *json.Decoder, c command) (json.RawMessage, error) {
	if err := json.NewEncoder(conn).Encode(c); err != nil {
		return nil, fmt.Errorf("machine: monitor: %s: %w", c.Execute, err)
	}
	for {
		var r reply
		if err := dec.Decode(&r); err != nil {
			return nil, fmt.Errorf("machine: monitor: %s: %w", c.Execute, err)
		}
		switch {
		case r.Error != nil:
			return nil, fmt.Errorf("machine: monitor: %s: %s", c.Execute, r.Error.Desc)
		case r.Return != nil:
			return r.Return, nil
		}
	}
}

// human runs a command of QEMU's monitor for people, which prints nothing when it succeeds.
func (m *Machine) human(ctx context.Context, line string) error {
	out, err := m.monitor(ctx, command{
		Execute:   "human-monitor-command",
		Arguments: map[string]any{"command-line": line},
	})
	if err != nil {
		return err
	}
	var text string
	if err := json.Unmarshal(out, &text); err != nil {
		return fmt.Errorf("machine: monitor: %s: %w", line, err)
	}
	if text = strings.TrimSpace(text); text != "" {
		return fmt.Errorf("machine: monitor: %s: %s", line, text)
	}
	return nil
}

// redial is how often a connection to a monitor is tried again that serves others: it takes one
// client at a time, and its queue is short.
const redial = 10 * time.Millisecond

// dialMonitor connects by way of the folder's descriptor: a socket's address holds only 107 bytes,
// and the folder's own path may be longer.
func dialMonitor(ctx context.Context, dir string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), monitorFile))
		if !errors.Is(err, unix.EAGAIN) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(redial):
		}
	}
}
