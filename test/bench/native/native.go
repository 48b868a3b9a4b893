// Package native measures forks of a guest of a few instructions, on any KVM,
// beside the floor: what the system calls of a fork cost by themselves.
//
// Floor and forkvm take turns, sample by sample, so that whatever else the
// machine does meets both alike. The floor is measured in a process of its own,
// whose memory is small, and which measures nothing else.
package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/forkvm/forkvm/test/bench/floor/bare"
	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

// Options say what to measure and how often.
type Options struct {
	// Groups are names of [Groups]; none for all.
	Groups []string
	// Quick takes about a fourth of the samples.
	Quick bool
	// Rounds, if not 0, is how many samples each measurement takes.
	Rounds int
	// Most, if not 0, leaves out more children and more dirty pages.
	Most int64
	// Floor is a program and its arguments that calls [bare.Serve].
	Floor []string
	// Progress is told what is being done.
	Progress io.Writer
}

// group is measurements that are interleaved with one another.
type group struct {
	name string
	run  func(*bench, context.Context) error
}

var groups = []group{
	{"fork", (*bench).latency},
	{"pause", (*bench).pause},
	{"rewriting", (*bench).rewriting},
	{"children", (*bench).children},
	{"depth", (*bench).depth},
	{"reset", (*bench).reset},
	{"disk", (*bench).disk},
	{"boot", (*bench).boots},
}

// Groups are the names of what can be measured.
func Groups() []string {
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
	}
	return names
}

// bench is one run.
type bench struct {
	o     Options
	r     *result.Recorder
	floor *bare.Client
	dir   string // of guests
}

// Run measures into r.
func Run(ctx context.Context, o Options, r *result.Recorder) (err error) {
	dir, err := os.MkdirTemp("", "forkvm-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{o: o, r: r, dir: dir}
	if b.floor, err = bare.Start(ctx, o.Floor[0], o.Floor[1:]...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.floor.Close()) }()
	for _, g := range groups {
		if len(o.Groups) > 0 && !slices.Contains(o.Groups, g.name) {
			continue
		}
		fmt.Fprintf(o.Progress, "native: %s\n", g.name)
		if err := g.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
		// Whatever follows begins with nothing left of this.
		if err := vmm.WaitFreed(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rounds is how many samples to take of what has full samples in a full run.
func (b *bench) rounds(full int) int {
	switch {
	case b.o.Rounds > 0:
		return b.o.Rounds
	case b.o.Quick:
		return max(1, full/4)
	}
	return full
}

// leftOut tells whether n children or pages are too many.
func (b *bench) leftOut(n int64) bool { return b.o.Most > 0 && n > b.o.Most }

// eachRound calls the measurements one after the other, n times over and once
// before that for nothing.
func (b *bench) eachRound(ctx context.Context, n int, measure ...func() error) error {
	defer func() { b.r.Off = false }()
	for round := range n + 1 {
		b.r.Off = round == 0
		for _, m := range measure {
			if err := settle(ctx); err != nil {
				return err
			}
			if err := m(); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle lets the kernel finish with what was closed, and Go with its garbage.
func settle(ctx context.Context) error {
	if err := vmm.WaitFreed(ctx); err != nil {
		return err
	}
	runtime.GC()
	select {
	case <-time.After(5 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
