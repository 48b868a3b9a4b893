package vmm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
	"github.com/forkvm/forkvm/kvm/probe"
)

// The guests of this file are Linux. Each kind is booted once for the whole
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

// needLinux skips where no ordinary kernel runs.
func needLinux(t testing.TB) {
	t.Helper()
	sys := kvmtest.OpenOrSkip(t)
	if os.Getenv("FORKVM_TEST_KERNEL") != "" {
		return // whoever names a kernel knows that it runs here
	}
	if f := flavor(sys); f.err != nil {
		t.Fatal(f.err)
	} else if f.info.Emulated {
		kvmtest.Skip(t, f.info.Name+" is an emulated KVM, which ordinary kernels do not run on")
	}
}

type flavorResult struct {
	info probe.Info
	err  error
}

var flavorOnce sync.Once
var flavorFound flavorResult

func flavor(sys *kvm.System) flavorResult {
	flavorOnce.Do(func() { flavorFound.info, flavorFound.err = probe.Flavor(sys) })
	return flavorFound
}

// parent boots the kind on first use. The machine is shared: tests fork it.
func (k *guestKind) parent(t testing.TB) *VM {
	t.Helper()
	needLinux(t)
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

func TestScenarioP01KernelsBootAndAnswer(t *testing.T) {
	for name, kind := range map[string]*guestKind{"minimal": minimal, "debian": debian} {
		t.Run(name, func(t *testing.T) {
			vm := kind.fork(t)
			if out := output(t, vm, "uname", "-a"); !strings.HasPrefix(out, "Linux forkvm 6.") {
				t.Errorf("uname -a: %q", out)
			}
			parent := kind.parent(t)
			t.Logf("%+v", parent.Timings())
			log := output(t, vm, "dmesg")
			if !strings.Contains(log, "Hypervisor detected: KVM") {
				t.Error("the guest does not know that it runs on KVM")
			}
			for _, bad := range []string{"clocksource: Marking", "TSC unstable", "soft lockup", "rcu_sched self-detected", "Call Trace"} {
				if strings.Contains(log, bad) {
					t.Errorf("the guest's log has %q:\n%s", bad, log)
				}
			}
			if cs := output(t, vm, "cat", "/sys/devices/system/clocksource/clocksource0/current_clocksource"); cs != "kvm-clock" {
				t.Errorf("clock source %q", cs)
			}
			if len(parent.info.Warnings) > 0 {
				t.Errorf("the agent warns: %q", parent.info.Warnings)
			}
		})
	}
}

func TestTerminal(t *testing.T) {
	vm := minimal.fork(t)
	cmd := vm.CommandContext(t.Context(), "sh", "-c", "test -t 0 && test -t 1 && stty size")
	cmd.TTY = &client.WinSize{Rows: 33, Cols: 99}
	out, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(out)) != "33 99" {
		t.Errorf("stty size on a terminal: %q, %v", out, err)
	}
}

func TestExitCodes(t *testing.T) {
	vm := minimal.fork(t)
	var exit *client.ExitError
	err := vm.CommandContext(t.Context(), "sh", "-c", "echo oops >&2; exit 7").Run()
	if !errors.As(err, &exit) || exit.Code != 7 {
		t.Errorf("exit 7: %v", err)
	}
	var start *client.StartError
	if err := vm.CommandContext(t.Context(), "/no/such/file").Run(); !errors.As(err, &start) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
}

// pattern is an endless reader.
type pattern struct{ at byte }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = p.at
		p.at += 7
	}
	return len(b), nil
}

func TestHundredMiBInAndOut(t *testing.T) {
	const size = 100 << 20
	k := &guestKind{kernel: "minimal", vcpus: 1, memory: 512 << 20}
	vm := k.parent(t)
	defer closeVM(t, vm)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	sent := sha256.New()
	f, err := vm.Agent().FS().Create("/tmp/big")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, io.TeeReader(io.LimitReader(&pattern{}, size), sent)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	got := sha256.New()
	if f, err = vm.Agent().FS().Open("/tmp/big"); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(got, f)
	if err != nil || n != size {
		t.Fatalf("read %d bytes back, %v", n, err)
	}
	f.Close()
	runtime.ReadMemStats(&after)
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Error("what came back is not what was sent")
	}
	if sum := output(t, vm, "sha256sum", "/tmp/big"); !strings.HasPrefix(sum, fmt.Sprintf("%x", sent.Sum(nil))) {
		t.Errorf("the guest has %s", sum)
	}
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 32<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

