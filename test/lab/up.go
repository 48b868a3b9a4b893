package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/forkvm/forkvm/test/lab/internal/image"
	"github.com/forkvm/forkvm/test/lab/internal/machine"
	"github.com/forkvm/forkvm/test/lab/internal/session"
)

// upCommand starts a machine that stays up, and is paused while nobody uses it.
func upCommand(ctx context.Context, args []string) (int, error) {
	var o image.Options
	fs := newFlags("up", "[flags]")
	machineFlags(fs, &o)
	if err := fs.Parse(args); err != nil {
		return 0, err
	}
	here, err := direct()
	if err != nil {
		return 0, err
	}
	if here {
		fmt.Println("not needed: this host has a hardware KVM, which is used")
		return 0, nil
	}
	l, err := openLab()
	if err != nil {
		return 0, err
	}
	k, err := l.lock(ctx, false)
	if err != nil {
		return 0, err
	}
	defer k.unlock()
	if err := l.keepIfDown(o); err != nil {
		return 0, err
	}
	return 0, l.use(ctx, k, o, func(_ context.Context, m *machine.Machine, _ *session.Session) error {
		fmt.Println(describe(m))
		return nil
	})
}

func describe(m *machine.Machine) string {
	return fmt.Sprintf("up: kernel %s, %d MiB, process %d, started %s in %.1f s, console %s", m.Kernel, m.MemoryMiB, m.PID,
		m.Started.Format(time.DateTime), m.Boot.Seconds(), m.ConsolePath())
}

// downCommand ends the machine that is up.
func downCommand(ctx context.Context, args []string) (int, error) {
	fs := newFlags("down", "[flags]")
	now := fs.Bool("now", false, "do not wait for programs that run in it")
	if err := fs.Parse(args); err != nil {
		return 0, err
	}
	l, err := openLab()
	if err != nil {
		return 0, err
	}
	l.unkeep()
	if !*now {
		k, err := l.lock(ctx, false)
		if err != nil {
			return 0, err
		}
		defer k.unlock()
	}
	m, err := machine.Attach(l.dir)
	if errors.Is(err, machine.ErrNotUp) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	m.Close()
	return 0, nil
}

// statusCommand says whether a machine is up, and how often one has failed so far.
func statusCommand(_ context.Context, args []string) (int, error) {
	if err := newFlags("status", "").Parse(args); err != nil {
		return 0, err
	}
	l, err := openLab()
	if err != nil {
		return 0, err
	}
	events, err := l.events()
	if err != nil {
		return 0, err
	}
	code := 0
	m, err := machine.Attach(l.dir)
	switch {
	case err == nil:
		defer m.Detach()
		fmt.Println(describe(m))
	case errors.Is(err, machine.ErrNotUp):
		fmt.Println("down")
		code = exitNo
	default:
		return 0, err
	}
	fmt.Printf("failures of the machine so far: %d\n", len(events))
	if len(events) > 0 {
		last := events[len(events)-1]
		fmt.Printf("the last one, %s:\n%s\n", last.Time.Format(time.DateTime), last.Error)
	}
	return code, nil
}
