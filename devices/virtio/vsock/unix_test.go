package vsock

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// serveUnix serves g's device and returns a function that connects.
func serveUnix(t *testing.T, g *guest) (dial func() *net.UnixConn, stop func() error) {
	t.Helper()
	addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "v.sock"), Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.dev.ServeUnix(ctx, l) }()
	stop = func() error { cancel(); return <-done }
	return func() *net.UnixConn {
		u, err := net.DialUnix("unix", nil, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { u.Close() })
		return u
	}, stop
}

func TestServeUnix(t *testing.T) {
	g := newGuest(t, Config{})
	l := g.listen(1024)
	dial, stop := serveUnix(t, g)
	u := dial()
	want := make([]byte, 1<<20)
	rand.New(rand.NewSource(1)).Read(want)
	go func() {
		// The first bytes come in one piece with the line.
		u.Write(append([]byte("CONNECT 1024\n"), want...))
		u.CloseWrite()
	}()
	c := <-l
	go func() {
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("guest read %d bytes, %v", len(got), err)
		}
		c.Write(got)
		c.Close()
	}()
	r := bufio.NewReader(u)
	line, err := r.ReadString('\n')
	if ok := fmt.Sprintf("OK %d\n", c.ports.host); line != ok || err != nil {
		t.Errorf("answer %q, %v; want %q", line, err, ok)
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("client read %d bytes, %v", len(got), err)
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("ServeUnix: %v", err)
	}
}

func TestServeUnixRefuses(t *testing.T) {
	g := newGuest(t, Config{})
	dial, stop := serveUnix(t, g)
	for _, line := range []string{
		"CONNECT 99\n", // nobody listens
		"CONNECT\n", "CONNECT \n", "CONNECT x\n", "CONNECT -1\n", "CONNECT 4294967296\n", "CONNECT 4294967295\n",
		"connect 1024\n", "GET / HTTP/1.1\r\n", "\n", strings.Repeat("CONNECT", 1000),
	} {
		u := dial()
		u.Write([]byte(line))
		// The end may be a reset, as the client's bytes were not all read.
		if b, _ := io.ReadAll(u); len(b) > 0 {
			t.Errorf("%q: answer %q", line, b)
		}
	}
	dial().CloseWrite()
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("ServeUnix: %v", err)
	}
}

// Stopping ends clients in whatever state they are.
func TestServeUnixStops(t *testing.T) {
	g := newGuest(t, Config{})
	l := g.listen(1024)
	dial, stop := serveUnix(t, g)
	silent, busy := dial(), dial()
	busy.Write([]byte("CONNECT 1024\n"))
	c := <-l
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("ServeUnix: %v", err)
	}
	for _, u := range []*net.UnixConn{silent, busy} {
		io.Copy(io.Discard, u) // returns
	}
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Error(err)
	}
}

func TestServeUnixGuestReset(t *testing.T) {
	g := newGuest(t, Config{})
	l := g.listen(1024)
	dial, _ := serveUnix(t, g)
	u := dial()
	u.Write([]byte("CONNECT 1024\n"))
	c := <-l
	r := bufio.NewReader(u)
	if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "OK ") {
		t.Fatalf("answer %q, %v", line, err)
	}
	g.mu.Lock()
	c.send(opReset, 0, nil)
	c.remove()
	g.mu.Unlock()
	if b, _ := io.ReadAll(r); len(b) > 0 {
		t.Errorf("client read %q", b)
	}
}
