package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// scenario is one thing to measure. A round runs each once.
type scenario struct {
	name string
	run  func(ctx context.Context, r *recorder) error
}

// bootCommand measures and prints. Baselines that fail are a result; what is
// forkvm's own must not fail.
func bootCommand(ctx context.Context, args []string) error {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	h, err := readHost()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "forkvm-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	g, err := newGuest(ctx, o, dir)
	if err != nil {
		return err
	}
	r := newRecorder()
	p := &phases{}
	ours := forkvmScenarios(g, o, p)
	defer ours.close()
	if err := runRounds(ctx, o, pick(o, ours, g), r); err != nil {
		return err
	}
	if o.json {
		err = printJSON(os.Stdout, h, r)
	} else {
		err = printGo(os.Stdout, h, r)
	}
	printTable(os.Stderr, h, r)
	if o.phases {
		p.print(os.Stderr)
	}
	return errors.Join(err, r.failed["cold-boot"], r.failed["fork"])
}

// pick returns the scenarios that were asked for, in the order of a round.
func pick(o options, ours *forkvm, g *guest) []scenario {
	runs := map[string]func(context.Context, *recorder) error{
		"cold-boot":  ours.coldBoot,
		"fork":       ours.fork,
		"qemu-boot":  (&qemu{g, o.qemu}).boot,
		"gokvm-boot": (&gokvm{g}).boot,
	}
	var list []scenario
	for _, name := range o.scenarios {
		list = append(list, scenario{name, runs[name]})
	}
	return list
}

// runRounds interleaves the scenarios, so that what changes on the host while
// it measures hits all alike. One that fails is left out from then on.
func runRounds(ctx context.Context, o options, list []scenario, r *recorder) error {
	for round := range o.warmup + o.rounds {
		r.off = round < o.warmup
		for _, s := range list {
			if r.failed[s.name] != nil {
				continue
			}
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, o.warmup+o.rounds, s.name)
			// A machine that was closed is still being freed, at the
			// expense of whoever comes next.
			select {
			case <-time.After(o.settle):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			one, cancel := context.WithTimeout(ctx, o.timeout)
			err := s.run(one, r)
			cancel()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s failed: %v\n", s.name, err)
				r.failed[s.name] = err
			}
		}
	}
	return nil
}
