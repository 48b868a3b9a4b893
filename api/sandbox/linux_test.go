package sandbox

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/client"
	"github.com/forkvm/forkvm/api/internal/promises"
	"github.com/forkvm/forkvm/api/server"
	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/kvm/probe/probetest"
)

// linuxStore is a store of templates and its directory.
type linuxStore struct {
	*template.Store
	dir string
}

// linuxTemplates has one template, work, which has a disk. It is for tests that
// do something to it; the others' is common.
func linuxTemplates(t testing.TB) linuxStore {
	t.Helper()
	probetest.NeedLinux(t)
	s, err := makeTemplates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// makeTemplates makes a store, and the template.
func makeTemplates(dir string) (s linuxStore, err error) {
	ctx := context.Background()
	kernel, err := initrd.FindKernel(ctx, cmp.Or(os.Getenv("FORKVM_TEST_KERNEL"), "minimal"))
	if err != nil {
		return s, err
	}
	root := filepath.Join(dir, "root.tar")
	if err := os.WriteFile(root, emptyRoot(), 0o600); err != nil {
		return s, err
	}
	s.dir = filepath.Join(dir, "templates")
	s.Store, err = template.Open(s.dir, template.Options{Machine: template.Machine{
		Kernel: kernel, Agent: os.Getenv("FORKVM_TEST_AGENT"), Cmdline: os.Getenv("FORKVM_CMDLINE"),
		Memory: 256 << 20, Disk: 128 << 20,
	}})
	if err != nil {
		return s, err
	}
	source := "FROM " + root + "\nENV FROM_TEMPLATE=yes\n"
	if _, err := s.Build(ctx, template.Spec{Name: workTemplate, Source: []byte(source)}, template.BuildOptions{}); err != nil {
		return s, errors.Join(err, s.Close())
	}
	return s, nil
}

// common is the store of all tests that only start from it.
var common struct {
	sync.Once
	linuxStore
	dir string
	err error
}

func commonTemplates(t testing.TB) linuxStore {
	t.Helper()
	probetest.NeedLinux(t)
	common.Do(func() {
		if common.dir, common.err = os.MkdirTemp("", "sandbox-test-"); common.err == nil {
			common.linuxStore, common.err = makeTemplates(common.dir)
		}
	})
	if common.err != nil {
		t.Fatal(common.err)
	}
	return common.linuxStore
}

// closeCommon removes it when all tests have ended.
func closeCommon() error {
	var err error
	if common.Store != nil {
		err = common.Close()
	}
	if common.dir != "" {
		err = errors.Join(err, os.RemoveAll(common.dir))
	}
	return err
}

// linuxEngine is an engine with real machines.
func linuxEngine(t testing.TB, o Options) *Engine {
	t.Helper()
	o.Templates = commonTemplates(t).Store
	e, err := Open(t.Context(), t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background(), CloseDestroys); err != nil {
			t.Error(err)
		}
	})
	return e
}

const workTemplate = "work"

// emptyRoot is an archive of a root file system with next to nothing, and more
// directories: commands are the agent's.
func emptyRoot(more ...string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, d := range append([]string{"bin/", "etc/", "tmp/", "root/"}, more...) {
		// Nothing fails that writes to memory.
		_ = w.WriteHeader(&tar.Header{Name: d, Typeflag: tar.TypeDir, Mode: 0o755})
	}
	_ = w.Close()
	return b.Bytes()
}

// TestSemantics tests every promise in this process, and over HTTP.
func TestSemantics(t *testing.T) {
	e := linuxEngine(t, Options{})
	for name, service := range map[string]func(t testing.TB, e *Engine) func(*testing.T) api.Service{
		"in-process": inProcess, "http": overHTTP,
	} {
		t.Run(name, func(t *testing.T) {
			again := service(t, e)
			promises.Run(t, promises.Target{Service: again(t), Again: again, Template: workTemplate})
		})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.boxes)+len(e.snaps) != 0 || e.memory != 0 {
		t.Errorf("%d sandboxes, %d snapshots and %d bytes of memory are left", len(e.boxes), len(e.snaps), e.memory)
	}
}

func inProcess(t testing.TB, e *Engine) func(*testing.T) api.Service {
	return func(*testing.T) api.Service { return e.Team("in-process") }
}

// overHTTP serves the engine on the loopback.
func overHTTP(t testing.TB, e *Engine) func(*testing.T) api.Service {
	key := server.NewKey()
	line, err := server.KeyLine("http", "tests", key, true)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := server.ParseKeys([]byte(line + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(server.New(server.Config{
		Account:      func(team string) (api.Service, error) { return e.Team(team), nil },
		Open:         func(a api.Access) (server.Sandbox, error) { return e.Holder(a) },
		Authenticate: keys.Team, Admin: keys.Admin,
	}))
	t.Cleanup(srv.Close)
	return func(*testing.T) api.Service {
		c, err := client.New(srv.URL, client.Options{Key: key})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
}
