package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
)

// TestInside adds 2 and 3 in a guest of a few bytes. On a host without /dev/kvm it is only of use
// inside the machine, where TestGenuineKVM runs it.
func TestInside(t *testing.T) {
	sys := kvmtest.OpenOrSkip(t)
	version, err := sys.APIVersion()
	if err != nil || version != 12 {
		t.Errorf("API version %d, %v; want 12", version, err)
	}
	g := kvmtest.New(t, sys, kvmtest.Config{Code: []byte{
		0xb0, 2, // mov al, 2
		0x04, 3, // add al, 3
		0xe6, 0x80, // out 0x80, al
		0xf4, // hlt
	}})
	g.Run(t, kvm.ExitIO)
	if out := g.VCPU.IO(); out.Port != 0x80 || !bytes.Equal(out.Data, []byte{5}) {
		t.Errorf("the guest said %v at port %#x; want [5] at 0x80", out.Data, out.Port)
	}
	g.Run(t, kvm.ExitHLT)
}

// programs are what the tests run in the machine, by name.
var programs = map[string]func(args []string) error{
	"alone":  expectAlone,
	"both":   printBoth,
	"exit":   exitWith,
	"meet":   meet,
	"mute":   killHeartbeat,
	"panic":  panicKernel,
	"serve":  serveHTTP,
	"signal": awaitSignal,
	"die":    dieOfSignal,
	"where":  printWhere,
}

func exitWith(args []string) error {
	code, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	os.Exit(code)
	return nil
}

func dieOfSignal([]string) error {
	return errors.Join(syscall.Kill(os.Getpid(), syscall.SIGKILL), errors.New("still alive"))
}

func printBoth([]string) error {
	fmt.Println("to stdout")
	fmt.Fprintln(os.Stderr, "to stderr")
	_, err := io.Copy(os.Stdout, os.Stdin)
	return err
}

// printWhere prints where the program is, and of the files named by its arguments what they are.
func printWhere(args []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	fmt.Println(dir, os.Getenv("WHERE"))
	for _, path := range args {
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		fmt.Println(path, info.Mode(), info.Size())
	}
	return nil
}

// awaitSignal says that it is ready, waits for SIGTERM and exits with 7.
func awaitSignal([]string) error {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGTERM)
	fmt.Println("ready")
	<-caught
	os.Exit(7)
	return nil
}

// expectAlone fails if another one runs at the same time.
func expectAlone([]string) error {
	const path = "/tmp/alone"
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	time.Sleep(100 * time.Millisecond) // A chance for another to come.
	return os.Remove(path)
}

// meet waits until as many of its kind as it is told have come to the same folder.
func meet(args []string) error {
	want, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	dir := "/tmp/meet"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(os.Getpid())), nil, 0o600); err != nil {
		return err
	}
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if came, err := os.ReadDir(dir); err != nil || len(came) >= want {
			return err
		}
	}
	return errors.New("the others did not come")
}

// serveHTTP answers one request at a port and ends.
func serveHTTP(args []string) error {
	l, err := net.Listen("tcp", ":"+args[0])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	served := make(chan struct{})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "from inside")
		close(served)
	})}
	down := make(chan error, 1)
	go func() {
		<-served
		down <- srv.Shutdown(context.Background())
	}()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-down // the answer is out
}

// panicKernel crashes the kernel it runs on.
func panicKernel([]string) error {
	if err := onlyInside(); err != nil {
		return err
	}
	return os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
}

// killHeartbeat ends the heartbeat, which is how a kernel that stopped looks from outside, and waits
// for the consequence.
func killHeartbeat([]string) error {
	if err := onlyInside(); err != nil {
		return err
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, path := range files {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(line, []byte("lab-heartbeat")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return err
		}
		fmt.Println("mute")
		return unix.Pause()
	}
	return errors.New("there is no heartbeat")
}

// onlyInside keeps a mistake in a test from harming the host.
func onlyInside() error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return err
	}
	if name := unix.ByteSliceToString(uts.Nodename[:]); name != "lab" {
		return fmt.Errorf("this is not the lab but %s", name)
	}
	return nil
}
