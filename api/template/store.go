package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/vmm"
)

var (
	// ErrNotFound: there is no template of that name.
	ErrNotFound = errors.New("no such template")
	// ErrName: the text cannot be a template's name.
	ErrName = errors.New("bad name of a template")
	// ErrBusy: a template is being built, or removed.
	ErrBusy = errors.New("a template is being built or removed")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store of templates is closed")
)

var goodName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// CheckName tells whether name can be a template's: up to 63 of a–z, 0–9 and
// . _ -, of which the first is no sign. The error wraps ErrName.
func CheckName(name string) error {
	if !goodName.MatchString(name) {
		return fmt.Errorf("template: %w: %.80q (up to 63 of a-z 0-9 . _ -)", ErrName, name)
	}
	return nil
}

// Info is what there is to say of a template.
type Info struct {
	Name string `json:"name"`
	// Snapshot is the id of the machine in Store.Snapshots.
	Snapshot string `json:"snapshot"`
	// Key is the sum of all that went into it.
	Key     string    `json:"key"`
	Created time.Time `json:"created"`
	// From is what it was made from, Source the file that says how.
	From   string `json:"from"`
	Source string `json:"source"`
	// Parent is the snapshot that a template had which From is the name of; it
	// need not be there any more. Empty: From is no template's name.
	Parent string `json:"parent,omitempty"`
	Config Config `json:"config"`
	// Memory and Disk are in bytes; Disk is 0 where there is none.
	Memory int64 `json:"memory"`
	Disk   int64 `json:"disk"`
	VCPUs  int   `json:"vcpus"`
	// Kernel is the release of the guest's kernel.
	Kernel string `json:"kernel,omitempty"`
	// Base is the size of the base's image, Stored of what is stored for the
	// template in all, in bytes.
	Base   int64 `json:"base"`
	Stored int64 `json:"stored"`
	// BuildSeconds is how long the last build took, of what was not cached.
	BuildSeconds float64 `json:"build_s"`
	// Log is the path of the output of the last build.
	Log string `json:"log,omitempty"`
	// Steps are the keys of steps that a build of the same would go on from.
	Steps []string `json:"steps,omitempty"`
}

// Options are the choices of Open. The zero value is good.
type Options struct {
	// Machine is what machines are like where a Spec does not say, and those of
	// built-in templates.
	Machine Machine
}

// Store keeps templates in a directory:
//
//	names/NAME.json   what is known of a template
//	names/NAME.lock   held while it is built or removed
//	steps/KEY.json    which snapshot a step of some build came to
//	bases/            images of what templates are made from
//	snapshots/        a snapshot.Store of all machines
//	logs/NAME/        what was printed by builds
//	tmp/, scratch/    what is being written
//	lock              held shared by builds, exclusively by Prune
//
// Any number of processes may use a directory at once. Nothing that is removed
// disturbs a machine that runs. It belongs to one user, as a snapshot.Store
// does. A Store is safe for concurrent use.
type Store struct {
	dir                  string
	opts                 Options
	names, steps         files
	bases                bases
	machines             machines
	snapshots            *snapshot.Store
	checkEvery, checkFor time.Duration

	// load is vmm.Load, for tests to replace.
	load func(ctx context.Context, id string) (*vmm.Image, func() error, error)

	mu     sync.Mutex
	images map[string]*imageSlot // by name
	open   map[*heldImage]bool   // images that are not closed
	closed bool
}

// DefaultDir is where templates are kept unless the user says otherwise:
// forkvm/templates in $XDG_STATE_HOME, or else in ~/.local/state.
func DefaultDir() (string, error) {
	dir, err := snapshot.DefaultDir()
	if err != nil {
		return "", fmt.Errorf("template: default directory: %w", err)
	}
	return filepath.Join(filepath.Dir(dir), "templates"), nil
}

// Open opens the store in dir and makes it if it is not there.
func Open(dir string, o Options) (*Store, error) {
	s, err := openDir(dir, o)
	if err != nil {
		return nil, fmt.Errorf("template: open store %s: %w", dir, err)
	}
	s.snapshots, err = snapshot.Open(s.path("snapshots"))
	if err != nil {
		return nil, err
	}
	s.machines = &vmMachines{store: s.snapshots, kvm: o.Machine.KVM, scratch: s.path("scratch"), tmp: s.path("tmp")}
	return s, nil
}

