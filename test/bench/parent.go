package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/forkvm/forkvm/vmm"
)

// parent is a machine to fork, which has settled. It is paused whenever it is
// not needed: nobody else's measurement is to share its processor with it.
type parent struct {
	start   func(ctx context.Context, console io.Writer) (*vmm.VM, error)
	ticking bool    // a process in it writes to the serial port again and again
	vm      *vmm.VM // nil at first
	ticks   *ticks
}

func (p *parent) close() {
	if p.vm != nil {
		p.vm.Close()
	}
}

// warm boots the parent and lets it settle.
func (p *parent) warm(ctx context.Context) (err error) {
	if p.vm != nil {
		return nil
	}
	p.ticks = &ticks{seen: make(chan struct{}, 1)}
	if p.vm, err = p.start(ctx, p.ticks); err != nil {
		return err
	}
	for range 3 {
		if err := reply(ctx, p.vm); err != nil {
			return err
		}
	}
	if p.ticking {
		ticker := p.vm.CommandContext(ctx, tickerPath, "/dev/console")
		ticker.Detach = true
		if err := ticker.Start(); err != nil {
			return fmt.Errorf("start %s: %w", tickerPath, err)
		}
	}
	return p.vm.Pause(ctx)
}

// awake calls do with the parent, which runs.
func (p *parent) awake(ctx context.Context, do func(*vmm.VM) error) error {
	if err := p.warm(ctx); err != nil {
		return err
	}
	if err := p.vm.Resume(ctx); err != nil {
		return err
	}
	var err error
	if p.ticking {
		err = p.ticks.wait(ctx, 3)
	}
	if err == nil {
		err = do(p.vm)
	}
	return errors.Join(err, p.vm.Pause(ctx))
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
		return time.Time{}, fmt.Errorf("no sign of life of a process in a child: %w", context.Cause(ctx))
	}
}
