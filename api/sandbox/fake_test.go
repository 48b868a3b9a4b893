package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/vmm"
)

// world is machines that are none: each is an agent that serves as part of this
// process. What it has of its own is a number, which a capture keeps. Files and
// processes are this machine's, unless the machines are jails.
type world struct {
	t     testing.TB
	jails bool // each machine is a jail from the first use of its agent on

	agents sync.WaitGroup // that serve
	fakeTemplates

	mu       sync.Mutex
	alive    map[*fakeMachine]bool
	kept     map[string]fakeStored // by name in the store
	names    int
	startErr func(k int) error // of the k-th start in all
	starts   int
	starting chan struct{} // if not nil, each start of machines tells, and does not end by itself
	saveErr  error
	saving   chan struct{} // if not nil, each save tells, and then waits for goOn
	goOn     chan struct{}
	closing  func() // if not nil, is called by each close of a machine
}

type fakeStored struct {
	label string
	value int
}

func newWorld(t testing.TB) *world {
	return &world{t: t, alive: map[*fakeMachine]bool{}, kept: map[string]fakeStored{}, goOn: make(chan struct{})}
}

func (w *world) template(ctx context.Context, name string) (image, shape, error) {
	if !w.isTemplate(name) {
		return nil, shape{}, api.Errorf(api.NotFound, "there is no template %s", name)
	}
	return &fakeImage{w: w}, shape{VCPUs: 1, Memory: 64 << 20, Disk: 1 << 20, Env: []string{"FROM_TEMPLATE=yes"}}, nil
}

func (w *world) load(ctx context.Context, stored string) (image, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.kept[stored]
	if !ok {
		return nil, fmt.Errorf("load %s: %w", stored, snapshot.ErrNotFound)
	}
	return &fakeImage{w: w, value: s.value}, nil
}

func (w *world) delete(ctx context.Context, stored string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.kept, stored)
	return nil
}

func (w *world) stored(ctx context.Context, prefix string) (ids []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, s := range w.kept {
		if strings.HasPrefix(s.label, prefix) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// left is how many machines are alive, and how many are stored.
func (w *world) left() (alive, kept int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.alive), len(w.kept)
}

type fakeImage struct {
	w     *world
	value int
}

func (i *fakeImage) start(ctx context.Context, hostnames []string) ([]machine, []error) {
	i.w.mu.Lock()
	starting := i.w.starting
	i.w.mu.Unlock()
	if starting != nil {
		starting <- struct{}{}
		<-ctx.Done()
	}
	ms, errs := make([]machine, len(hostnames)), make([]error, len(hostnames))
	for k := range hostnames {
		m, err := i.startOne(ctx)
		if err == nil {
			ms[k] = m
		}
		errs[k] = err
	}
	return ms, errs
}

func (i *fakeImage) startOne(ctx context.Context) (*fakeMachine, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	i.w.starts++
	if i.w.startErr != nil {
		if err := i.w.startErr(i.w.starts); err != nil {
			return nil, err
		}
	}
	m := &fakeMachine{w: i.w, value: i.value, ended: make(chan struct{}), conns: make(chan net.Conn)}
	m.life, m.stop = context.WithCancel(context.Background())
	i.w.alive[m] = true
	if i.w.jails {
		return m, nil
	}
	dir := i.w.t.TempDir()
	i.w.agents.Go(func() { _ = agent.Serve(m.life, m, agent.Options{Dir: dir}) })
	return m, nil
}

func (i *fakeImage) save(ctx context.Context, label string) (string, int64, error) {
	i.w.mu.Lock()
	saving := i.w.saving
	i.w.mu.Unlock()
	if saving != nil {
		saving <- struct{}{}
		select {
		case <-i.w.goOn:
		case <-ctx.Done():
		}
	}
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	if err := errors.Join(ctx.Err(), i.w.saveErr); err != nil {
		return "", 0, err
	}
	i.w.names++
	id := fmt.Sprint("stored-", i.w.names)
	i.w.kept[id] = fakeStored{label, i.value}
	return id, 4096, nil
}

func (i *fakeImage) pause() time.Duration { return time.Millisecond }
func (i *fakeImage) close()               {}

// fakeMachine is also the listener of its agent.
type fakeMachine struct {
	w     *world
	value int
	conns chan net.Conn
	life  context.Context
	stop  context.CancelFunc

	jailed sync.Mutex
	jail   *jail // if there is one yet; guarded by jailed

	standstill

	once   sync.Once
	ended  chan struct{}
	reason error
}

func (m *fakeMachine) dial(ctx context.Context) (net.Conn, error) {
	if err := m.awake(ctx, m.life); err != nil {
		return nil, err
	}
	if m.w.jails {
		return m.dialJail(ctx)
	}
	ours, theirs := net.Pipe()
	select {
	case m.conns <- theirs:
		return ours, nil
	case <-m.life.Done():
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// dialJail starts the jail if there is none yet.
func (m *fakeMachine) dialJail(ctx context.Context) (net.Conn, error) {
	m.jailed.Lock()
	defer m.jailed.Unlock()
	if m.life.Err() != nil {
		return nil, net.ErrClosed
	}
	if m.jail == nil {
		j, err := startJail(m.w.t.TempDir())
		if err != nil {
			return nil, err
		}
		m.jail = j
		m.w.agents.Go(func() {
			select {
			case <-j.ended:
				m.die(errors.New("the jail has ended"))
			case <-m.life.Done():
			}
			j.close()
		})
	}
	return m.jail.dial(ctx)
}

func (m *fakeMachine) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.life.Done():
		return nil, net.ErrClosed
	}
}

func (m *fakeMachine) Close() error   { return nil }
func (m *fakeMachine) Addr() net.Addr { return &net.UnixAddr{} }

func (m *fakeMachine) agent() *client.Client { return client.New(m.dial) }

func (m *fakeMachine) capture(ctx context.Context) (image, error) {
	if m.life.Err() != nil {
		return nil, errors.New("the machine has ended")
	}
	return &fakeImage{m.w, m.value}, ctx.Err()
}

func (m *fakeMachine) done() <-chan struct{} { return m.ended }
func (m *fakeMachine) why() error            { return m.reason }

func (m *fakeMachine) close() {
	if m.w.closing != nil {
		m.w.closing()
	}
	m.die(errors.New("closed"))
}

func (m *fakeMachine) timings() vmm.Timings { return vmm.Timings{Restore: time.Millisecond} }

func (m *fakeMachine) look(ctx context.Context) (look, error) {
	if m.life.Err() != nil {
		return nil, vmm.ErrClosed
	}
	return fakeLook{m.value}, nil
}

// fakeLook has something in common with those of the same number.
type fakeLook struct{ value int }

func (fakeLook) usage() usage {
	return usage{memory: 64 << 20, memoryOwn: 1, memoryShared: 2, diskOwn: 3, diskShared: 4}
}

func (l fakeLook) with(other look) (memory, disk int64) {
	if l == other {
		return 2, 4
	}
	return 0, 0
}

// die ends the machine.
func (m *fakeMachine) die(why error) {
	m.once.Do(func() {
		m.reason = why
		m.stop()
		m.w.mu.Lock()
		delete(m.w.alive, m)
		m.w.mu.Unlock()
		close(m.ended)
	})
}