func openDir(dir string, o Options) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{dir: dir, opts: o, images: map[string]*imageSlot{}, open: map[*heldImage]bool{}, checkEvery: checkEvery, checkFor: checkFor}
	s.load = s.loadImage
	s.names, s.steps = files{s.path("names")}, files{s.path("steps")}
	s.bases = bases{dir: files{s.path("bases")}, tmp: s.path("tmp")}
	for _, d := range []string{"names", "steps", "bases", "logs", "tmp", "scratch"} {
		if err := os.MkdirAll(s.path(d), 0o700); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

// Snapshots is the store of the templates' machines. It is closed with s. Others may
// keep snapshots there as well, of machines started from templates say, which
// then share what these have: all but those whose labels begin with "template "
// are left alone.
func (s *Store) Snapshots() *snapshot.Store { return s.snapshots }

// Close closes the images that Image has handed out, and the store. Machines
// go on.
func (s *Store) Close() error {
	err := s.closeImages()
	if s.snapshots != nil {
		err = errors.Join(err, s.snapshots.Close())
	}
	return err
}

// Get describes a template. It fails with ErrNotFound or ErrName.
func (s *Store) Get(name string) (Info, error) {
	if err := CheckName(name); err != nil {
		return Info{}, err
	}
	var info Info
	err := s.names.read(name+".json", &info)
	if errors.Is(err, fs.ErrNotExist) {
		return Info{}, fmt.Errorf("template: %w: %s", ErrNotFound, name)
	}
	if err == nil && info.Name != name {
		err = fmt.Errorf("it is that of %.80q", info.Name)
	}
	if err != nil {
		return Info{}, fmt.Errorf("template: record of %s: %w", name, err)
	}
	return info, nil
}

// List describes all templates, in the order of their names. One that cannot
// be read is left out, and is in the error.
func (s *Store) List() ([]Info, error) {
	names, err := s.names.names(".json")
	if err != nil {
		return nil, fmt.Errorf("template: list: %w", err)
	}
	var infos []Info
	var errs []error
	for _, n := range names {
		info, err := s.Get(n)
		switch {
		case err == nil:
			infos = append(infos, info)
		case !errors.Is(err, ErrNotFound): // removed meanwhile
			errs = append(errs, err)
		}
	}
	return infos, errors.Join(errs...)
}

// Log returns what the last build of a template printed, successful or not, in
// which there was something to do. It fails with ErrNotFound if there is nothing of it.
func (s *Store) Log(name string) ([]byte, error) {
	r, err := s.OpenLog(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// OpenLog is Log for who reads it piece by piece, and closes it.
func (s *Store) OpenLog(name string) (io.ReadCloser, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	logs := files{s.logDir(name)}
	for {
		found, err := logs.names(logSuffix)
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(found) == 0 {
			return nil, fmt.Errorf("template: %w: no build of %s is known", ErrNotFound, name)
		}
		if err != nil {
			return nil, fmt.Errorf("template: log: %w", err)
		}
		f, err := os.Open(logs.path(slices.Max(found) + logSuffix))
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, fs.ErrNotExist) { // a build has ended meanwhile
			return nil, fmt.Errorf("template: log: %w", err)
		}
	}
}

// Remove removes a template, with its logs and the steps that no other
// template was made of. It fails with ErrNotFound, and with ErrBusy while one of
// the name is being built.
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if _, err := s.Get(name); errors.Is(err, ErrNotFound) {
		return err // and no lock is made of a name that is nobody's
	}
	l, err := tryLock(s.names.path(name+".lock"), exclusive)
	if err == nil && l == nil {
		err = ErrBusy
	}
	if err != nil {
		return fmt.Errorf("template: remove %s: %w", name, err)
	}
	defer l.unlock()
	info, err := s.Get(name)
	if errors.Is(err, ErrNotFound) {
		return err
	}
	// A record that cannot be read goes too; what it named is Prune's.
	if err := s.names.remove(name + ".json"); err != nil {
		return fmt.Errorf("template: remove %s: %w", name, err)
	}
	s.letGo(name)
	err = errors.Join(os.RemoveAll(s.logDir(name)), s.discard(ctx, info))
	if err != nil {
		return fmt.Errorf("template: remove %s: %w", name, err)
	}
	return nil
}

// discard deletes what only a record that is gone has needed.
func (s *Store) discard(ctx context.Context, old Info) error {
	kept, err := s.needed()
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range old.Steps {
		if !kept.steps[k] && goodKey(k) {
			errs = append(errs, s.removeStep(ctx, k, kept))
		}
	}
	if old.Snapshot != "" && !kept.snapshots[old.Snapshot] {
		errs = append(errs, s.machines.delete(ctx, old.Snapshot))
	}
	return errors.Join(errs...)
}

// need is what the records that there are refer to.
type need struct{ steps, snapshots map[string]bool }

func (s *Store) needed() (need, error) {
	n := need{map[string]bool{}, map[string]bool{}}
	infos, err := s.List()
	for _, i := range infos {
		n.snapshots[i.Snapshot] = true
		for _, k := range i.Steps {
			n.steps[k] = true
		}
	}
	return n, err // one that cannot be read may need anything
}

// removeStep removes what is known of a step, and then its machine.
func (s *Store) removeStep(ctx context.Context, k string, kept need) error {
	var st stepRecord
	err := s.steps.read(k+".json", &st)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := s.steps.remove(k + ".json"); err != nil {
		return err
	}
	if err != nil || kept.snapshots[st.Snapshot] { // what cannot be read is of no use either
		return nil
	}
	return s.machines.delete(ctx, st.Snapshot)
}

// stepRecord says where a step of a build came to.
type stepRecord struct {
	Snapshot string    `json:"snapshot"`
	Text     string    `json:"text"`
	Created  time.Time `json:"created"`
}

var hexKey = regexp.MustCompile(`^[0-9a-f]{64}$`)

func goodKey(k string) bool { return hexKey.MatchString(k) }

// Pruned is what Prune removed.
type Pruned struct {
	Steps     int `json:"steps"`     // cached steps of builds
	Snapshots int `json:"snapshots"` // machines, those of steps included
	Bases     int `json:"bases"`     // images of bases
}

// Prune removes what no template needs: the cached steps of builds that failed
// or were changed since, images of bases, and what was left by programs that
// were killed. It fails with ErrBusy while something is built.
func (s *Store) Prune(ctx context.Context) (Pruned, error) {
	l, err := tryLock(s.path("lock"), exclusive)
	if err == nil && l == nil {
		err = ErrBusy
	}
	if err != nil {
		return Pruned{}, fmt.Errorf("template: prune: %w", err)
	}
	defer l.unlock()
	p, err := s.prune(ctx)
	if err != nil {
		return p, fmt.Errorf("template: prune: %w", err)
	}
	return p, nil
}

func (s *Store) prune(ctx context.Context) (p Pruned, err error) {
	kept, err := s.needed()
	if err != nil {
		return p, err
	}
	steps, err := s.steps.names(".json")
	if err != nil {
		return p, err
	}
	for _, k := range steps {
		var st stepRecord
		if kept.steps[k] && s.steps.read(k+".json", &st) == nil {
			kept.snapshots[st.Snapshot] = true
			continue
		}
		if err := s.steps.remove(k + ".json"); err != nil {
			return p, err
		}
		p.Steps++
	}
	ids, err := s.machines.list(ctx)
	if err != nil {
		return p, err
	}
	for _, id := range ids {
		if kept.snapshots[id] {
			continue
		}
		if err := s.machines.delete(ctx, id); err != nil {
			return p, err
		}
		p.Snapshots++
	}
	images, err := s.bases.dir.names(".erofs")
	p.Bases = len(images)
	return p, errors.Join(err, s.sweep())
}

// sweep empties what only builds use: images of bases are in the snapshots of
// what was made from them.
func (s *Store) sweep() error {
	var errs []error
	for _, d := range []string{"bases", "tmp", "scratch"} {
		list, err := os.ReadDir(s.path(d))
		errs = append(errs, err)
		for _, e := range list {
			errs = append(errs, os.RemoveAll(filepath.Join(s.path(d), e.Name())))
		}
	}
	for _, d := range []files{s.names, s.steps} {
		list, err := os.ReadDir(d.dir)
		errs = append(errs, err)
		for _, e := range list {
			if strings.HasPrefix(e.Name(), tmpPrefix) {
				errs = append(errs, d.remove(e.Name()))
			}
		}
	}
	return errors.Join(errs...)
}
