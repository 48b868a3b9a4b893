package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/test/lab/internal/image"
	"github.com/forkvm/forkvm/test/lab/internal/machine"
	"github.com/forkvm/forkvm/test/lab/internal/session"
)

// Files of a lab in its folder, beside those of its machine.
const (
	lockFile     = "lock"
	copyLockFile = "copy.lock"
	keptFile     = "kept.json"
	eventsFile   = "failures.jsonl"
)

// labName keeps labs apart from what else is in the cache.
var labName = regexp.MustCompile(`^lab(-[a-z0-9]+)?$`)

// lostGrace is how long a lost connection waits for the watchdog to say that the machine is why.
const lostGrace = 5 * time.Second

// nameVariable names a lab beside the usual one, whose machine may run at the same time.
const nameVariable = "FORKVM_LAB_NAME"

// A lab is a place on a host, for one user, where one machine at a time may run.
type lab struct {
	dir string
}

func openLab() (*lab, error) {
	cache, err := initrd.CacheDir()
	if err != nil {
		return nil, err
	}
	name := cmp.Or(os.Getenv(nameVariable), "lab")
	if !labName.MatchString(name) {
		return nil, fmt.Errorf("$%s: %q is no name of a lab: lab, or lab- and lower-case letters and digits", nameVariable, name)
	}
	dir := filepath.Join(cache, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &lab{dir: dir}, nil
}

// kept says how the machine is to be started that stays up between runs.
type kept struct {
	Options image.Options `json:"options"`
	// Boot is the host's boot: another one ended the machine, and nobody misses it.
	Boot string `json:"boot"`
}

// keepIfDown has the next machine stay up, unless one does already.
func (l *lab) keepIfDown(o image.Options) error {
	m, err := machine.Attach(l.dir)
	if err == nil {
		m.Detach()
		return nil
	}
	if !errors.Is(err, machine.ErrNotUp) {
		return err
	}
	b, err := json.Marshal(kept{Options: o, Boot: bootID()})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.dir, keptFile), b, 0o600)
}

func (l *lab) unkeep() { os.Remove(filepath.Join(l.dir, keptFile)) }

func (l *lab) keptOptions() (image.Options, bool) {
	var k kept
	b, err := os.ReadFile(filepath.Join(l.dir, keptFile))
	if err != nil || json.Unmarshal(b, &k) != nil || k.Boot != bootID() {
		return image.Options{}, false
	}
	return k.Options, true
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(b)
}

// errAttached says that a machine which is up cannot be given what was asked for.
var errAttached = errors.New("a machine is up already: its memory, disks and trees are chosen by " +
	"'lab up' (use 'lab down' first)")

var errNotShared = errors.New("--share needs a machine that is up: 'lab up' starts one")

// work is what is done in a machine.
type work func(context.Context, *machine.Machine, *session.Session) error

// use starts a machine, or takes the one that is up, and does the work with a session in it. A
// machine that is not to stay up is ended afterwards. If the machine fails meanwhile, the work's
// context ends, and use returns machine.ErrStuck or machine.ErrDied.
func (l *lab) use(ctx context.Context, k *lock, o image.Options, do work) error {
	keptOptions, keep := l.keptOptions()
	m, err := machine.Attach(l.dir)
	switch {
	case err == nil && !o.IsDefault():
		m.Detach()
		return errAttached
	case err == nil:
		err = m.Resume(ctx)
	case errors.Is(err, machine.ErrNotUp) && k.shared:
		return errNotShared
	case errors.Is(err, machine.ErrNotUp):
		if keep {
			o = keptOptions
		}
		m, err = l.start(ctx, o, keep)
	}
	if err != nil {
		return err
	}
	err = watched(ctx, m, do)
	if failed(err) {
		l.record(err)
		m.Kill()
		m.Close()
		return err
	}
	return errors.Join(err, leave(k, m, keep))
}

func (l *lab) start(ctx context.Context, o image.Options, keep bool) (*machine.Machine, error) {
	c, err := image.Prepare(ctx, l.dir, o)
	if err != nil {
		l.unkeep()
		return nil, err
	}
	c.Detached = keep
	m, err := machine.Start(ctx, c)
	if failed(err) {
		l.record(err)
	}
	if err != nil {
		l.unkeep()
	}
	return m, err
}

// leave ends a machine, or pauses one that stays up, since an idle one would use a whole processor.
// If others share it, the last of them does so.
func leave(k *lock, m *machine.Machine, keep bool) error {
	if !keep {
		m.Close()
		return nil
	}
	defer m.Detach()
	if !k.alone() {
		return nil
	}
	return m.Pause(context.Background())
}

func failed(err error) bool {
	return errors.Is(err, machine.ErrStuck) || errors.Is(err, machine.ErrDied)
}

// watched does the work while watching the machine.
func watched(ctx context.Context, m *machine.Machine, do work) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	working, abandon := context.WithCancel(ctx)
	defer abandon()
	verdict := make(chan error, 1)
	go func() {
		err := m.Watch(watching)
		if err != nil {
			abandon()
		}
		verdict <- err
	}()
	s, err := session.Open(working, m.AgentAddr())
	if err == nil {
		err = do(working, m, s)
	}
	if err == nil && m.Durable {
		err = s.Sync(working)
	}
	if errors.Is(err, session.ErrLost) {
		// Most likely the machine ended, and the watchdog is about to notice.
		time.AfterFunc(lostGrace, stop)
	} else {
		stop()
	}
	if failure := <-verdict; failure != nil {
		return failure
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// event is a failure of the machine, which is not the fault of what it was running but must not go
// unnoticed either.
type event struct {
	Time  time.Time `json:"time"`
	Error string    `json:"error"`
}

func (l *lab) record(err error) {
	f, openErr := os.OpenFile(filepath.Join(l.dir, eventsFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if openErr != nil {
		fmt.Fprintln(os.Stderr, "lab:", openErr)
		return
	}
	defer f.Close()
	if err := json.NewEncoder(f).Encode(event{Time: time.Now(), Error: err.Error()}); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
	}
}

func (l *lab) events() ([]event, error) {
	f, err := os.Open(filepath.Join(l.dir, eventsFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []event
	for dec := json.NewDecoder(f); dec.More(); {
		var e event
		if err := dec.Decode(&e); err != nil {
			return nil, fmt.Errorf("%s: %w", eventsFile, err)
		}
		all = append(all, e)
	}
	return all, nil
}
