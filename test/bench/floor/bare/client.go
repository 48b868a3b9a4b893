package bare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// Client measures in a process of its own, whose memory is as it should be:
// without thousands of mappings and a heap of somebody else's.
type Client struct {
	cmd      *exec.Cmd
	stdin    io.Closer
	requests *json.Encoder
	replies  *json.Decoder
}

// Start starts the process, which calls [Serve] with its standard input and
// output. It is killed when ctx ends.
func Start(ctx context.Context, program string, args ...string) (*Client, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("bare: %w", err)
	}
	return &Client{cmd: cmd, stdin: in, requests: json.NewEncoder(in), replies: json.NewDecoder(out)}, nil
}

// Measure is [Session.Measure] in the process.
func (c *Client) Measure(r Request) (Sample, error) {
	if err := c.requests.Encode(r); err != nil {
		return Sample{}, fmt.Errorf("bare: request: %w", err)
	}
	var a reply
	if err := c.replies.Decode(&a); err != nil {
		return Sample{}, fmt.Errorf("bare: reply: %w", err)
	}
	if a.Error != "" {
		return Sample{}, errors.New(a.Error)
	}
	return a.Sample, nil
}

// Close ends the process.
func (c *Client) Close() error { return errors.Join(c.stdin.Close(), c.cmd.Wait()) }
