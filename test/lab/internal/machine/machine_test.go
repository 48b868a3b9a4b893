package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLateHeartbeat(t *testing.T) {
	last := pulse{beats: 5, cpu: time.Minute, at: time.Now()}
	for name, c := range map[string]struct {
		cpu, wall time.Duration
		late      bool
	}{
		"at once":                      {0, 0, false},
		"a slow host":                  {stuckCPU - 1, stuckWall - 1, false},
		"used all that time":           {stuckCPU + 1, stuckCPU + 1, true},
		"waits for ever for something": {0, stuckWall + 1, true},
	} {
		now := pulse{beats: 5, cpu: last.cpu + c.cpu, at: last.at.Add(c.wall)}
		if now.lateSince(last) != c.late {
			t.Errorf("%s: late %v", name, !c.late)
		}
	}
}

// A process whose name looks like the rest of its own line in /proc.
func TestStatOfOddlyNamedProcess(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "a) S 1 (b 9")
	if err := os.Symlink(sleep, name); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	self, err := stat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	odd, err := stat(cmd.Process.Pid)
	if err != nil || odd.start < self.start || odd.cpu > time.Second {
		t.Errorf("%+v, %v; this process: %+v", odd, err, self)
	}
}

// TestQEMUInheritsNothing has a pipe that this process was given, and an end of
// which QEMU would hold as long as it runs.
func TestQEMUInheritsNothing(t *testing.T) {
	var given [2]int
	if err := unix.Pipe2(given[:], 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(given[0])
	defer unix.Close(given[1])
	dir := t.TempDir()
	qemu := filepath.Join(dir, "qemu")
	if err := os.WriteFile(qemu, []byte("#!/bin/sh\nls -l /proc/self/fd\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Config{Dir: dir, QEMU: qemu, Kernel: "k", Initrd: "i", Root: "r", MemoryMiB: 512})
	if !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), qemuLogFile) {
		t.Fatal(err)
	}
	pipe, err := os.Readlink(fmt.Sprint("/proc/self/fd/", given[1]))
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(dir, qemuLogFile))
	if err != nil || !bytes.Contains(log, []byte(qemuLogFile)) || bytes.Contains(log, []byte(pipe)) {
		t.Errorf("QEMU has %s, %v:\n%s", pipe, err, log)
	}
}

func TestAttachToNothing(t *testing.T) {
	dir := t.TempDir()
	attach := func(state string) error {
		if err := os.WriteFile(filepath.Join(dir, stateFile), []byte(state), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Attach(dir)
		return err
	}
	if _, err := Attach(dir); !errors.Is(err, ErrNotUp) {
		t.Errorf("no state: %v", err)
	}
	if err := attach(`{"pid":2000000000}`); !errors.Is(err, ErrNotUp) {
		t.Errorf("no such process: %v", err)
	}
	// This process has the number that a machine once had.
	if err := attach(`{"pid":1,"start_ticks":123456789}`); !errors.Is(err, ErrNotUp) {
		t.Errorf("another process: %v", err)
	}
	if err := attach(`{`); err == nil || errors.Is(err, ErrNotUp) {
		t.Errorf("broken state: %v", err)
	}
}

func TestArguments(t *testing.T) {
	c := Config{Root: "/a,b", Disks: []Disk{{Path: "kept"}, {Path: "forgotten", Volatile: true}}, MemoryMiB: 700}
	args := c.arguments(4321)
	for _, want := range []string{
		"file=/a,,b,format=raw,if=none,id=root,snapshot=on,cache=unsafe",
		"file=kept,format=raw,if=none,id=disk0,snapshot=off,cache=unsafe",
		"file=forgotten,format=raw,if=none,id=disk1,snapshot=on,cache=unsafe",
		"user,id=net0,hostfwd=tcp:127.0.0.1:4321-:1024",
		"700",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("no %q in %q", want, args)
		}
	}
	if !c.durable() || (&Config{Disks: c.Disks[1:]}).durable() {
		t.Error("which machine keeps what is written to its disks is mistaken")
	}
}

// A QEMU that ends at once is reported with its words, and soon.
func TestStartOfBrokenQEMU(t *testing.T) {
	dir := t.TempDir()
	qemu := filepath.Join(dir, "qemu")
	if err := os.WriteFile(qemu, []byte("#!/bin/sh\necho 'no such machine' >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := Config{Dir: dir, QEMU: qemu, Kernel: "k", Initrd: "i", Root: "r", MemoryMiB: 512}
	_, err := Start(context.Background(), c)
	if !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "no such machine") {
		t.Errorf("%v", err)
	}
	c.MemoryMiB = 1
	if _, err := Start(context.Background(), c); err == nil || errors.Is(err, ErrDied) {
		t.Errorf("one MiB of memory: %v", err)
	}
}