func TestTwoHundredExecsAtOnce(t *testing.T) {
	vm := minimal.fork(t)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			out, err := vm.CommandContext(t.Context(), "echo", fmt.Sprint(i)).Output()
			if err != nil || strings.TrimSpace(string(out)) != fmt.Sprint(i) {
				t.Errorf("echo %d: %q, %v", i, out, err)
			}
		})
	}
	wg.Wait()
}

func TestEightChildrenGoTheirOwnWays(t *testing.T) {
	parent := minimal.fork(t)
	startHelper(t, parent)
	if err := parent.Agent().FS().WriteFile("/root/file", []byte("of the parent"), 0o644); err != nil {
		t.Fatal(err)
	}
	output(t, parent, "sh", "-c", "for d in 1 2 3; do mkdir -p /root/tree/$d; for f in a b c; do echo $d$f > /root/tree/$d/$f; done; done")
	before, tree := ask(t, parent, "state"), hashTree(t, parent)
	processes := output(t, parent, "ps")
	children := forks(t, parent, 8)
	t.Logf("first child: %+v", children[0].Timings())
	for i, c := range children {
		s := ask(t, c, "state")
		if s.PID != before.PID || s.Hash != before.Hash {
			t.Errorf("child %d: helper is %+v, was %+v", i, s, before)
		}
		if s.Counter < before.Counter || s.Ticks < before.Ticks {
			t.Errorf("child %d: counters went back to %+v from %+v", i, s, before)
		}
		awaitHelper(t, c, s)
		if got := hashTree(t, c); got != tree {
			t.Errorf("child %d: files are %s, were %s", i, got, tree)
		}
		if !strings.Contains(processes, fmt.Sprint(s.PID)) {
			t.Errorf("process %d is not in %s", s.PID, processes)
		}
	}
	// Everybody writes, nobody sees the others' writes.
	all := append(children, parent)
	hashes, trees := make(map[string]int), map[string]int{tree: 0}
	for i, vm := range all {
		hashes[ask(t, vm, "scribble").Hash]++
		if err := vm.Agent().FS().WriteFile("/root/file", fmt.Append(nil, i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if len(hashes) != len(all) || hashes[before.Hash] != 0 {
		t.Errorf("hashes after everybody wrote: %v", hashes)
	}
	for i, vm := range all {
		if got, err := vm.Agent().FS().ReadFile("/root/file"); err != nil || string(got) != fmt.Sprint(i) {
			t.Errorf("machine %d has file %q, %v", i, got, err)
		}
		if h := ask(t, vm, "state").Hash; hashes[h] != 1 {
			t.Errorf("machine %d has a hash of another", i)
		}
		h := hashTree(t, vm)
		if j, dup := trees[h]; dup {
			t.Errorf("machines %d and %d have the same files", i, j)
		}
		trees[h] = i
	}
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

func TestChainOfForksFiveDeep(t *testing.T) {
	vm := minimal.fork(t)
	startHelper(t, vm)
	hash := ask(t, vm, "state").Hash
	for depth := range 5 {
		name := fmt.Sprintf("/root/depth-%d", depth)
		if err := vm.Agent().FS().WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		child := forks(t, vm, 1)[0]
		if got := ask(t, child, "state"); got.Hash != hash || got.Back != 0 {
			t.Errorf("depth %d: %+v, hash was %s", depth, got, hash)
		}
		hash = ask(t, child, "scribble").Hash
		if ask(t, vm, "state").Hash == hash {
			t.Errorf("depth %d: the parent sees the child's write", depth)
		}
		vm = child
	}
	files := strings.Fields(output(t, vm, "ls", "/root"))
	if len(files) != 5 {
		t.Errorf("files at the end of the chain: %q", files)
	}
}

func TestScenarioB24TwoForksWithWritesBetween(t *testing.T) {
	vm := minimal.fork(t)
	startHelper(t, vm)
	first := ask(t, vm, "state").Hash
	a := forks(t, vm, 1)[0]
	second := ask(t, vm, "scribble").Hash
	b := forks(t, vm, 1)[0]
	if got := ask(t, a, "state").Hash; got != first {
		t.Errorf("the first child has %s, want %s", got, first)
	}
	if got := ask(t, b, "state").Hash; got != second {
		t.Errorf("the second child has %s, want %s", got, second)
	}
}

func TestScenarioM28ChildrenDrawDifferentRandomness(t *testing.T) {
	parent := minimal.fork(t)
	read := []string{"sh", "-c", "dd if=/dev/urandom bs=32 count=1 2>/dev/null | sha256sum; cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id"}
	machines := append(forks(t, parent, 8), parent)
	seen := make(map[string]int)
	ids := make(map[string]int)
	for i, vm := range machines {
		for _, field := range strings.Fields(output(t, vm, read[0], read[1:]...)) {
			if field == "-" {
				continue
			}
			if j, dup := seen[field]; dup {
				t.Errorf("machines %d and %d both drew %s", i, j, field)
			}
			seen[field] = i
		}
		id, err := vm.mem.Slice(vmgenidAddr, 16)
		if err != nil {
			t.Fatal(err)
		}
		if j, dup := ids[string(id)]; dup {
			t.Errorf("machines %d and %d have the same VMGenID", i, j)
		}
		ids[string(id)] = i
	}
}

func TestScenarioM05WallClockOfChildren(t *testing.T) {
	parent := minimal.fork(t)
	startHelper(t, parent)
	const off = 500 * time.Millisecond
	for i, vm := range append(forks(t, parent, 4), parent) {
		before := time.Now()
		got := ask(t, vm, "state").Now
		if after := time.Now(); got.Before(before.Add(-off)) || got.After(after.Add(off)) {
			t.Errorf("machine %d: its clock says %v, between %v and %v", i, got, before, after)
		}
	}
}

func TestScenarioM14OpenConnectionDiesInTheChild(t *testing.T) {
	parent := minimal.fork(t)
	cmd := parent.CommandContext(t.Context(), "cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	echo := func(what string) {
		t.Helper()
		buf := make([]byte, len(what))
		if _, err := io.WriteString(in, what); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, buf); err != nil || string(buf) != what {
			t.Fatalf("cat answers %q, %v", buf, err)
		}
	}
	echo("before")
	for range 3 {
		child := forks(t, parent, 1)[0]
		echo("after")
		// In the child the same agent answers new connections at once.
		if got := output(t, child, "echo", "hello"); got != "hello" {
			t.Errorf("exec in the child: %q", got)
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestScenarioM14GuestConnectionAndListener has a process of the guest hold a
// connection to the host, and another listen.
func TestScenarioM14GuestConnectionAndListener(t *testing.T) {
	parent := minimal.fork(t)
	l, err := parent.Listen(holdPort)
	if err != nil {
		t.Fatal(err)
	}
	startHelper(t, parent) // listens
	hold := parent.CommandContext(t.Context(), helperPath, "hold")
	hold.Detach = true
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	echo := func() {
		t.Helper()
		if _, err := conn.Write([]byte{'x'}); err != nil {
			t.Fatal(err)
		}
		var got [1]byte
		if _, err := io.ReadFull(conn, got[:]); err != nil || got[0] != 'x' {
			t.Fatalf("the parent's connection: %q, %v", got, err)
		}
	}
	echo()
	for range 3 {
		child := forks(t, parent, 1)[0]
		how := output(t, child, "sh", "-c", "while test ! -s "+holdFile+"; do sleep 0.01; done; cat "+holdFile)
		// ENOTCONN, which Linux answers after a reset, is io.EOF to package vsock.
		if how != "EOF" && !strings.Contains(how, "connection reset") {
			t.Errorf("in the child the connection ended with %q", how)
		}
		ask(t, child, "state") // a new connection to the same listener
		ask(t, parent, "state")
		echo()
	}
}

func TestScenarioM08TwoVCPUsKeepOneClock(t *testing.T) {
	parent := minimalSMP.fork(t)
	for i, vm := range append(forks(t, parent, 2), parent) {
		out, err := vm.CommandContext(t.Context(), helperPath, "clocks").Output()
		if err != nil || strings.TrimSpace(string(out)) != "cpus 2 reads true back 0" {
			t.Errorf("machine %d: %q, %v", i, out, err)
		}
	}
}

func TestForkWhileCommandsRun(t *testing.T) {
	parent := minimalSMP.fork(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				want := fmt.Sprint(i, n)
				out, err := parent.CommandContext(t.Context(), "echo", want).Output()
				if err != nil || strings.TrimSpace(string(out)) != want {
					t.Errorf("echo %s: %q, %v", want, out, err)
					return
				}
			}
		})
	}
	for range 5 {
		for _, c := range forks(t, parent, 2) {
			if got := output(t, c, "echo", "child"); got != "child" {
				t.Errorf("child answers %q", got)
			}
		}
	}
	cancel()
	wg.Wait()
}

func TestPanicInTheMiddleOfAnExec(t *testing.T) {
	vm := minimal.fork(t)
	err := vm.CommandContext(t.Context(), "sh", "-c", "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger; sleep 100").Run()
	if !errors.Is(err, ErrPanic) {
		t.Errorf("the command ends with %v, want ErrPanic", err)
	}
	if err := vm.Wait(t.Context()); !errors.Is(err, ErrPanic) || !strings.Contains(err.Error(), "sysrq") {
		t.Errorf("Wait: %v", err)
	}
}

func TestPowerOffAndReboot(t *testing.T) {
	for want, f := range map[error]func(*client.Client, context.Context) error{
		ErrPowerOff: (*client.Client).PowerOff, ErrReset: (*client.Client).Reboot,
	} {
		vm := minimal.fork(t)
		if err := f(vm.Agent(), t.Context()); err != nil {
			t.Errorf("%v: %v", want, err)
		}
		if err := vm.Wait(t.Context()); !errors.Is(err, want) {
			t.Errorf("Wait: %v, want %v", err, want)
		}
	}
}

func TestScenarioM23LinuxPastTheGap(t *testing.T) {
	k := &guestKind{kernel: "minimal", vcpus: 1, memory: 4 << 30}
	vm := k.parent(t)
	defer closeVM(t, vm)
	child := forks(t, vm, 1)[0]
	out := output(t, child, "sh", "-c", "grep MemTotal /proc/meminfo")
	var kib int64
	if _, err := fmt.Sscanf(out, "MemTotal: %d kB", &kib); err != nil || kib < 3900<<10 {
		t.Errorf("%q, %v", out, err)
	}
}

func TestSixtyFourMiBIsEnough(t *testing.T) {
	k := &guestKind{kernel: "minimal", vcpus: 1, memory: MinMemory, alone: true}
	vm := k.parent(t)
	defer closeVM(t, vm)
	if got := output(t, vm, "echo", "small"); got != "small" {
		t.Error(got)
	}
}

func TestEightVCPUs(t *testing.T) {
	k := &guestKind{kernel: "minimal", vcpus: 8}
	vm := k.parent(t)
	defer closeVM(t, vm)
	child := forks(t, vm, 1)[0]
	if got := output(t, child, "sh", "-c", "grep -c ^processor /proc/cpuinfo"); got != "8" {
		t.Errorf("%s processors", got)
	}
}

func TestScenarioP07ChildConsoleStartsEmpty(t *testing.T) {
	child := minimal.fork(t)
	if tail := child.ConsoleTail(); len(tail) != 0 {
		t.Errorf("a child's console begins with %q", tail)
	}
	s := child.Stats()
	if p := minimal.vm.Stats(); s.MMIOWrite >= p.MMIOWrite {
		t.Errorf("a child's counters begin with its parent's: %+v, %+v", s, p)
	}
}
