package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/forkvm/forkvm/test/bench/result"
)

// restorer measures QEMU going on with a guest that it saved to a file, from
// the start of the process to the next tick of a process in the guest.
type restorer struct {
	qemu *qemu
	dir  string
	file string // what was saved; made by the first measurement
}

func (s *restorer) restore(ctx context.Context, r *result.Recorder) error {
	if s.file == "" {
		if err := s.save(ctx); err != nil {
			return fmt.Errorf("save a guest: %w", err)
		}
	}
	f, err := os.Open(s.file)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := s.qemu.command("-incoming", "fd:3")
	cmd.ExtraFiles = []*os.File{f} // descriptor 3
	begin := time.Now()
	took, err := firstByte(ctx, cmd, begin)
	if err != nil {
		return err
	}
	r.Time(result.Key{Scenario: qemuRestore, Metric: result.FirstLife, N: 1}, took, 0)
	return nil
}

// firstByte runs a monitor until its guest has written anything.
func firstByte(ctx context.Context, cmd *exec.Cmd, begin time.Time) (took time.Duration, err error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	_, err = out.Read(make([]byte, 1))
	took = time.Since(begin)
	stop()
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if err != nil {
		return 0, fmt.Errorf("no sign of life: %w\n  %s", errors.Join(err, context.Cause(ctx)), stderr.String())
	}
	return took, nil
}

// save boots a guest and saves it, ticking, to a file.
func (s *restorer) save(ctx context.Context) error {
	socket := filepath.Join(s.dir, "qmp")
	file := filepath.Join(s.dir, "saved")
	cmd := s.qemu.command("-qmp", "unix:"+socket+",server=on,wait=off")
	var saved error
	err := baseline(ctx, cmd, func(string) {}, func() { saved = migrateTo(ctx, socket, file) })
	if err := errors.Join(err, saved); err != nil {
		return err
	}
	s.file = file
	return nil
}

// migrateTo has the QEMU that listens at a socket write its guest to a file. It
// is not stopped before, for then it would be stopped when it is restored.
func migrateTo(ctx context.Context, socket, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	q, err := dialQMP(ctx, socket)
	if err != nil {
		return err
	}
	defer q.close()
	type object = map[string]any
	steps := []struct {
		name string
		args object
		file *os.File
	}{
		{"qmp_capabilities", nil, nil},
		{"migrate-set-parameters", object{"max-bandwidth": int64(1) << 40, "downtime-limit": 10_000}, nil},
		{"getfd", object{"fdname": "saved"}, f},
		{"migrate", object{"uri": "fd:saved"}, nil},
	}
	for _, step := range steps {
		if err := q.do(step.name, step.args, nil, step.file); err != nil {
			return err
		}
	}
	return q.awaitMigration(ctx)
}

// awaitMigration returns when everything has been written.
func (q *qmp) awaitMigration(ctx context.Context) error {
	for {
		var state struct {
			Status string `json:"status"`
			Error  string `json:"error-desc"`
		}
		if err := q.do("query-migrate", nil, &state, nil); err != nil {
			return err
		}
		switch state.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("migration %s: %s", state.Status, state.Error)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
