package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/snapshot"
)

// start starts the command of CMD, waits until it is ready, and leaves the
// machine as it is best captured.
func (b *builder) start(ctx context.Context, m machine, out io.Writer) error {
	p := b.plan
	if p.start == nil {
		return warm(ctx, m)
	}
	run := command{argv: p.start, env: p.config.Env, dir: p.config.Workdir, user: p.config.User}
	proc, err := m.start(ctx, run)
	if err != nil {
		return fmt.Errorf("CMD: %w", err)
	}
	if p.check != nil {
		run.argv = p.check
		err = b.ready(ctx, m, proc, run, out)
	}
	if err == nil {
		err = warm(ctx, m)
	}
	if err == nil {
		_, err = alive(ctx, proc)
	}
	if err != nil {
		proc.output(ctx, out)
	}
	return err
}

// alive tells whether a command has ended, and fails if it did so badly.
func alive(ctx context.Context, p process) (ended bool, err error) {
	ended, err = p.ended(ctx)
	if err != nil && ended {
		return true, fmt.Errorf("CMD ended: %s: %w", describe(err), err)
	}
	return ended, err
}

// checkTimeout is how long one run of a check may take.
const checkTimeout = 30 * time.Second

// ErrNotReady: the start command did not become ready in time.
var ErrNotReady = errors.New("the HEALTHCHECK has not succeeded")

// ready runs the check until it succeeds.
func (b *builder) ready(ctx context.Context, m machine, p process, check command, out io.Writer) error {
	check.timeout = checkTimeout
	deadline := time.NewTimer(b.store.checkFor)
	defer deadline.Stop()
	tick := time.NewTicker(b.store.checkEvery)
	defer tick.Stop()
	for {
		err := m.run(ctx, check, out)
		if err == nil {
			return nil
		}
		if _, failed := errors.AsType[*client.ExitError](err); !failed {
			return fmt.Errorf("HEALTHCHECK: %w", err)
		}
		if _, err := alive(ctx, p); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			return fmt.Errorf("%w for %v: the last time %s: %w", ErrNotReady, b.store.checkFor, describe(err), err)
		case <-tick.C:
		}
	}
}

// generations is how many forks in a row are made before a template is
// stored. Of a machine that booted, forks of forks reply sooner than forks.
const generations = 2

// capture stores the template. What is stored is a fork that has run a
// command: it has been through all that each of its own forks will go through,
// and they need not write the same pages for the first time again.
func (b *builder) capture(ctx context.Context, m machine) (snapshot.Info, error) {
	for range generations {
		child, err := m.fork(ctx)
		if err != nil {
			return snapshot.Info{}, err
		}
		defer child.close()
		if err := warm(ctx, child); err != nil {
			return snapshot.Info{}, err
		}
		m = child
	}
	if err := m.settle(ctx); err != nil {
		return snapshot.Info{}, err
	}
	return m.save(ctx, b.spec.Name)
}

// warm has the guest write what is to be on its disk, by a command.
func warm(ctx context.Context, m machine) error {
	err := m.run(ctx, command{argv: []string{"/bin/sh", "-c", "sync"}}, io.Discard)
	_, ended := errors.AsType[*client.ExitError](err)
	_, refused := errors.AsType[*client.StartError](err)
	if ended || refused {
		return nil // it has no shell, or no sync: it will do without
	}
	return err
}
