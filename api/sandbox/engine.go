package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/internal/localtree"
	"github.com/forkvm/forkvm/vmm"
)

// Limits bound what an engine takes. Zero fields have their defaults.
type Limits struct {
	// SandboxesPerTeam is how many sandboxes a team may have, in any state.
	// The default is 1000.
	SandboxesPerTeam int
	// SnapshotsPerTeam, SnapshotsPerSandbox and SnapshotsInFlight are how many
	// snapshots a team may have, how many may be of one sandbox, and how many
	// of a team may be taken at once. One that is being taken counts. The
	// defaults are 100, 20 and 4.
	SnapshotsPerTeam, SnapshotsPerSandbox, SnapshotsInFlight int
	// Memory is how much memory the guests of all sandboxes that run may have,
	// in bytes. Forks share most of theirs: the default is four times what the
	// host has.
	Memory int64
	// Builds is how many templates may be built at once, 2 by default. Their
	// machines do not count for Memory, but none may have more than that.
	Builds int
	// Context is how much content the files of a build's context may have, in
	// bytes: 1 GiB by default.
	Context int64
}

func (l Limits) withDefaults() (Limits, error) {
	for _, f := range []struct {
		name  string
		value *int
		or    int
	}{
		{"SandboxesPerTeam", &l.SandboxesPerTeam, 1000}, {"SnapshotsPerTeam", &l.SnapshotsPerTeam, 100},
		{"SnapshotsPerSandbox", &l.SnapshotsPerSandbox, 20}, {"SnapshotsInFlight", &l.SnapshotsInFlight, 4},
		{"Builds", &l.Builds, 2},
	} {
		if *f.value < 0 {
			return l, fmt.Errorf("limit %s is negative", f.name)
		}
		if *f.value == 0 {
			*f.value = f.or
		}
	}
	if l.Memory < 0 || l.Context < 0 {
		return l, errors.New("limit Memory or Context is negative")
	}
	if l.Context == 0 {
		l.Context = 1 << 30
	}
	if l.Memory == 0 {
		host, err := hostMemory()
		if err != nil {
			return l, err
		}
		l.Memory = 4 * host
	}
	return l, nil
}

// Options are what an engine is opened with.
type Options struct {
	// Templates is where sandboxes come from, and in whose snapshot store they
	// are kept. It is not closed with the engine.
	Templates *template.Store
	Limits    Limits
	// KVM is the path of the device; empty means /dev/kvm.
	KVM string
	// Logger gets what no caller is told. Nil: nobody does.
	Logger *slog.Logger
}

// ErrLocked: another engine has the directory open.
var ErrLocked = errors.New("directory is in use by another engine")

// Engine keeps sandboxes. It is safe for concurrent use. It is a
// prometheus.Collector of what it has and does.
type Engine struct {
	dir, id  string // where the records are, and the id of the database
	machines machines
	limits   Limits
	log      *slog.Logger
	db       *database
	events   *events
	metrics  *metrics
	looks    chan struct{} // has room for machines that are looked at

	comparing chan struct{} // has room for one comparison of many

	// life ends when the engine is closed; everything in the background ends
	// with it.
	life context.Context
	end  context.CancelFunc
	busy sync.WaitGroup // what goes on in the background, and snapshots being taken

	mu       sync.Mutex
	boxes    map[string]*box          // by id
	snaps    map[string]*snap         // by id
	memory   int64                    // of guests that run, or are about to
	inFlight map[string]int           // snapshots being taken, by team
	reserved map[string]int           // the same, by sandbox
	builds   int                      // of templates, under way
	making   map[string]int           // sandboxes being made of templates, by name
	removing map[string]chan struct{} // templates being removed, by name; closed when they are
	closed   bool
}

