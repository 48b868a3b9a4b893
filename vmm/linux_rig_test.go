package vmm

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/kvm/probe/probetest"
)

// Guests of tests that are Linux. Each kind is booted once for the whole
// test binary; tests work on forks of it.

// guestKind is a machine that tests fork from.
type guestKind struct {
	kernel string // as initrd.FindKernel knows it
	vcpus  int
	memory int64
	disks  func(dir string) ([]Disk, error) // may be nil
	alone  bool                             // without the guest helper, which is large

	once sync.Once
	vm   *VM
	err  error
}

var (
	minimal    = &guestKind{kernel: "minimal", vcpus: 1}
	minimalSMP = &guestKind{kernel: "minimal", vcpus: 2}
	debian     = &guestKind{kernel: "debian", vcpus: 1}
)

// parent boots the kind on first use. The machine is shared: tests fork it.
func (k *guestKind) parent(t testing.TB) *VM {
	t.Helper()
	probetest.NeedLinux(t)
	k.once.Do(func() { k.vm, k.err = k.boot(context.Background()) })
	if k.err != nil {
		t.Fatal(k.err)
	}
	return k.vm
}

func (k *guestKind) boot(ctx context.Context) (*VM, error) {
	cfg, err := k.config(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	return Start(ctx, cfg)
}

func (k *guestKind) config(ctx context.Context) (Config, error) {
	spec := k.kernel
	if override := os.Getenv("FORKVM_TEST_KERNEL"); override != "" {
		spec = override
	}
	kernel, err := initrd.FindKernel(ctx, spec)
	if err != nil {
		return Config{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return Config{}, err
	}
	helper := []initrd.HostFile{{Host: self, Guest: helperPath, Mode: 0o755}}
	if k.alone {
		helper = nil
	}
	initramfs, err := initrd.Pack(ctx, initrd.Config{
		Kernel:    kernel,
		Agent:     os.Getenv("FORKVM_TEST_AGENT"),
		HostFiles: helper,
	})
	if err != nil {
		return Config{}, err
	}
	cfg := Config{
		Kernel: kernel.Vmlinux, Initramfs: initramfs, VCPUs: k.vcpus, Memory: k.memory,
		Cmdline: os.Getenv("FORKVM_CMDLINE"),
	}
	if k.disks != nil {
		dir, err := sharedDir()
		if err != nil {
			return Config{}, err
		}
		if cfg.Disks, err = k.disks(dir); err != nil {
			return Config{}, err
		}
	}
	return cfg, nil
}

// fork is a machine of its own for one test.
func (k *guestKind) fork(t testing.TB) *VM {
	t.Helper()
	return forks(t, k.parent(t), 1)[0]
}

func forks(t testing.TB, vm *VM, n int) []*VM {
	t.Helper()
	children, err := vm.Fork(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range children {
			closeVM(t, c)
		}
	})
	return children
}

// output runs a command that must succeed.
func output(t testing.TB, vm *VM, name string, arg ...string) string {
	t.Helper()
	out, err := vm.CommandContext(t.Context(), name, arg...).Output()
	if err != nil {
		var exit *client.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%s %q: %v\n%s", name, arg, err, exit.Stderr)
		}
		t.Fatalf("%s %q: %v", name, arg, err)
	}
	return strings.TrimSpace(string(out))
}

// startHelper starts the guest helper in the background and returns when it
// can be asked.
func startHelper(t testing.TB, vm *VM) {
	t.Helper()
	cmd := vm.CommandContext(t.Context(), helperPath, "serve")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // it was killed with the test's context
	line := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(out, line); err != nil {
		t.Fatal(err)
	}
}

func askHelper(ctx context.Context, vm *VM, question string) (s helperState, err error) {
	conn, err := vm.Dial(ctx, helperPort)
	if err != nil {
		return s, err
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, question); err != nil {
		return s, err
	}
	return s, json.NewDecoder(conn).Decode(&s)
}

func ask(t testing.TB, vm *VM, question string) helperState {
	t.Helper()
	s, err := askHelper(t.Context(), vm, question)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// awaitHelper waits until the helper of a machine has gone on since s.
func awaitHelper(t testing.TB, vm *VM, s helperState) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		later := ask(t, vm, "state")
		if later.Counter > s.Counter && later.Ticks > s.Ticks && later.Back == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the helper stands still: %+v then %+v", s, later)
		}
	}
}

// hashTree is a hash of the names and contents of all files below /root.
func hashTree(t testing.TB, vm *VM) string {
	t.Helper()
	sum := sha256.New()
	root := vm.Agent().FS().DirFS("/root")
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(root, path)
		fmt.Fprintf(sum, "%q %q\n", path, b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}
