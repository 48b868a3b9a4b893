package vmm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/forkvm/forkvm/guestagent/client"
)

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

// pattern is an endless reader of numbers that count: no two pieces are alike.
type pattern struct{ next uint64 }

func (p *pattern) Read(b []byte) (int, error) {
	if len(b) < 8 {
		return 0, io.ErrShortBuffer
	}
	n := 0
	for ; n+8 <= len(b); n += 8 {
		binary.LittleEndian.PutUint64(b[n:], p.next)
		p.next++
	}
	return n, nil
}

// checked takes a pattern and nothing else.
type checked struct{ at uint64 }

func (c *checked) Write(b []byte) (int, error) {
	for n := range b {
		if b[n] != byte(c.at/8>>(8*(c.at%8))) {
			return n, fmt.Errorf("byte %d is %#x", c.at, b[n])
		}
		c.at++
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
	f, err := vm.Agent().FS().Create("/tmp/big")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, io.LimitReader(&pattern{}, size)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if f, err = vm.Agent().FS().Open("/tmp/big"); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(&checked{}, f)
	if err != nil || n != size {
		t.Fatalf("read %d bytes back, %v", n, err)
	}
	f.Close()
	runtime.ReadMemStats(&after)
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
