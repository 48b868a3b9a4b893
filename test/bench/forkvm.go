package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

// forkvm measures our own machines.
type forkvm struct {
	g      *guest
	forks  []int
	phases *phases
	parent *vmm.VM // of the forks; made by the first; paused unless it is needed
	ticks  *ticks  // of the parent
	child  *vmm.VM // that is reset; made by the first; paused unless it is needed
}

func (f *forkvm) close() {
	for _, vm := range []*vmm.VM{f.parent, f.child} {
		if vm != nil {
			vm.Close()
		}
	}
}

func (f *forkvm) start(ctx context.Context, console io.Writer) (*vmm.VM, error) {
	return vmm.Start(ctx, vmm.Config{
		Kernel: f.g.kernel, Initramfs: f.g.initramfs, Cmdline: f.g.cmdline, Memory: f.g.memory, Console: console,
		Spare: -1, // what is made ahead is made on request
	})
}

// reply runs the smallest command to its end.
func reply(ctx context.Context, vm *vmm.VM) error {
	out, err := vm.CommandContext(ctx, "echo", "reply").Output()
	if err == nil && string(out) != "reply\n" {
		err = fmt.Errorf("echo says %q", out)
	}
	return err
}

// coldBoot boots a machine and runs a command in it.
func (f *forkvm) coldBoot(ctx context.Context, r *result.Recorder) error {
	begin := time.Now()
	vm, err := f.start(ctx, nil)
	if err != nil {
		return err
	}
	defer vm.Close()
	if err := reply(ctx, vm); err != nil {
		return err
	}
	replied := time.Since(begin)
	t := vm.Timings()
	addTimes(r, result.Key{Scenario: coldBoot, N: 1}, t, replied)
	if r.Off {
		return nil
	}
	return f.phases.add(ctx, vm, begin, replied)
}

// warm boots the parent, lets it settle, and has a process in it tick on the
// serial port.
func (f *forkvm) warm(ctx context.Context) error {
	if f.parent != nil {
		return nil
	}
	console := &ticks{seen: make(chan struct{}, 1)}
	vm, err := f.start(ctx, console)
	if err != nil {
		return err
	}
	f.parent, f.ticks = vm, console
	for range 3 {
		if err := reply(ctx, vm); err != nil {
			return err
		}
	}
	ticker := vm.CommandContext(ctx, tickerPath, "/dev/console")
	ticker.Detach = true
	if err := ticker.Start(); err != nil {
		return fmt.Errorf("start %s: %w", tickerPath, err)
	}
	return vm.Pause(ctx)
}

// awake calls do with a parent that runs, and pauses it again: nobody else's
// measurement is to share its processor with the parent.
func (f *forkvm) awake(ctx context.Context, do func() error) error {
	if err := f.warm(ctx); err != nil {
		return err
	}
	if err := f.parent.Resume(ctx); err != nil {
		return err
	}
	err := f.ticks.wait(ctx, 3)
	if err == nil {
		err = do()
	}
	return errors.Join(err, f.parent.Pause(ctx))
}

// forkPooled forks the parent once for each number of children, with machines
// made ahead.
func (f *forkvm) forkPooled(ctx context.Context, r *result.Recorder) error {
	return f.awake(ctx, func() error {
		for _, n := range f.forks {
			if err := f.parent.Prepare(ctx, n); err != nil {
				return err
			}
			if err := f.fork(ctx, r, forkPooled, n); err != nil {
				return fmt.Errorf("%d children: %w", n, err)
			}
		}
		return nil
	})
}

// forkCold forks the parent once, with nothing made ahead.
func (f *forkvm) forkCold(ctx context.Context, r *result.Recorder) error {
	return f.awake(ctx, func() error { return f.fork(ctx, r, forkCold, 1) })
}

// forked is a child and when things happened to it, from the start of the
// fork.
type forked struct {
	vm                   *vmm.VM
	life                 *life
	stateReady, agent    time.Duration
	instruction, replied time.Duration
}

