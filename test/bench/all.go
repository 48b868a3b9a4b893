package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/forkvm/forkvm/test/bench/result"
)

// allCommand runs each part in a process of its own and joins what they print.
// A part that fails does not keep the others from being measured.
func allCommand(ctx context.Context, o options, args []string) error {
	var errs []error
	for _, name := range o.parts {
		cmd, err := partCommand(ctx, name, o, args)
		if err == nil && cmd != nil {
			err = runPart(cmd, o)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %s", errPart, err) // the exit codes of parts are not ours
	}
	return nil
}

var errPart = errors.New("not everything was measured")

// partCommand is nil for a part that cannot run here: no kernel was named
// which this machine's KVM runs.
func partCommand(ctx context.Context, name string, o options, args []string) (*exec.Cmd, error) {
	if o.record != "" {
		args = append(args, "--header")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	named := os.Getenv(kernelVariable) != ""
	switch {
	case name == "lab":
		if named {
			// That kernel is not the lab's.
			args = append(args, "--kernel", "minimal", "--cmdline", "")
		}
		return labRun(ctx, o, args)
	case name == "linux" && !named:
		return nil, nil
	}
	return part(ctx, self, append([]string{name}, args...)), nil
}

// runPart runs a part and passes on what it prints. If that is recorded, it
// comes at the end, and without the line about the host.
func runPart(cmd *exec.Cmd, o options) error {
	if o.record == "" {
		cmd.Stdout = os.Stdout
		return cmd.Run()
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	h, lines, headErr := result.CutHeader(out.Bytes())
	if headErr != nil {
		return errors.Join(err, headErr)
	}
	if _, werr := os.Stdout.Write(lines); werr != nil {
		err = errors.Join(err, werr)
	}
	path := filepath.Join(o.record, fmt.Sprintf("%s-%s.jsonl", h.Date, h.Where))
	return errors.Join(err, os.WriteFile(path, out.Bytes(), 0o644))
}