// Open opens the engine whose records are in dir, and makes it if it is not
// there. Sandboxes that ran when it was last used, and were not paused by
// Close, have failed.
func Open(ctx context.Context, dir string, o Options) (*Engine, error) {
	scratch := filepath.Join(dir, "scratch")
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, fmt.Errorf("sandbox: open: %w", err)
	}
	load := vmm.LoadOptions{KVM: o.KVM, Scratch: scratch}
	return open(ctx, dir, o, &vmMachines{o.Templates, load})
}

func open(ctx context.Context, dir string, o Options, m machines) (*Engine, error) {
	limits, err := o.Limits.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("sandbox: open: %w", err)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	db, err := openDatabase(filepath.Join(dir, "sandboxes.db"))
	if err != nil {
		return nil, fmt.Errorf("sandbox: open: %w", err)
	}
	e := &Engine{
		dir: dir, machines: m, limits: limits, log: o.Logger, db: db, events: newEvents(), metrics: newMetrics(),
		looks: make(chan struct{}, max(1, runtime.NumCPU()/2)), comparing: make(chan struct{}, 1),
		boxes: map[string]*box{}, snaps: map[string]*snap{}, inFlight: map[string]int{}, reserved: map[string]int{},
		making: map[string]int{}, removing: map[string]chan struct{}{},
	}
	e.life, e.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := localtree.Remove(e.contexts()); err != nil { // of builds that a crash has ended
		return nil, errors.Join(fmt.Errorf("sandbox: open: %w", err), db.close())
	}
	if err := e.recover(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("sandbox: open: %w", err), db.close())
	}
	return e, nil
}

// OnClose says what becomes of sandboxes that run when the engine is closed.
type OnClose string

// What may become of them.
const (
	CloseDestroys OnClose = "destroy"
	ClosePauses   OnClose = "pause"
)

// Close ends the engine: calls that are under way fail, and what runs is paused
// or destroyed. What cannot be paused before ctx ends has failed, as after a
// crash.
func (e *Engine) Close(ctx context.Context, how OnClose) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	boxes := make([]*box, 0, len(e.boxes))
	for _, b := range e.boxes {
		boxes = append(boxes, b)
	}
	e.mu.Unlock()
	errs := make([]error, len(boxes))
	slots := make(chan struct{}, 4) // writing more at once is no faster
	var wg sync.WaitGroup
	for k, b := range boxes {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[k] = e.closeBox(ctx, b, how)
		})
	}
	wg.Wait()
	e.stopTimers(boxes)
	e.end()
	e.events.close()
	e.busy.Wait()
	return errors.Join(errors.Join(errs...), e.db.close())
}

// stopTimers stops what would keep the engine in memory for as long as a
// time-out.
func (e *Engine) stopTimers(boxes []*box) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range boxes {
		if b.timer != nil {
			b.timer.Stop()
		}
	}
}

// closeBox does to a sandbox what Close is to do to those that run.
func (e *Engine) closeBox(ctx context.Context, b *box, how OnClose) error {
	e.mu.Lock()
	state := b.rec.Sandbox.State
	e.mu.Unlock()
	if state == api.Paused || state == api.Failed {
		b.stop(errClosed)
		return nil
	}
	var err error
	if how == ClosePauses && state != api.Destroying {
		err = e.pause(ctx, b)
	} else {
		err = e.destroy(ctx, b)
	}
	b.stop(errClosed)
	e.dropMachine(b)
	return err
}

// background runs f until it is done, which it must be soon after life ends. It
// is not run if the engine is closed.
func (e *Engine) background(f func(ctx context.Context)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.busy.Go(func() { f(e.life) })
}

var errClosed = api.Errorf(api.Gone, "the engine is being closed")

// Team is what the sandboxes and snapshots of one team are reached by. It is
// an api.Service.
type Team struct {
	*Engine
	name string
}

// Team returns a team by its name. Teams exist as soon as they are named.
func (e *Engine) Team(name string) *Team { return &Team{e, name} }

// Now is what records say of the time: in UTC and without what cannot be
// stored.
func now() time.Time { return time.Now().UTC().Round(time.Microsecond) }

var _ api.Service = (*Team)(nil)
