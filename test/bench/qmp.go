package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"syscall"
)

// qmp is a connection to QEMU's monitor.
// https://www.qemu.org/docs/master/interop/qmp-spec.html
type qmp struct {
	conn *net.UnixConn
	in   *bufio.Reader
	stop func() bool
}

// dialQMP connects and reads the greeting. The connection ends with ctx.
func dialQMP(ctx context.Context, socket string) (*qmp, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("qmp: %w", err)
	}
	q := &qmp{conn: conn, in: bufio.NewReader(conn)}
	q.stop = context.AfterFunc(ctx, func() { conn.Close() })
	if _, err := q.in.ReadBytes('\n'); err != nil {
		q.close()
		return nil, fmt.Errorf("qmp: greeting: %w", err)
	}
	return q, nil
}

func (q *qmp) close() {
	q.stop()
	q.conn.Close()
}

// do runs a command, hands over a file if there is one, and decodes what the
// command returns into result unless it is nil.
func (q *qmp) do(name string, args map[string]any, result any, file *os.File) error {
	type command struct {
		Execute   string         `json:"execute"`
		Arguments map[string]any `json:"arguments,omitempty"`
	}
	line, err := json.Marshal(command{name, args})
	if err != nil {
		return err
	}
	var rights []byte
	if file != nil {
		rights = syscall.UnixRights(int(file.Fd()))
	}
	if _, _, err := q.conn.WriteMsgUnix(append(line, '\n'), rights, nil); err != nil {
		return fmt.Errorf("qmp: %s: %w", name, err)
	}
	for {
		line, err := q.in.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("qmp: %s: %w", name, err)
		}
		var answer struct {
			Event  string          `json:"event"`
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := json.Unmarshal(line, &answer); err != nil {
			return fmt.Errorf("qmp: %s: %w", name, err)
		}
		switch {
		case answer.Event != "":
			continue
		case answer.Error != nil:
			return fmt.Errorf("qmp: %s: %s", name, answer.Error.Desc)
		case result == nil:
			return nil
		}
		return json.Unmarshal(answer.Return, result)
	}
}
