package template

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/snapshot"
)

// fakeMachines are machines that do nothing but remember what was asked of
// them.
type fakeMachines struct {
	mu     sync.Mutex
	stored map[string]fakeState // by id
	made   int
	did    []string // boot, restore ID, run LINE, start LINE, in order
	// on, if set, is called for each command before it ends.
	on func(ctx context.Context, m *fakeMachine, line string, out io.Writer) error
	// died is what the start command ended with.
	died error
}

type fakeState struct {
	history []string // what was run in it
	files   map[string]string
	label   string
}

func (s fakeState) clone() fakeState {
	return fakeState{slices.Clone(s.history), maps.Clone(s.files), s.label}
}

// fakeStore is a store without real machines.
func fakeStore(t *testing.T, dir string) (*Store, *fakeMachines) {
	t.Helper()
	s, err := openDir(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeMachines{stored: map[string]fakeState{}}
	s.machines = f
	s.checkEvery, s.checkFor = time.Millisecond, time.Minute
	t.Cleanup(func() { s.Close() })
	return s, f
}

func (f *fakeMachines) did1(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, fmt.Sprintf(format, args...))
}

// take returns what was done since it was asked last.
func (f *fakeMachines) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	did := f.did
	f.did = nil
	return did
}

func (f *fakeMachines) prepare(_ context.Context, m Machine) (setting, error) {
	return setting{Machine: m, initramfs: []byte("initramfs"), kernel: "kernel"}, nil
}

func (f *fakeMachines) boot(_ context.Context, s setting, image string) (machine, error) {
	f.did1("boot")
	return &fakeMachine{f: f, state: fakeState{files: map[string]string{
		"/etc/passwd": "root:x:0:0::/root:/bin/sh\napp:x:7:8::/:/bin/sh\n", "/etc/group": "staff:x:50:\n", "/existing/dir/x": "",
	}}, owners: map[string]string{}}, nil
}

func (f *fakeMachines) restore(_ context.Context, id string) (machine, error) {
	f.mu.Lock()
	st, ok := f.stored[id]
	f.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("fake: %w: %s", snapshot.ErrNotFound, id)
	}
	f.did1("restore")
	return &fakeMachine{f: f, state: st.clone(), owners: map[string]string{}}, nil
}

func (f *fakeMachines) stat(_ context.Context, id string) (snapshot.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.stored[id]; !ok {
		return snapshot.Info{}, snapshot.ErrNotFound
	}
	return snapshot.Info{Manifest: snapshot.Manifest{ID: id}}, nil
}

func (f *fakeMachines) list(context.Context) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.stored)), nil
}

func (f *fakeMachines) delete(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.stored, id)
	return nil
}

type fakeMachine struct {
	f      *fakeMachines
	state  fakeState
	owners map[string]string
}

func (m *fakeMachine) run(ctx context.Context, c command, out io.Writer) error {
	line := strings.Join(c.argv, " ")
	line = strings.TrimPrefix(line, "/bin/sh -c ")
	if line == "sync" {
		return nil
	}
	m.f.did1("run %s", line)
	m.state.history = append(m.state.history, line)
	if m.f.on != nil {
		return m.f.on(ctx, m, line, out)
	}
	return nil
}

func (m *fakeMachine) start(_ context.Context, c command) (process, error) {
	m.f.did1("start %s", strings.TrimPrefix(strings.Join(c.argv, " "), "/bin/sh -c "))
	return m, nil
}

func (m *fakeMachine) ended(context.Context) (bool, error) { return m.f.died != nil, m.f.died }

func (m *fakeMachine) output(_ context.Context, out io.Writer) { io.WriteString(out, "last words\n") }

func (m *fakeMachine) files(context.Context) guestFiles { return m }

func (m *fakeMachine) save(_ context.Context, label string) (snapshot.Info, error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.made++
	id := fmt.Sprintf("snapshot-%d", m.f.made)
	m.f.stored[id] = fakeState{slices.Clone(m.state.history), maps.Clone(m.state.files), label}
	return snapshot.Info{Manifest: snapshot.Manifest{ID: id, Label: label}, Stored: 1}, nil
}

func (m *fakeMachine) fork(context.Context) (machine, error) {
	return &fakeMachine{f: m.f, state: m.state.clone(), owners: m.owners}, nil
}

func (m *fakeMachine) settle(context.Context) error { return nil }

func (m *fakeMachine) close() error { return nil }

// The files of a fake machine: a map in the shape of a file system.

func (m *fakeMachine) fs() fstest.MapFS {
	tree := fstest.MapFS{}
	for name, text := range m.state.files {
		mode := fs.FileMode(0o644)
		if rest, ok := strings.CutSuffix(name, "/"); ok {
			name, mode = rest, fs.ModeDir|0o755
		}
		tree[strings.TrimPrefix(name, "/")] = &fstest.MapFile{Data: []byte(text), Mode: mode}
	}
	return tree
}

func (m *fakeMachine) Stat(name string) (fs.FileInfo, error) {
	if name == "/" {
		name = "/."
	}
	return m.fs().Stat(name[1:])
}

func (m *fakeMachine) ReadFile(name string) ([]byte, error) { return m.fs().ReadFile(name[1:]) }

func (m *fakeMachine) MkdirAll(name string, _ fs.FileMode) error {
	if _, err := m.Stat(name); err == nil {
		return nil
	}
	m.state.files[name+"/"] = ""
	return nil
}

func (m *fakeMachine) Remove(name string) error {
	if _, ok := m.state.files[name]; !ok {
		return fs.ErrNotExist
	}
	delete(m.state.files, name)
	return nil
}

func (m *fakeMachine) Symlink(to, name string) error {
	m.state.files[name] = "-> " + to
	return nil
}

func (m *fakeMachine) Chown(name string, uid, gid int) error {
	m.owners[name] = fmt.Sprintf("%d:%d", uid, gid)
	return nil
}

func (m *fakeMachine) TarIn(_ context.Context, dir string, r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			_, err := io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return err
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			return err
		}
		name := path.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			name += "/"
		}
		m.state.files[name] = string(text)
	}
}

// exit is the error of a command that ended with a code.
func exit(code int) error { return &client.ExitError{Code: code} }

var errFake = errors.New("broken on purpose")
