package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// keepLines is how many lines of a baseline's output its failure shows.
const keepLines = 12

// watch reads what a monitor and its guest print, line by line, up to the line
// of the guest's init. It hands each line before that to also, and fails with
// the last lines if there is no such line.
func watch(out io.Reader, also func(line string)) error {
	var tail []string
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		if strings.Contains(line, initLine) {
			return nil
		}
		if line != "" {
			also(line)
			tail = append(tail, line)
			tail = tail[max(0, len(tail)-keepLines):]
		}
		if err != nil {
			return fmt.Errorf("no sign of life from the guest's init; last output:\n  %s", strings.Join(tail, "\n  "))
		}
	}
}

// baseline runs a monitor until its guest's init was seen, calls seen, and ends
// the monitor. Each line of output before that goes to line.
func baseline(ctx context.Context, cmd *exec.Cmd, line func(string), seen func()) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	// Which ends the reading below: nobody else has the pipe.
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	err = watch(out, line)
	if err == nil {
		seen()
	}
	stop()
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w\n  %s", ctx.Err(), err, stderr.String())
	}
	return fmt.Errorf("%w\n  %s", err, stderr.String())
}