// fork measures from the start of the capture to each child's first reply. It
// does what VM.Fork does, but gives each child a console, to see its first
// sign of life as it comes.
func (f *forkvm) fork(ctx context.Context, r *result.Recorder, scenario string, n int) error {
	begin := time.Now()
	image, err := f.parent.Capture(ctx)
	if err != nil {
		return err
	}
	defer image.Close()
	children := make([]forked, n)
	errs := make([]error, n)
	slots := make(chan struct{}, max(16, 4*runtime.NumCPU()))
	var wg sync.WaitGroup
	for i := range children {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = children[i].start(ctx, image, begin)
		})
	}
	wg.Wait()
	for _, c := range children {
		defer c.close()
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	k := result.Key{Scenario: scenario, Metric: result.Pause, N: n, DirtyPages: result.Measured, Depth: 1}
	r.Time(k, image.Pause(), image.DirtyPages())
	var last time.Duration
	for _, c := range children {
		if err := c.record(ctx, r, k, image.DirtyPages(), begin); err != nil {
			return err
		}
		last = max(last, c.life.at.Sub(begin))
	}
	k.Metric = result.TimePerChild
	r.Time(k, last/time.Duration(n), image.DirtyPages())
	return nil
}

// start starts a child and runs a command in it.
func (c *forked) start(ctx context.Context, image *vmm.Image, begin time.Time) (err error) {
	started := time.Since(begin)
	c.life = newLife()
	if c.vm, err = image.Start(ctx, vmm.StartOptions{Console: c.life}); err != nil {
		return err
	}
	if err := reply(ctx, c.vm); err != nil {
		return err
	}
	c.replied = time.Since(begin)
	t := c.vm.Timings()
	c.stateReady, c.instruction, c.agent = started+t.StateReady, started+t.FirstExit, started+t.AgentReady
	return nil
}

// record waits for the sign of life and records when everything happened.
func (c *forked) record(ctx context.Context, r *result.Recorder, k result.Key, dirty int64, begin time.Time) error {
	at, err := c.life.wait(ctx)
	if err != nil {
		return fmt.Errorf("no sign of life of a process in a child: %w", err)
	}
	for _, m := range []struct {
		metric string
		d      time.Duration
	}{
		{result.StateReady, c.stateReady}, {result.FirstInstruction, c.instruction}, {result.FirstLife, at.Sub(begin)},
		{result.AgentReady, c.agent}, {result.FirstReply, c.replied},
	} {
		k.Metric = m.metric
		r.Time(k, m.d, dirty)
	}
	return nil
}

func (c *forked) close() {
	if c.vm != nil {
		c.vm.Close()
	}
}

// reset puts a child back, which has run a command since it was forked.
func (f *forkvm) reset(ctx context.Context, r *result.Recorder) error {
	if f.child == nil {
		if err := f.warm(ctx); err != nil {
			return err
		}
		children, err := f.parent.Fork(ctx, 1)
		if err != nil {
			return err
		}
		f.child = children[0]
		if err := reply(ctx, f.child); err != nil {
			return err
		}
	}
	begin := time.Now()
	if err := f.child.Reset(ctx); err != nil {
		return err
	}
	if err := reply(ctx, f.child); err != nil {
		return err
	}
	replied := time.Since(begin)
	addTimes(r, result.Key{Scenario: reset, N: 1, Depth: 1}, f.child.Timings(), replied)
	return f.child.Pause(ctx)
}

func addTimes(r *result.Recorder, k result.Key, t vmm.Timings, replied time.Duration) {
	for _, m := range []struct {
		metric string
		d      time.Duration
	}{
		{result.StateReady, t.StateReady}, {result.FirstInstruction, t.FirstExit},
		{result.AgentReady, t.AgentReady}, {result.FirstReply, replied},
	} {
		k.Metric = m.metric
		r.Time(k, m.d, 0)
	}
}

// ticks is a console that tells that something is written to it.
type ticks struct{ seen chan struct{} } // of one

// Write implements io.Writer.
func (t *ticks) Write(p []byte) (int, error) {
	select {
	case t.seen <- struct{}{}:
	default:
	}
	return len(p), nil
}

// wait returns when it was told so n times.
func (t *ticks) wait(ctx context.Context, n int) error {
	for range n {
		select {
		case <-t.seen:
		case <-ctx.Done():
			return fmt.Errorf("the parent does not tick: %w", context.Cause(ctx))
		}
	}
	return nil
}

// life is a console that notes when the first byte is written to it.
type life struct {
	once  sync.Once
	at    time.Time
	first chan struct{} // closed once at is set
}

var _ io.Writer = (*life)(nil)

func newLife() *life { return &life{first: make(chan struct{})} }

// Write implements io.Writer.
func (l *life) Write(p []byte) (int, error) {
	l.once.Do(func() {
		l.at = time.Now()
		close(l.first)
	})
	return len(p), nil
}

// wait returns when it was.
func (l *life) wait(ctx context.Context) (time.Time, error) {
	select {
	case <-l.first:
		return l.at, nil
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}
