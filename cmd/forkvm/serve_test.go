package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/client"
)

// certificate makes files of a certificate for this machine, and a pool with it.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	what := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, what, what, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return cert, key, pool
}

// TestTLS: with a certificate nothing is served in the clear.
func TestTLS(t *testing.T) {
	cert, key, pool := certificate(t)
	l := listenFlags{socket: filepath.Join(t.TempDir(), "s"), address: "127.0.0.1:0", keys: "k", cert: cert, key: key}
	all, err := l.open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0].Addr().Network() != "unix" {
		t.Fatalf("listens at %v", all)
	}
	all[0].Close()
	s := newFakeService()
	srv := &http.Server{Handler: s.handler(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)}
	go srv.Serve(all[1])
	defer srv.Close()
	address := all[1].Addr().String()
	if resp, err := http.Get("http://" + address + "/healthz"); err == nil && resp.StatusCode < 400 {
		t.Errorf("plain: %s", resp.Status)
	}
	c, err := client.New("https://"+address, client.Options{
		Key: fakeKey, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdle()
	if _, err := c.Get(t.Context(), s.boxes[0].ID); err != nil {
		t.Error(err)
	}
	var out bytes.Buffer
	_, err = c.Run(t.Context(), s.boxes[0].Access(), api.StartRequest{Command: api.Command{Argv: []string{"echo"}}}, api.Streams{Stdout: &out})
	if err != nil || !strings.HasPrefix(out.String(), "echo ") {
		t.Errorf("over a WebSocket: %q, %v", &out, err)
	}
}

// TestShutDown lets requests end, and ends those that do not.
func TestShutDown(t *testing.T) {
	for _, ends := range []bool{true, false} {
		asked, goOn := make(chan struct{}), make(chan struct{})
		ctx, cut := context.WithCancel(t.Context())
		srv := &http.Server{BaseContext: func(net.Listener) context.Context { return ctx }, Handler: http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				close(asked)
				select {
				case <-goOn:
				case <-r.Context().Done():
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			})}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		srv.RegisterOnShutdown(func() {
			if ends {
				close(goOn)
			}
		})
		go srv.Serve(l)
		got := make(chan int, 1)
		go func() {
			resp, err := http.Get("http://" + l.Addr().String())
			if err != nil {
				got <- 0
				return
			}
			resp.Body.Close()
			got <- resp.StatusCode
		}()
		await(t, asked, "request")
		grace := time.Minute
		want := http.StatusOK
		if !ends {
			grace, want = 20*time.Millisecond, http.StatusServiceUnavailable
		}
		if err := shutDown(srv, grace, cut); err != nil && ends {
			t.Error(err)
		}
		if status := await(t, got, "answer"); status != want && (ends || status != 0) {
			t.Errorf("ends by itself %v: status %d, want %d", ends, status, want)
		}
	}
}

// TestPassedSocket serves on a socket that a service manager passes, to which it
// says that it is ready.
func TestPassedSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "passed")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ready, cleanUp, err := listenForReady()
	if err != nil {
		t.Fatal(err)
	}
	defer cleanUp()
	cmd := exec.CommandContext(t.Context(), "forkvm", "serve", "--log-format", "json")
	cmd.Env = append(os.Environ(), passedToMe+"=1", "LISTEN_FDS=1", "FORKVM_STATE="+filepath.Join(dir, "state"), "NOTIFY_SOCKET="+ready.LocalAddr().String())
	cmd.ExtraFiles = []*os.File{f}
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	said := make(chan string, 1)
	go func() {
		b := make([]byte, 64)
		n, _ := ready.Read(b)
		said <- string(b[:n])
	}()
	select {
	case err := <-ended:
		t.Fatalf("%v: %s", err, &log)
	case s := <-said:
		if s != "READY=1" {
			t.Errorf("said %q", s)
		}
	}
	c, err := client.New("unix://"+path, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdle()
	if _, err := c.List(t.Context(), api.SandboxQuery{}); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := await(t, ended, "end"); err != nil {
		t.Errorf("%v: %s", err, &log)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the manager's socket: %v", err)
	}
}

// TestOneServerIsStarted by many commands at once. It has nothing of what those
// were given.
func TestOneServerIsStarted(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	defer func() {
		if err := signalServer(state, syscall.SIGINT); err != nil {
			t.Error(err)
		}
	}()
	given, gives, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer given.Close()
	var started sync.WaitGroup
	var mu sync.Mutex
	var notes bytes.Buffer
	for range 8 {
		started.Go(func() {
			cmd := exec.CommandContext(t.Context(), "forkvm", "ls")
			cmd.Env = append(os.Environ(), "FORKVM_STATE="+state, "FORKVM_TEMPLATES="+filepath.Join(state, "templates"))
			cmd.ExtraFiles = []*os.File{gives}
			out, err := cmd.CombinedOutput()
			mu.Lock()
			defer mu.Unlock()
			notes.Write(out)
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	started.Wait()
	if n := strings.Count(notes.String(), "started a server"); n != 1 {
		t.Errorf("%d servers were started:\n%s", n, &notes)
	}
	gives.Close()
	if err := given.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := given.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("somebody still has a pipe that commands were given: %v", err)
	}
}
